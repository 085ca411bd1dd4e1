package gitsource

import (
	"fmt"
)

// Reason classes a failure for a status condition.
type Reason string

// The reasons of an Error.
const (
	ReasonUnreachable  Reason = "GitUnreachable"    // no connection, or no answer in time
	ReasonUnauthorized Reason = "GitUnauthorized"   // the server refuses the credentials
	ReasonUntrusted    Reason = "GitUntrusted"      // an ssh host key or a TLS certificate isn't trusted
	ReasonNotFound     Reason = "GitNotFound"       // no repository there, or nothing that speaks Git
	ReasonEmpty        Reason = "GitEmpty"          // a repository without a commit
	ReasonBranch       Reason = "GitBranchNotFound" // no such branch
	ReasonPath         Reason = "GitPathNotFound"   // no such folder in the revision
	ReasonTree         Reason = "GitTreeRefused"    // a revision with names that no checkout may have, or with too many files
	ReasonTooBig       Reason = "GitTooBig"         // more than one fetch may send
	ReasonCache        Reason = "GitCache"          // the cache folder can't be written or read, or is full
	ReasonCredentials  Reason = "GitCredentials"    // a file with a token, key, known hosts or certificates can't be used
	ReasonServer       Reason = "GitServer"         // the server answered with an error, or not in Git's way
)

// Error is a failure of Poll: one sentence with the way out, without any secret.
type Error struct {
	Reason Reason
	// Message is the sentence.
	Message string
	cause   error
}

func (e *Error) Error() string { return e.Message }

// Unwrap gives the cause. Its text is not scrubbed: compare it, don't print it.
func (e *Error) Unwrap() error { return e.cause }

// RewoundError says that the branch's new tip does not descend from what was seen before: someone force-pushed, or another
// repository stands at the URL.
type RewoundError struct {
	Branch string
	// Seen is the last commit that was seen, Tip what the branch points to now.
	Seen, Tip string
	// spent is set when one rewind was let pass already.
	spent bool
}

func (e *RewoundError) Error() string {
	way := "or start with --allow-rewind to take the tip as it is"
	if e.spent {
		way = "or start again with --allow-rewind, which lets one rewind pass and has done so since this start"
	}
	return fmt.Sprintf("branch %s was rewound: its tip %.12s does not descend from %.12s, which was seen before; push a commit that "+
		"descends from %.12s, %s", e.Branch, e.Tip, e.Seen, e.Seen, way)
}
