// Package architecture holds two tests: that the project's packages import each other downwards only, as
// docs/architecture.md draws it, and that no two packages' tests take the same loopback address. It has no code of its own.
package architecture
