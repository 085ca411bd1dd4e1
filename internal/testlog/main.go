// Command testlog judges a run of the tests by what `go test -json` wrote: which tests failed at first and passed when they were run once
// more, alone, and which were the slowest. It fails where a test failed for good, and where a package ended without every test that it began
// having an end: what a process that died never ran must not pass for green because the one test in it passes the next time.
//
//	go run ./internal/testlog bin/test.json
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: testlog FILE")
		os.Exit(2)
	}
	os.Exit(run(os.Args[1], os.Stdout, os.Stderr))
}

// run judges a file, and gives the exit code.
func run(path string, stdout, stderr io.Writer) int {
	file, err := os.Open(path)
	if err != nil {
		fmt.Fprintln(stderr, "testlog:", err)
		return 1
	}
	defer file.Close()
	v, err := judge(file)
	if err != nil {
		fmt.Fprintf(stderr, "testlog: %s: %s\n", path, err)
		return 1
	}
	v.print(stdout)
	if !v.good() {
		return 1
	}
	return 0
}
