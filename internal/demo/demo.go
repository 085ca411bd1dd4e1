package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"ichor.maesh.dev/internal/talossim"
)

// bringUpLimit is how long the cluster may take from nothing to Ready on a slow machine.
const bringUpLimit = 20 * time.Minute

// demo is a run: where things are, and what was started.
type demo struct {
	opts    options
	out     io.Writer
	started time.Time
	dir     string
	nodes   []talossim.NodeSpec
	sim, s3 *process
	agent   *process
	// said is the reason last printed for each machine.
	said map[string]string
}

// scene is one part of the demo: it is done, and then it is seen on the nodes.
type scene struct {
	title string
	play  func(context.Context) error
}

func run(ctx context.Context, opts options) (err error) {
	dir, err := os.MkdirTemp("", "ichor-demo-")
	if err != nil {
		return err
	}
	if opts.binaries, err = filepath.Abs(opts.binaries); err != nil {
		return err
	}
	d := &demo{opts: opts, out: os.Stdout, started: time.Now(), dir: dir, said: map[string]string{}}
	defer func() { err = errors.Join(err, d.end(err)) }()
	for i, s := range d.scenes() {
		fmt.Fprintf(d.out, "\n%d. %s\n", i+1, s.title)
		if err := s.play(ctx); err != nil {
			return fmt.Errorf("part %d failed (%s): %w", i+1, s.title, err)
		}
	}
	fmt.Fprintf(d.out, "\nAll %d parts were seen to work, in %s.\n", len(d.scenes()), d.since().Round(time.Second))
	if !opts.keep {
		return nil
	}
	if err := d.stayUp(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nIt is stopped, and %s is taken away.\n", d.dir)
	return nil
}

func (d *demo) scenes() []scene {
	return []scene{
		{"A real S3 server starts over a folder", d.startBucket},
		{fmt.Sprintf("Three control planes and a worker start in maintenance mode (their waits are %d times shorter than Talos's)", d.opts.timeScale), d.startNodes},
		{"A fleet repository is made and pushed", d.makeRepository},
		{"Who may order reboots is written down, outside of the repository", d.makeKeys},
		{"The agent starts, and the cluster comes up from nothing", d.bringUp},
		{"A change is pushed, and every machine runs it", d.pushChange},
		{"A backup is asked for in Git: a snapshot of etcd is stored, and listed, verified and drilled from the bucket alone", d.takeBackup},
		{"A setting is changed behind Git's back, and put back", d.mendDrift},
		{"A change that would break a rule is pushed, and refused without touching anything", d.refuseChange},
		{"A reboot of a control plane is signed, pushed and followed to its end", d.signReboot},
		{"A reboot under a stranger's key is pushed, and refused without touching anything", d.refuseForgery},
		{"An entry is deleted, and a snapshot restored into the living cluster brings it back", d.restoreLive},
		{"The agent stops, and leaves nothing half done", d.stopAgent},
	}
}

// end stops what was started, the agent first, and takes the folder away unless something failed.
func (d *demo) end(failed error) error {
	var errs []error
	for _, p := range []*process{d.agent, d.sim, d.s3} {
		if p != nil && p.alive() == nil {
			errs = append(errs, p.stop())
		}
	}
	if failed != nil {
		fmt.Fprintf(d.out, "\nThe logs and the state are in %s\n", d.dir)
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

func (d *demo) since() time.Duration { return time.Since(d.started) }

func (d *demo) say(format string, values ...any) {
	fmt.Fprintf(d.out, "   %6.1fs  %s\n", d.since().Seconds(), fmt.Sprintf(format, values...))
}

func (d *demo) path(parts ...string) string {
	return filepath.Join(append([]string{d.dir}, parts...)...)
}

func (d *demo) ichor(ctx context.Context, args ...string) ([]byte, error) {
	return output(ctx, d.dir, filepath.Join(d.opts.binaries, "ichor"), args...)
}

func (d *demo) startNodes(ctx context.Context) error {
	var err error
	d.sim, err = start(d.dir, "talossim", filepath.Join(d.opts.binaries, "talossim"), "up", "--control-planes", "3", "--workers", "1",
		"--dir", d.path("nodes"), "--first", d.opts.first, "--time-scale", fmt.Sprint(d.opts.timeScale))
	if err != nil {
		return err
	}
	err = waitFor(ctx, bringUpLimit, "the list of nodes", d.sim.alive, func(context.Context) error {
		data, err := os.ReadFile(d.path("nodes", talossim.NodesFile))
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &d.nodes)
	})
	if err != nil {
		return err
	}
	err = waitFor(ctx, bringUpLimit, "every node in maintenance mode", d.sim.alive, func(ctx context.Context) error {
		found, err := d.discover(ctx)
		if err == nil && len(found) != len(d.nodes) {
			err = fmt.Errorf("%d of %d nodes answer", len(found), len(d.nodes))
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, n := range d.nodes {
		d.say("%s at %s waits for a config (UUID %s)", n.Name, n.Address, n.UUID)
	}
	return nil
}

// startBucket starts a real S3 server with a bucket for the state and one for the backups.
func (d *demo) startBucket(ctx context.Context) error {
	var err error
	d.s3, err = start(d.dir, "s3", filepath.Join(d.opts.binaries, "talossim"), "s3", "--dir", d.path("bucket"), "--listen", bucketAddress,
		"--bucket", "fleet", "--bucket", "backups")
	if err != nil {
		return err
	}
	return waitFor(ctx, bringUpLimit, "the S3 server", d.s3.alive, func(ctx context.Context) error { return dial(ctx, bucketAddress) })
}

// network is the network of the nodes, in which the agent may send a first config without a fingerprint.
func (d *demo) network() string {
	address, err := netip.ParseAddr(d.opts.first)
	if err != nil {
		return d.opts.first + "/24"
	}
	prefix, _ := address.Prefix(24)
	return prefix.String()
}

func (d *demo) agentArguments() []string {
	args := []string{"agent", "--repo", "file://" + d.path("fleet.git"), "--age-identity", d.path("age.key"), "--cache", d.path("cache"),
		"--interval", "1s", "--time-scale", fmt.Sprint(d.opts.timeScale), "--trust-maintenance-network", d.network(), "--allowed-signers", d.path(signersFile)}
	return append(args, d.stateArguments()...)
}

func (d *demo) startAgent() error {
	var err error
	d.agent, err = start(d.dir, "agent", filepath.Join(d.opts.binaries, "ichor"), d.agentArguments()...)
	return err
}

func (d *demo) bringUp(ctx context.Context) error {
	if err := d.startAgent(); err != nil {
		return err
	}
	began := time.Now()
	err := waitFor(ctx, bringUpLimit, "the cluster Ready", d.alive, func(ctx context.Context) error {
		return d.allReady(ctx, "")
	})
	if err != nil {
		return err
	}
	d.say("Ready after %s", time.Since(began).Round(100*time.Millisecond))
	return d.checkCluster(ctx)
}

// alive says whether what the demo needs still runs.
func (d *demo) alive() error {
	for _, p := range []*process{d.sim, d.s3, d.agent} {
		if p != nil {
			if err := p.alive(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *demo) stopAgent(ctx context.Context) error {
	began := time.Now()
	if err := d.agent.stop(); err != nil {
		return err
	}
	d.say("the agent ended %s after SIGTERM, with exit code 0", time.Since(began).Round(10*time.Millisecond))
	status, err := d.status(ctx)
	if err != nil {
		return err
	}
	if status.Lease.Holder != "" {
		return fmt.Errorf("the lease is still held by %s", status.Lease.Holder)
	}
	d.say("its lease is free for the next one")
	if d.opts.keep {
		d.say("and it is started again, since this demo stays up")
		return d.startAgent()
	}
	return nil
}
