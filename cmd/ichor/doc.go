// Command ichor manages Talos Linux clusters from a Git repository.
//
// One file holds one command: it reads flags, calls a package, and prints. The rules of what is printed where stand in
// terminal.go; how a command ends is in exit.go; the ICHOR_* twins of the flags are in environment.go.
package main
