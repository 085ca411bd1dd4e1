package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopGrace is how long a child may take to stop after SIGTERM, on a slow and busy machine too, before the demo calls it a failure.
const stopGrace = time.Minute

// process is a child that runs until it is stopped; what it prints goes to a file.
type process struct {
	name    string
	cmd     *exec.Cmd
	logPath string
	exited  chan struct{}
	err     error
}

// start runs a program in the background. Its output is kept in DIR/<name>.log, behind that of an earlier one of that name.
func start(dir, name, program string, args ...string) (*process, error) {
	p := &process{name: name, logPath: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// A group of its own: Ctrl-C at the terminal reaches the demo alone, which then stops its children in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// alive gives an error with the end of the log when the process has ended.
func (p *process) alive() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended by itself (%v); the end of %s:\n%s", p.name, p.err, p.logPath, p.tail(15))
	default:
		return nil
	}
}

// stop asks the process to end and waits for it. An exit code other than 0 is an error.
func (p *process) stop() error {
	if p.alive() != nil {
		return p.err
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.exited:
	case <-time.After(stopGrace):
		_ = p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("%s did not stop within %s of SIGTERM", p.name, stopGrace)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w; the end of its log:\n%s", p.name, p.err, p.tail(15))
	}
	return nil
}

func (p *process) tail(lines int) string {
	data, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return "    " + strings.Join(all[max(0, len(all)-lines):], "\n    ")
}

// output runs a program to its end and gives what it printed on standard output.
func output(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("exit code %d", exit.ExitCode())
		}
		return stdout.Bytes(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.Bytes(), nil
}

// waitFor asks until the answer is nil; what doesn't come within limit is an error with the last answer.
func waitFor(ctx context.Context, limit time.Duration, what string, alive func() error, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s was not seen within %s", what, limit))
	defer cancel()
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		answer := ask(ctx)
		if answer == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // one that the limit cut off says nothing
			last = answer
		}
		if err := alive(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%w: %w", context.Cause(ctx), last)
			}
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
