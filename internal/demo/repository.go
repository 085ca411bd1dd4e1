package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const cluster = "demo"

// discovered is one machine of `ichor discover -o json`.
type discovered struct {
	Endpoint    string `json:"endpoint"`
	UUID        string `json:"uuid"`
	Fingerprint string `json:"fingerprint"`
}

// discover asks every node's address for machines in maintenance mode.
func (d *demo) discover(ctx context.Context) ([]discovered, error) {
	args := []string{"discover", "-o", "json"}
	for _, n := range d.nodes {
		args = append(args, n.Address)
	}
	data, err := d.ichor(ctx, args...)
	if err != nil {
		return nil, err
	}
	var found []discovered
	return found, json.Unmarshal(data, &found)
}

// makeRepository makes a fleet repository as a person would: ichor init, a look at it, a commit, a push.
func (d *demo) makeRepository(ctx context.Context) error {
	args := []string{"init", d.path("fleet"), "--cluster", cluster, "--endpoint", "https://" + d.opts.first + ":6443",
		"--age-identity-out", d.path("age.key"), "--approve", "--control-plane-count", "3"}
	for _, n := range d.nodes {
		flag := "--control-plane"
		if n.Role != "controlplane" {
			flag = "--worker"
		}
		args = append(args, flag, fmt.Sprintf("%s=%s,%s", n.Name, n.Address, n.UUID))
	}
	if _, err := d.ichor(ctx, args...); err != nil {
		return err
	}
	d.say("ichor init wrote cluster.yaml, %d machines and a sealed secrets bundle", len(d.nodes))
	if err := d.makeCheckout(ctx); err != nil {
		return err
	}
	if err := d.validate(ctx); err != nil {
		return err
	}
	d.say("ichor validate finds nothing wrong")
	if err := d.push(ctx, "A cluster of three control planes and a worker"); err != nil {
		return err
	}
	d.say("pushed to %s", d.path("fleet.git"))
	return nil
}

// makeCheckout makes a Git repository of the folder, and a server's beside it. The checkout says itself who commits there, so that it works on a
// machine where Git was never told, by run-op too.
func (d *demo) makeCheckout(ctx context.Context) error {
	for _, command := range [][]string{
		{"init", "--quiet", "--bare", "--initial-branch=main", d.path("fleet.git")},
		{"-C", d.path("fleet"), "init", "--quiet", "--initial-branch=main"},
		{"-C", d.path("fleet"), "remote", "add", "origin", d.path("fleet.git")},
		{"-C", d.path("fleet"), "config", "user.name", "Demo"},
		{"-C", d.path("fleet"), "config", "user.email", "demo@example.com"},
		{"-C", d.path("fleet"), "config", "commit.gpgsign", "false"},
	} {
		if _, err := output(ctx, d.dir, "git", command...); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) validate(ctx context.Context) error {
	_, err := d.ichor(ctx, "validate", d.path("fleet"))
	return err
}

// push commits everything in the checkout and pushes it.
func (d *demo) push(ctx context.Context, subject string) error {
	for _, command := range [][]string{
		{"add", "--all"},
		{"commit", "--quiet", "-m", subject},
		{"push", "--quiet", "--set-upstream", "origin", "HEAD:main"},
	} {
		if _, err := output(ctx, d.dir, "git", append([]string{"-C", d.path("fleet")}, command...)...); err != nil {
			return err
		}
	}
	return nil
}

// edit replaces a text in a file of the checkout; it must stand there exactly once.
func (d *demo) edit(file, old, replacement string) error {
	path := filepath.Join(d.path("fleet"), file)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(data), old); n != 1 {
		return fmt.Errorf("%s holds %q %d times and not once", file, old, n)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(data), old, replacement, 1)), 0o644)
}
