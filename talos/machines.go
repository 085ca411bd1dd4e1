package talos

import "context"

// Machines reaches the machines of one cluster. S is what of a [Session] its user has need of, so that what a user may send stands in its
// own interface.
type Machines[S any] interface {
	// Observe looks at one machine, bounded by ctx; what can't be read is unknown.
	Observe(ctx context.Context, target Target) Observation
	// Dial connects to a configured machine as administrator, DialMaintenance to one in maintenance mode that shows this fingerprint.
	Dial(ctx context.Context, target Target) (S, error)
	DialMaintenance(ctx context.Context, target Target, fingerprint string) (S, error)
}

// MachinesOf gives those that a client reaches, with its sessions as S.
func MachinesOf[S any](client *Client, as func(*Session) S) Machines[S] {
	return machines[S]{client, as}
}

type machines[S any] struct {
	client *Client
	as     func(*Session) S
}

func (m machines[S]) Observe(ctx context.Context, target Target) Observation {
	return m.client.Observe(ctx, target)
}

// Dial uses the role os:admin: before a call that changes something the boot ID is read, which Talos shows to no lesser role.
func (m machines[S]) Dial(ctx context.Context, target Target) (S, error) {
	return m.opened(m.client.Dial(ctx, target, RoleAdmin))
}

func (m machines[S]) DialMaintenance(ctx context.Context, target Target, fingerprint string) (S, error) {
	return m.opened(m.client.DialMaintenance(ctx, target, fingerprint))
}

// opened gives a session that came to be; none is no session at all, and not one that is nil.
func (m machines[S]) opened(session *Session, err error) (none S, _ error) {
	if err != nil {
		return none, err
	}
	return m.as(session), nil
}
