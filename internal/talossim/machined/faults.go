package machined

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/internal/talossim/apid"
)

// FaultKind is a way for a call to go wrong.
type FaultKind int

// The kinds of faults.
const (
	// Hang: the call gets no answer and has no effect until its caller gives up.
	Hang FaultKind = iota + 1
	// Fail: the call is answered with the fault's error and has no effect.
	Fail
	// DropEffect: the call is checked and answered as if all was well, and nothing happens.
	DropEffect
	// CutBefore: the caller's connection is cut before the call has any effect.
	CutBefore
	// CutAfter: the call has its effect, and the connection is cut instead of an answer.
	CutAfter
	// Panic: the handler panics.
	Panic
	// EndEarly: a stream of data ends after its first messages as if it were complete, as Talos's does when its own reading breaks off;
	// of an upload the machine keeps the half of the first message, and answers as if that were all.
	EndEarly
	// Stall: a stream of data brings its first messages and then nothing, as Talos's does when etcd hangs.
	Stall
	// Damage: one bit of an upload is another one when it arrives.
	Damage
)

// firstMessages is how many messages EndEarly and Stall let through.
const firstMessages = 16

// AfterMemberAdd is a point in a machine's own doings that serves as a Fault's Method with the kind Hang: its member was added to
// etcd and has no name yet. The machine stays there until its power is cut or the fault is taken back.
const AfterMemberAdd = "etcd.join/after-member-add"

// BeforePromotion is another such point: the machine's member is a learner, and nobody is asked to promote it.
const BeforePromotion = "etcd.join/before-promotion"

// BeforeConfigWrite is a point at which a config was taken and isn't on the disk yet.
const BeforeConfigWrite = "config/before-write"

// BeforeGoingDown is a point at which a machine that reboots, resets or shuts down has stopped its services and still answers.
const BeforeGoingDown = "sequence/before-going-down"

// BeforeStopping is a point at which such a machine has answered, and everything on it runs still, its etcd too.
const BeforeStopping = "sequence/before-stopping"

// BeforeWipe is a point at which a machine that resets has stopped everything and is about to wipe. With the kind Fail the wipe fails, and
// with it the sequence: the machine reboots as it was.
const BeforeWipe = "sequence/before-wipe"

// Fault is something that goes wrong with calls of a method.
type Fault struct {
	// Method is the bare name (Bootstrap) or the full one.
	Method string
	Kind   FaultKind
	// Code and Text are the answer of Fail.
	Code codes.Code
	Text string
	// Times is how many calls it hits; 0 is all.
	Times int
	// Reached, when not nil, gets a value (if it has room) each time a call is hit.
	Reached chan<- struct{}

	disarmed chan struct{} // closed once the fault was taken back
}

// Faults are what is to go wrong with a machine's calls. They outlive boots. A nil *Faults has none.
type Faults struct {
	mu     sync.Mutex
	faults []*Fault
	// Cut resets every connection to the machine's front.
	Cut func()
}

// Add arms a fault and returns what disarms it, and lets a machine go on that it holds at a point of its own doings.
func (f *Faults) Add(fault Fault) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fault.disarmed = make(chan struct{})
	armed := &fault
	f.faults = append(f.faults, armed)
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.removeLocked(armed)
		close(armed.disarmed)
	})
}

func (f *Faults) removeLocked(fault *Fault) {
	for i, other := range f.faults {
		if other == fault {
			f.faults = append(f.faults[:i:i], f.faults[i+1:]...)
			return
		}
	}
}

