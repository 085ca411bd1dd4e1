package recovery

import (
	"context"

	"ichor.maesh.dev/talos"
)

// TalosNodes reaches machines by the Talos API.
func TalosNodes(client *talos.Client) Nodes { return talosNodes{client} }

type talosNodes struct{ client *talos.Client }

func (n talosNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	return n.client.Observe(ctx, target)
}

func (n talosNodes) Dial(ctx context.Context, target talos.Target) (Session, error) {
	return opened(n.client.Dial(ctx, target, talos.RoleAdmin))
}

func (n talosNodes) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (Session, error) {
	return opened(n.client.DialMaintenance(ctx, target, fingerprint))
}

// opened gives a session that came to be; none is no session at all, and not one that is nil.
func opened(session *talos.Session, err error) (Session, error) {
	if err != nil {
		return nil, err
	}
	return session, nil
}
