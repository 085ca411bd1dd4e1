// Package architecture holds one test: that the project's packages import each other downwards only, as
// docs/architecture.md draws it. It has no code of its own.
package architecture
