// Command crosscheck says whether a command compiles for other systems, without compiling it: it is type-checked, with all it is made of, as
// the compiler would. That takes seconds where a build of everything for each system takes minutes.
//
//	go run ./internal/crosscheck ./cmd/ichor darwin/arm64 windows/amd64
package main
