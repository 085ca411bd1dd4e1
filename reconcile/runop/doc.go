// Package runop is what `ichor run-op` and `ichor op` do, without flags and without a terminal: it finds what a person means in a
// fleet, writes the file of an operation, says what it would do and what speaks against it, follows one to its end, and puts
// together what Git and the state know of operations.
//
// Nothing here signs, and nothing goes into Git or a state: that is the command's. What an operation does is said by
// [reconcile.DescribeOperation], and what the repository's rules say to it by package validate, so that a plan says what the agent
// and `ichor validate` say.
package runop
