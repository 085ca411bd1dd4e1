package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"ichor.maesh.dev/internal/talossim"
)

// precious is an entry that somebody deletes: a ConfigMap, as Kubernetes names its key.
const precious = "/registry/configmaps/default/precious"

// etcd runs do with a client of one node's etcd.
func (d *demo) etcd(ctx context.Context, n talossim.NodeSpec, do func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + n.Address + ":2379"}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return do(ctx, client)
}

// valueOf gives what a node's etcd has at a key; empty where it has nothing.
func (d *demo) valueOf(ctx context.Context, n talossim.NodeSpec, key string) (value string, err error) {
	err = d.etcd(ctx, n, func(ctx context.Context, client *clientv3.Client) error {
		answer, err := client.Get(ctx, key)
		if err == nil && len(answer.Kvs) > 0 {
			value = string(answer.Kvs[0].Value)
		}
		return err
	})
	return value, err
}

// restoreLive loses an entry and brings it back: it is written, a snapshot is taken, it is deleted, and the snapshot is restored into the
// living cluster.
func (d *demo) restoreLive(ctx context.Context) error {
	const value = "what nobody has a copy of"
	if err := d.etcd(ctx, d.nodes[0], func(ctx context.Context, c *clientv3.Client) error { _, err := c.Put(ctx, precious, value); return err }); err != nil {
		return err
	}
	d.say("%s is written", precious)
	if completed, err := d.handIn(ctx, operatorKey, "backup now", "backup", "now", "--yes"); err != nil || !completed {
		return errors.Join(err, incomplete(completed, "the snapshot"))
	}
	if err := d.etcd(ctx, d.nodes[0], func(ctx context.Context, c *clientv3.Client) error { _, err := c.Delete(ctx, precious); return err }); err != nil {
		return err
	}
	if got, err := d.valueOf(ctx, d.nodes[1], precious); err != nil || got != "" {
		return errors.Join(err, fmt.Errorf("%s has %q at %s after it was deleted", d.nodes[1].Name, got, precious))
	}
	d.say("somebody deletes it, and it is gone")
	began := time.Now()
	completed, err := d.handIn(ctx, operatorKey, "restore", "restore", "--live", "--confirm", cluster, "--local-data-loss", "accepted", "--time-scale", fmt.Sprint(d.opts.timeScale))
	if err != nil || !completed {
		return errors.Join(err, incomplete(completed, "the restore"))
	}
	d.say("restored in %s", time.Since(began).Round(time.Second))
	for _, n := range d.nodes[:3] {
		got, err := d.valueOf(ctx, n, precious)
		if err != nil {
			return err
		}
		if got != value {
			return fmt.Errorf("%s has %q at %s and not %q", n.Name, got, precious, value)
		}
	}
	d.say("it is back, in the etcd of each control plane")
	for method, want := range map[string]int{"EtcdLeaveCluster": 2, "Reset": 1} {
		if got, err := d.accepted(method); err != nil || got != want {
			return errors.Join(err, fmt.Errorf("the nodes' journals show %d accepted %s and not %d", got, method, want))
		}
	}
	d.say("the nodes' journals show 2 that left etcd and 1 that was wiped")
	if err := waitFor(ctx, changeLimit, "the cluster Ready", d.alive, func(ctx context.Context) error { return d.allReady(ctx, "") }); err != nil {
		return err
	}
	return d.pull(ctx)
}

func incomplete(completed bool, what string) error {
	if completed {
		return nil
	}
	return fmt.Errorf("%s was not completed", what)
}
