package reconcile

import (
	"fmt"
	"path"
	"strings"
	"time"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// Where an operation's file was seen.
const (
	sourceGit   = "git"
	sourceInbox = "inbox"
)

// lockOperation begins the holder of the cluster lock while an operation has it; the first 12 digits of its digest follow.
const lockOperation = "operation:"

// Operations is what one pass knows of operations besides the state.
type Operations struct {
	// Signers are who may sign. Nil: Problem says why nobody may.
	Signers *operation.AllowedSigners
	Problem string
	// Unread says that there are allowed signers, and that they can't be read at the moment.
	Unread bool
	// Commit is the newest revision, in which the files of Git were found, acted on or not. Stale says that it may not be the newest,
	// since the repository, or the inbox, could not be read.
	Commit string
	Stale  string
	// Files are all operation files of this cluster. Gone are those of accepted operations that are no longer where they were seen.
	Files []Submitted
	Gone  map[string]bool
	// Nonce is random, for what this pass begins.
	Nonce string
	// Skew is how far this machine's clock is from that of the state's store; it is behind where negative.
	Skew time.Duration
	// RunExisting names operations that are run although they were there when a lost state was made anew.
	RunExisting map[string]bool
	// What this process found out of operations, by digest. Begun are the nonces of those whose audit/once object it made, Taken why
	// that can't be had. Judged are those of which it verified the signature: what the state says of that may be somebody else's word.
	Begun, Taken map[string]string
	Judged       map[string]bool
	// Unbegun is why the audit/once object can't be made, where waiting doesn't help, by unbegun.
	Unbegun map[string]string
	// Refused are verdicts to which this process came before, by Submitted.key: about the same bytes, against the same Signers.
	Refused map[string]*operation.Refusal
}

// unbegun names an operation that could not begin, until it is resumed.
func unbegun(digest string, pause int) string { return fmt.Sprint(digest, " ", pause) }

// Submitted is an operation file as it was found.
type Submitted struct {
	// Source is "git" or "inbox", File the path or the key there.
	Source, File    string
	Data, Signature []byte
	// Digest is of Data.
	Digest string
	// Kind is the operation's, and ExpiresAt its, where they can be read.
	Kind      schema.OperationKind
	ExpiresAt time.Time
}

// base is the file's name without its folder.
func (s Submitted) base() string { return baseOf(s.File) }

func baseOf(file string) string { return printable.Text(path.Base(file)) }

// key tells files apart by all that a verdict on their bytes and signatures rests on.
func (s Submitted) key() string {
	return s.Digest + " " + operation.Digest(s.Signature) + " " + s.base()
}

// shown is the file as it stands in the state, where nothing that acts on terminals does.
func (s Submitted) shown() string { return printable.Text(s.File) }

// placed is where a file is, for Operations.Gone.
func placed(source, file string) string { return source + " " + file }

// operationLock is the holder of the cluster lock while this operation has it.
func operationLock(digest string) string { return lockOperation + digest[:min(12, len(digest))] }

// isOperationLock says whether an operation holds the lock.
func isOperationLock(l *statefile.Lock) bool {
	return l != nil && strings.HasPrefix(l.Holder, lockOperation)
}

// accepted gives the operation with that digest that was accepted, or nil: a copy of its file under another name never was.
func accepted(s *statefile.State, digest string) *statefile.OperationState {
	for _, op := range s.Operations {
		if op.Digest == digest && !op.AcceptedAt.IsZero() {
			return op
		}
	}
	return nil
}

// noted gives what is remembered of a file, or nil.
func noted(s *statefile.State, f Submitted) *statefile.OperationState {
	for _, op := range s.Operations {
		if op.Digest == f.Digest && baseOf(op.File) == f.base() {
			return op
		}
	}
	return nil
}

// cloneOperations copies what is remembered of operations deeply enough for a decision to change it.
func cloneOperations(list []*statefile.OperationState) []*statefile.OperationState {
	if list == nil {
		return nil
	}
	copied := make([]*statefile.OperationState, len(list))
	for n, op := range list {
		one := *op
		one.Evacuation = clonePointer(op.Evacuation)
		one.Steps = append([]statefile.OperationStep(nil), op.Steps...)
		if op.Sent != nil {
			one.Sent = make(map[string]int, len(op.Sent))
			for call, times := range op.Sent {
				one.Sent[call] = times
			}
		}
		copied[n] = &one
	}
	return copied
}
