package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"

	"ichor.maesh.dev/reconcile"
)

// bucketAddress is where the demo's S3 server listens.
const bucketAddress = "127.0.0.1:9070"

func (d *demo) stateArguments() []string {
	if d.opts.state == "s3" {
		return []string{"--state", "s3://fleet/state", "--state-endpoint", "http://" + bucketAddress, "--state-region", "us-east-1",
			"--state-credentials", d.path("bucket", "s3-credentials.json")}
	}
	return []string{"--state", "file://" + d.path("state")}
}

func dial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// status reads the cluster's status as a person would: with ichor status.
func (d *demo) status(ctx context.Context) (reconcile.ClusterStatus, error) {
	args := append([]string{"status", "-o", "json", "--age-identity", d.path("age.key"), "--fleet", d.path("fleet")}, d.stateArguments()...)
	data, err := exec.CommandContext(ctx, filepath.Join(d.opts.binaries, "ichor"), args...).Output()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		if exit != nil {
			err = fmt.Errorf("ichor status: %w: %s", err, exit.Stderr)
		}
		return reconcile.ClusterStatus{}, err
	}
	var status reconcile.Status
	if len(data) == 0 {
		return reconcile.ClusterStatus{}, errors.New("the state holds no cluster yet")
	}
	if err := json.Unmarshal(data, &status); err != nil {
		return reconcile.ClusterStatus{}, fmt.Errorf("ichor status: %w", err)
	}
	for _, c := range status.Clusters {
		if c.Name == cluster {
			return c, nil
		}
	}
	return reconcile.ClusterStatus{}, errors.New("the state holds no cluster yet")
}

// head is the commit at the tip of the checkout.
func (d *demo) head(ctx context.Context) (string, error) {
	out, err := output(ctx, d.dir, "git", "-C", d.path("fleet"), "rev-parse", "HEAD")
	return strings.TrimSpace(string(out)), err
}

// allReady is nil when the cluster is Ready at commit (or at any, if empty). It prints what changed since it was asked last.
func (d *demo) allReady(ctx context.Context, commit string) error {
	status, err := d.status(ctx)
	if err != nil {
		return err
	}
	for _, m := range status.Machines {
		if d.said[m.Name] != m.Reason {
			d.said[m.Name] = m.Reason
			d.say("%-5s %-20s %s", m.Name, m.Reason, m.Message)
		}
	}
	if commit != "" && status.Revision.Applied != commit {
		return fmt.Errorf("revision %.8s is applied and not %.8s", status.Revision.Applied, commit)
	}
	if !status.Ready {
		return fmt.Errorf("%s: %s", status.Reason, status.Message)
	}
	return nil
}
