package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"ichor.maesh.dev/statefile"
)

// Op is a call of a store.
type Op string

// The calls.
const (
	Get    Op = "get"
	Put    Op = "put"
	Delete Op = "delete"
	List   Op = "list"
)

// Call is a call that is about to be made.
type Call struct {
	// N counts the calls of this Faulty from 1.
	N   int
	Op  Op
	Key string
}

// Fault is what befalls a call.
type Fault int

// The faults. One that doesn't suit a call is None for it. A deletion has no answer that its caller must tell apart from a lost one:
// where one is lost, it is ErrUnavailable.
const (
	// None: nothing.
	None Fault = iota
	// LostRequest: a write never reaches the store, and its answer never comes (ErrUnacknowledged).
	LostRequest
	// LostReply: a write is done, and its answer never comes (ErrUnacknowledged).
	LostReply
	// LateRequest: a write gets no answer (ErrUnacknowledged), and reaches the store after the next call: who reads it back at once doesn't
	// see it, and who writes anew finds it there.
	LateRequest
	// ConflictAfterEffect: a write is done, and a copy of its request that came later was answered (ErrConflict).
	ConflictAfterEffect
	// Unavailable: 503. A read was not answered; a write was not done, but nobody can know (ErrUnacknowledged).
	Unavailable
	// ShortRead: the content came up short, or the listing broke off after its first object (ErrUnavailable).
	ShortRead
	// StaleList: the listing does not show what was last put, also where its answer was lost.
	StaleList
	// CrashBefore: the process dies before the call; this one and all later ones return ErrCrashed.
	CrashBefore
	// CrashAfter: the process dies after the call had its effect; this one and all later ones return ErrCrashed.
	CrashAfter
)

// ErrCrashed is returned by every call after a crash.
var ErrCrashed = errors.New("the process has crashed here")

// Faulty is a store that fails when it is told to.
type Faulty struct {
	statefile.Store
	decide func(Call) Fault

	mu      sync.Mutex
	n       int
	crashed bool
	lastPut string
	late    []lateWrite
}

// lateWrite is a write on its way, which comes before the call with the number before.
type lateWrite struct {
	before int
	write  func()
}

// NewFaulty wraps a store. Decide says for each call what befalls it; it may be nil.
func NewFaulty(inner statefile.Store, decide func(Call) Fault) *Faulty {
	if decide == nil {
		decide = func(Call) Fault { return None }
	}
	return &Faulty{Store: inner, decide: decide}
}

// CrashAt makes a Faulty whose process dies at the nth call, before or after its effect.
func CrashAt(inner statefile.Store, n int, after bool) *Faulty {
	return NewFaulty(inner, func(call Call) Fault {
		switch {
		case call.N != n:
			return None
		case after:
			return CrashAfter
		}
		return CrashBefore
	})
}

// Crashed says whether a crash was reached.
func (f *Faulty) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// Calls says how many calls were made.
func (f *Faulty) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// begin counts a call and finds its fault.
func (f *Faulty) begin(op Op, key string) (n int, fault Fault, err error) {
	f.mu.Lock()
	f.n++
	call := Call{N: f.n, Op: op, Key: key}
	crashed := f.crashed
	f.mu.Unlock()
	if crashed {
		return call.N, None, ErrCrashed
	}
	f.arrive(call.N)
	fault = f.decide(call)
	if fault == CrashBefore {
		f.crash()
		return call.N, None, ErrCrashed
	}
	return call.N, fault, nil
}

// arrive lets the writes come that are to be there before the nth call.
func (f *Faulty) arrive(n int) {
	f.mu.Lock()
	var due []lateWrite
	f.late = slices.DeleteFunc(f.late, func(one lateWrite) bool {
		if one.before > n {
			return false
		}
		due = append(due, one)
		return true
	})
	f.mu.Unlock()
	for _, one := range due {
		one.write()
	}
}

// put writes, and remembers what a stale listing doesn't show.
func (f *Faulty) put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	etag, err := f.Store.Put(ctx, key, data, cond)
	if err == nil {
		f.mu.Lock()
		f.lastPut = key
		f.mu.Unlock()
	}
	return etag, err
}

func (f *Faulty) crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// Get implements statefile.Store.
func (f *Faulty) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	_, fault, err := f.begin(Get, key)
	if err != nil {
		return nil, err
	}
	switch fault {
	case Unavailable:
		return nil, fmt.Errorf("reading %s: %w: it answered 503", key, statefile.ErrUnavailable)
	case ShortRead:
		return nil, fmt.Errorf("reading %s: %w: it came up short", key, statefile.ErrUnavailable)
	case CrashAfter:
		f.crash()
		return nil, ErrCrashed
	}
	return f.Store.Get(ctx, key, known)
}

// Put implements statefile.Store.
func (f *Faulty) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	n, fault, err := f.begin(Put, key)
	if err != nil {
		return "", err
	}
	lost := fmt.Errorf("writing %s: %w", key, statefile.ErrUnacknowledged)
	switch fault {
	case LostRequest, Unavailable:
		return "", lost
	case LateRequest:
		f.mu.Lock()
		data := slices.Clone(data)
		f.late = append(f.late, lateWrite{before: n + 2, write: func() { _, _ = f.put(context.WithoutCancel(ctx), key, data, cond) }})
		f.mu.Unlock()
		return "", lost
	case LostReply:
		_, _ = f.put(ctx, key, data, cond)
		return "", lost
	case ConflictAfterEffect:
		_, _ = f.put(ctx, key, data, cond)
		return "", fmt.Errorf("writing %s: %w", key, statefile.ErrConflict)
	case CrashAfter:
		_, _ = f.put(ctx, key, data, cond)
		f.crash()
		return "", ErrCrashed
	}
	return f.put(ctx, key, data, cond)
}

// Delete implements statefile.Store.
func (f *Faulty) Delete(ctx context.Context, key string) error {
	_, fault, err := f.begin(Delete, key)
	if err != nil {
		return err
	}
	switch fault {
	case LostRequest, Unavailable:
		return fmt.Errorf("deleting %s: %w", key, statefile.ErrUnavailable)
	case LostReply:
		_ = f.Store.Delete(ctx, key)
		return fmt.Errorf("deleting %s: %w", key, statefile.ErrUnavailable)
	case CrashAfter:
		_ = f.Store.Delete(ctx, key)
		f.crash()
		return ErrCrashed
	}
	return f.Store.Delete(ctx, key)
}

// List implements statefile.Store.
func (f *Faulty) List(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
	_, fault, err := f.begin(List, prefix)
	if err != nil {
		return err
	}
	brokeOff := fmt.Errorf("listing %s: %w: it broke off", prefix, statefile.ErrUnavailable)
	switch fault {
	case Unavailable:
		return fmt.Errorf("listing %s: %w: it answered 503", prefix, statefile.ErrUnavailable)
	case ShortRead:
		shown := false
		err := f.Store.List(ctx, prefix, after, func(info statefile.ObjectInfo) error {
			if shown {
				return brokeOff
			}
			shown = true
			return fn(info)
		})
		if err == nil {
			return brokeOff
		}
		return err
	case CrashAfter:
		f.crash()
		return ErrCrashed
	case StaleList:
		f.mu.Lock()
		hidden := f.lastPut
		f.mu.Unlock()
		return f.Store.List(ctx, prefix, after, func(info statefile.ObjectInfo) error {
			if info.Key == hidden {
				return nil
			}
			return fn(info)
		})
	}
	return f.Store.List(ctx, prefix, after, fn)
}
