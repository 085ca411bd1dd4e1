package keeper

import (
	"errors"
	"fmt"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/statefile"
)

// textLimit bounds a sentence in the state, in bytes.
const textLimit = 1500

// problem is an error with the reason that the status gives.
type problem struct {
	reason string
	err    error
}

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

// ofMember, ofStore and ofSpool say which part failed, why, and what to do.
func ofMember(err error) *problem {
	return &problem{"Failed", fmt.Errorf("member: %w; see to these control planes (talosctl etcd status), it is tried again by itself", err)}
}

func ofSpool(err error) *problem { return &problem{"Failed", err} }

func ofStore(err error) *problem {
	var forged *statefile.StateForgedError
	var behind *backup.ClockBehindError
	var known *problem
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &forged):
		return &problem{"IndexForged", fmt.Errorf("store: %w; nothing is taken or pruned here: find out who can write the bucket, and put the newest sealed "+
			"etcd-index.json back", err)}
	case errors.As(err, &behind):
		return &problem{"ClockBehind", fmt.Errorf("store: %w", err)}
	case errors.Is(err, statefile.ErrPermission):
		return &problem{"DestinationUnusable", fmt.Errorf("store: %w; correct the credentials, or give them the right to read, write and list there", err)}
	case errors.Is(err, statefile.ErrNoConditions):
		return &problem{"DestinationUnusable", fmt.Errorf("store: %w; use a store with conditional writes", err)}
	case errors.Is(err, statefile.ErrUnavailable), errors.Is(err, statefile.ErrUnacknowledged):
		return &problem{"Failed", fmt.Errorf("store: %w; see whether it is up and can be reached from here, it is tried again by itself", err)}
	}
	return &problem{"Failed", fmt.Errorf("store: %w", err)}
}
