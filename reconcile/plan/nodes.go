package plan

import (
	"context"
	"fmt"
	"strings"

	"ichor.maesh.dev/talos"
)

// TalosNodes reaches the machines of one cluster by the Talos API.
func TalosNodes(client *talos.Client) Nodes { return talosNodes{client} }

type talosNodes struct{ client *talos.Client }

func (n talosNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	return n.client.Observe(ctx, target)
}

// DryRun looks once more, on the connection that carries the question: it goes to the declared machine only, and not where something
// is tried or staged, which a dry run may take back.
func (n talosNodes) DryRun(ctx context.Context, target talos.Target, uuid string, config []byte, staged bool) error {
	session, err := n.client.Dial(ctx, target, talos.RoleAdmin)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, talos.ErrNotSent)
	}
	defer session.Close()
	found, err := session.UUID(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w (%w)", err, talos.ErrNotSent)
	case !strings.EqualFold(found, uuid):
		return fmt.Errorf("the machine there has the UUID %s and not %s: %w", found, uuid, talos.ErrNotSent)
	}
	active, persistent, err := session.ConfigDigests(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w (%w)", err, talos.ErrNotSent)
	case persistent != "" && persistent != active:
		return fmt.Errorf("it runs another config than it stores, and a dry run could take back what is tried: %w", talos.ErrNotSent)
	}
	mode := talos.ApplyTry
	if staged {
		mode = talos.ApplyStaged
	}
	return session.DryRun(ctx, talos.ApplyRequest{Config: config, Mode: mode})
}

func (n talosNodes) Close() error { return n.client.Close() }