func (f *Faults) hit(method string) (Fault, bool) {
	if f == nil {
		return Fault{}, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.faults {
		if fault.Method != method && fault.Method != method[strings.LastIndexByte(method, '/')+1:] {
			continue
		}
		hit := *fault
		if fault.Times > 0 {
			if fault.Times--; fault.Times == 0 {
				f.removeLocked(fault)
			}
		}
		if hit.Reached != nil {
			select {
			case hit.Reached <- struct{}{}:
			default:
			}
		}
		return hit, true
	}
	return Fault{}, false
}

// halt keeps a machine at a point while ctx lasts, if a fault says so and until it is taken back.
func (f *Faults) halt(ctx context.Context, point string) { _ = f.fails(ctx, point) }

// fails keeps a machine at a point as halt does, or gives the error that a fault has there.
func (f *Faults) fails(ctx context.Context, point string) error {
	fault, ok := f.hit(point)
	switch {
	case ok && fault.Kind == Fail:
		return errors.New(fault.Text)
	case ok && fault.Kind == Hang:
		select {
		case <-ctx.Done():
		case <-fault.disarmed:
		}
	}
	return nil
}

type dropKey struct{}

type streamKey struct{}

// errCut ends a stream that is to look complete.
var errCut = errors.New("a fault ends the stream")

// dropped says whether a call is to have no effect.
func (f *Faults) dropped(ctx context.Context) bool {
	dropped, _ := ctx.Value(dropKey{}).(bool)
	return dropped
}

func (f *Faults) options(m *Machine) []grpc.ServerOption {
	if f == nil {
		return nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
			err = f.around(ctx, m, info.FullMethod, func(ctx context.Context) error {
				resp, err = handler(ctx, req)
				return err
			})
			if err != nil {
				return nil, err
			}
			return resp, nil
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return f.around(ss.Context(), m, info.FullMethod, func(ctx context.Context) error {
				return handler(srv, &faultyStream{ServerStream: ss, ctx: ctx})
			})
		}),
	}
}

type faultyStream struct {
	grpc.ServerStream
	ctx            context.Context
	sent, received int
}

func (s *faultyStream) Context() context.Context { return s.ctx }

func (s *faultyStream) SendMsg(message any) error {
	kind, _ := s.ctx.Value(streamKey{}).(FaultKind)
	if kind != 0 && s.sent == firstMessages {
		if kind == Stall {
			<-s.ctx.Done()
		}
		return errCut
	}
	s.sent++
	return s.ServerStream.SendMsg(message)
}

func (s *faultyStream) RecvMsg(message any) error {
	kind, _ := s.ctx.Value(streamKey{}).(FaultKind)
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	data, upload := message.(*common.Data)
	if kind == 0 || !upload {
		return nil
	}
	s.received++
	switch half := len(data.GetBytes()) / 2; {
	case kind == EndEarly && s.received > 1:
		return io.EOF
	case kind == EndEarly:
		data.Bytes = data.Bytes[:half]
	case kind == Damage && s.received == 1 && half > 0:
		data.Bytes[half] ^= 1
	}
	return nil
}

func (f *Faults) around(ctx context.Context, m *Machine, method string, call func(context.Context) error) error {
	fault, ok := f.hit(method)
	if !ok {
		return call(ctx)
	}
	switch fault.Kind {
	case Hang:
		select {
		case <-ctx.Done():
		case <-m.ctx.Done():
		}
		return status.FromContextError(context.Cause(ctx)).Err()
	case Fail:
		return status.Error(fault.Code, fault.Text)
	case DropEffect:
		err := call(context.WithValue(ctx, dropKey{}, true))
		apid.CallFrom(ctx).SetAccepted(false, "a fault dropped the effect")
		return err
	case CutBefore:
		f.Cut()
		return status.Error(codes.Unavailable, "the connection was cut before the call")
	case CutAfter:
		err := call(ctx)
		apid.CallFrom(ctx).Settle(err) // whoever sees the cut finds the call in the journal
		f.Cut()
		return err
	case EndEarly, Stall, Damage:
		err := call(context.WithValue(ctx, streamKey{}, fault.Kind))
		if errors.Is(err, errCut) && fault.Kind == EndEarly {
			return nil
		}
		return err
	case Panic:
		panic("a fault was asked for")
	}
	return call(ctx)
}
