package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

// operationLimit is how long a signed operation may take on a slow machine.
const operationLimit = 10 * time.Minute

// The keys of the demo: one that may order operations on its cluster, and one that may not.
const (
	operatorKey = "operator.key"
	strangerKey = "stranger.key"
	signersFile = "allowed_signers"
)

// makeKeys makes both keys, and the file that says who may do what. It stands outside of the repository: who may push must not
// decide who may reboot.
func (d *demo) makeKeys(context.Context) error {
	public, err := writeKey(d.path(operatorKey))
	if err != nil {
		return err
	}
	if _, err := writeKey(d.path(strangerKey)); err != nil {
		return err
	}
	line := fmt.Sprintf("operator@example.com namespaces=\"ichor-*@%s\" %s", cluster, ssh.MarshalAuthorizedKey(public))
	if err := os.WriteFile(d.path(signersFile), []byte(line), 0o644); err != nil {
		return err
	}
	d.say("%s lets %s order what is done to %s, and nobody else", signersFile, operatorKey, cluster)
	return nil
}

// writeKey makes an SSH key in a file.
func writeKey(path string) (ssh.PublicKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, filepath.Base(path))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewPublicKey(public)
}

// runOp hands an operation in without being asked. See [demo.handIn].
func (d *demo) runOp(ctx context.Context, key string, args ...string) (completed bool, err error) {
	return d.handIn(ctx, key, "run-op", append(append([]string{"run-op"}, args...), "--yes")...)
}

// handIn runs a command that signs an operation and follows it, and says every line that it prints. An exit code of 1 is no error: the command
// ran, and what became of the operation is not good.
func (d *demo) handIn(ctx context.Context, key, label string, args ...string) (completed bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, operationLimit, fmt.Errorf("the operation did not end within %s", operationLimit))
	defer cancel()
	args = append(args, "--repo", d.path("fleet"), "--age-identity", d.path("age.key"), "--key", d.path(key), "--follow")
	args = append(args, d.stateArguments()...)
	cmd := exec.CommandContext(ctx, filepath.Join(d.opts.binaries, "ichor"), args...)
	cmd.Dir = d.dir
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return false, err
	}
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		d.say("%s  %s", label, lines.Text())
	}
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
		err = nil
	} else if err == nil {
		completed = true
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return completed, errors.Join(lines.Err(), err)
}

// signReboot reboots a control plane by a signed operation, and sees on the nodes that exactly that was done.
func (d *demo) signReboot(ctx context.Context) error {
	target := d.nodes[1].Name
	before, err := d.bootOf(ctx, target)
	if err != nil {
		return err
	}
	completed, err := d.runOp(ctx, operatorKey, "node", "reboot", target)
	if err != nil {
		return err
	}
	if !completed {
		return errors.New("the signed reboot was not completed")
	}
	err = waitFor(ctx, changeLimit, "the cluster Ready", d.alive, func(ctx context.Context) error { return d.allReady(ctx, "") })
	if err != nil {
		return err
	}
	after, err := d.bootOf(ctx, target)
	if err != nil {
		return err
	}
	if before == after {
		return fmt.Errorf("%s still runs boot %s", target, before)
	}
	d.say("%s runs another boot: %.8s and no longer %.8s", target, after, before)
	reboots, err := d.accepted("Reboot")
	if err != nil {
		return err
	}
	if reboots != 1 {
		return fmt.Errorf("the nodes' journals show %d accepted reboots and not 1", reboots)
	}
	d.say("the nodes' journals show exactly 1 accepted reboot")
	return d.pull(ctx)
}

// refuseForgery hands in a reboot under a key that nobody allowed.
func (d *demo) refuseForgery(ctx context.Context) error {
	completed, err := d.runOp(ctx, strangerKey, "node", "reboot", d.nodes[0].Name)
	if err != nil {
		return err
	}
	if completed {
		return errors.New("a reboot under a stranger's key was carried out")
	}
	status, err := d.status(ctx)
	if err != nil {
		return err
	}
	var refused *reconcile.OperationStatus
	for i := range status.Operations {
		if o := &status.Operations[i]; o.Target == d.nodes[0].Name && o.Phase == string(statefile.OperationRefused) {
			refused = o
		}
	}
	if refused == nil {
		return errors.New("the status doesn't show the stranger's reboot as refused")
	}
	d.say("the status says %s: %s", refused.FailureReason, refused.Message)
	reboots, err := d.accepted("Reboot")
	if err != nil {
		return err
	}
	if reboots != 1 {
		return fmt.Errorf("the nodes' journals show %d accepted reboots and not 1", reboots)
	}
	d.say("no node was asked for anything")
	return d.pull(ctx)
}

// bootOf gives the boot that a machine runs, as the status has it.
func (d *demo) bootOf(ctx context.Context, name string) (string, error) {
	status, err := d.status(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range status.Machines {
		if m.Name == name && m.BootID != "" {
			return m.BootID, nil
		}
	}
	return "", fmt.Errorf("the status shows no boot of %s", name)
}

// pull brings the checkout to where run-op brought the branch, and sees that run-op left it as it was.
func (d *demo) pull(ctx context.Context) error {
	if _, err := output(ctx, d.dir, "git", "-C", d.path("fleet"), "pull", "--quiet", "--ff-only", "origin", "main"); err != nil {
		return err
	}
	changed, err := output(ctx, d.dir, "git", "-C", d.path("fleet"), "status", "--short")
	if err != nil {
		return err
	}
	if text := strings.TrimSpace(string(changed)); text != "" {
		return fmt.Errorf("the checkout was touched: %s", text)
	}
	return nil
}
