package soak

import (
	"context"

	"ichor.maesh.dev/reconcile"
)

// sabotage spoils what lies between the agents and the world, as a broken product would: the tests show with it that a history reports what
// is broken. The zero value spoils nothing.
type sabotage struct {
	// spoil changes what a process reaches the world with.
	spoil func(*process, *reconcile.Config)
	// look is what agents see in a machine's place, itself mostly. It is called under the world's lock.
	look func(*machine) *machine
	// hand has a changing call in its hand, which send sends to the machine.
	hand func(ctx context.Context, s *session, t taken, send func(context.Context) error) error
}

// see is what agents see of a machine.
func (w *World) see(m *machine) *machine {
	if w.look == nil || m == nil {
		return m
	}
	return w.look(m)
}
