package main

import (
	"errors"
	"fmt"
)

// How a command ends. A script can tell "the answer is no" from "there is no answer".
const (
	exitOK     = 0 // it ran, and all is well
	exitNo     = 1 // it ran, and the answer is no
	exitCannot = 2 // it could not run
)

// exitError is an error that knows how the command ends and what the person can do next.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errNo ends a command with "the answer is no" after it has printed its answer itself.
var errNo = &exitError{code: exitNo}

// answerNo says that the command ran and the answer is no, for the reason in err.
func answerNo(err error, hint string) error { return &exitError{code: exitNo, err: err, hint: hint} }

// cannot says that the command could not run.
func cannot(err error, hint string) error { return &exitError{code: exitCannot, err: err, hint: hint} }

// usageError is a command line that makes no sense.
func usageError(err error, hint string) error { return cannot(err, hint) }

// fail prints an error as people should see it, and gives the exit code.
func (a *app) fail(err error) int {
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{code: exitCannot, err: err}
	}
	if exit.err == nil {
		return exit.code
	}
	fmt.Fprintf(a.err, "ichor: %s\n", a.clean(err.Error()))
	if exit.hint != "" {
		fmt.Fprintf(a.err, "  → %s\n", a.clean(exit.hint))
	}
	return exit.code
}
