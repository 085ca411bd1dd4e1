package talos

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outcome is what the answer to a mutating call proves.
type Outcome string

// The outcomes. Their texts are those of the state file.
const (
	// OutcomeOK: the machine took the call. For Reset and Reboot it proves nothing about the effect: a machine that is
	// busy with another sequence answers OK and drops the request.
	OutcomeOK Outcome = "ok"
	// OutcomeRefused: nothing was begun.
	OutcomeRefused Outcome = "refused"
	// OutcomeUnknown: it may have been begun or not; only the machine can tell. AlreadyExists from a bootstrap is here
	// too, because it says no more than that there is data.
	OutcomeUnknown Outcome = "unknown"
)

// Classify says what err, the answer to a mutating call of a Session, proves. Nil is OutcomeOK.
func Classify(err error) Outcome {
	if err == nil {
		return OutcomeOK
	}
	if errors.Is(err, ErrNotSent) {
		return OutcomeRefused
	}
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented:
		return OutcomeRefused
	}
	return OutcomeUnknown
}
