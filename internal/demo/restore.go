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

// What somebody deletes: a ConfigMap, as Kubernetes names its key.
const (
	precious      = "/registry/configmaps/default/precious"
	preciousValue = "what nobody has a copy of"
)

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

// writePrecious writes the entry that a snapshot is to hold.
func (d *demo) writePrecious(ctx context.Context) error {
	err := d.etcd(ctx, d.nodes[0], func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Put(ctx, precious, preciousValue)
		return err
	})
	if err == nil {
		d.say("%s is written", precious)
	}
	return err
}

// restoreLive loses an entry that the snapshot holds, and brings it back: the snapshot is restored into the living cluster.
func (d *demo) restoreLive(ctx context.Context) error {
	err := d.etcd(ctx, d.nodes[0], func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Delete(ctx, precious)
		return err
	})
	if err != nil {
		return err
	}
	if got, err := d.valueOf(ctx, d.nodes[1], precious); err != nil || got != "" {
		return errors.Join(err, fmt.Errorf("%s has %q at %s after it was deleted", d.nodes[1].Name, got, precious))
	}
	d.say("somebody deletes it, and it is gone")
	began := time.Now()
	completed, err := d.handIn(ctx, operatorKey, "restore", "restore", "--live", "--confirm", cluster, "--local-data-loss", "accepted", "--time-scale", fmt.Sprint(d.opts.timeScale))
	if err != nil || !completed {
		return errors.Join(err, errors.New("the restore was not completed"))
	}
	d.say("restored in %s", time.Since(began).Round(time.Second))
	for _, n := range d.nodes[:3] {
		got, err := d.valueOf(ctx, n, precious)
		if err != nil {
			return err
		}
		if got != preciousValue {
			return fmt.Errorf("%s has %q at %s and not %q", n.Name, got, precious, preciousValue)
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
