package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// transcript collects what is printed.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *transcript) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *transcript) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// result is what a command left.
type result struct {
	out, err string
	code     int
}

// ichor runs a command to its end.
func (w *world) ichor(args ...string) result {
	w.t.Helper()
	return w.ichorIn(w.dir, args...)
}

// ichorIn runs a command to its end in a folder.
func (w *world) ichorIn(dir string, args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, w.environment()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(w.t, err)
	}
	fmt.Fprintf(w.printed, "%s%s", &out, &errs)
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// once runs one pass of an agent of that name.
func (w *world) once(name string, extra ...string) result {
	w.t.Helper()
	return w.ichor(append(append(w.agentArguments(name), "--once"), extra...)...)
}

// statusText is `ichor status` as a person sees it.
func (w *world) statusText(extra ...string) result {
	w.t.Helper()
	return w.ichor(append(append([]string{"status"}, w.stateArguments()...), extra...)...)
}

// environment is free of the settings of whoever runs the tests, and has a folder of its own for temporary files.
func (w *world) environment() []string {
	env := []string{"TMPDIR=" + w.path("tmp")}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "TMPDIR=") && !strings.HasPrefix(variable, "ICHOR_") && !strings.HasPrefix(variable, "AWS_") {
			env = append(env, variable)
		}
	}
	return env
}

// agent is a running ichor agent.
type agent struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	log    *transcript
	exited chan struct{}
}

// startAgent starts an agent that runs until it is stopped, at the end of the test at the latest.
func (w *world) startAgent(name string, extra ...string) *agent {
	w.t.Helper()
	a := &agent{t: w.t, name: name, log: &transcript{}, exited: make(chan struct{})}
	a.cmd = exec.Command(program, append(w.agentArguments(name), extra...)...)
	a.cmd.Dir, a.cmd.Env = w.dir, w.environment()
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	// A group of its own: Ctrl-C on the tests doesn't reach it.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(w.t, a.cmd.Start())
	go func() {
		_ = a.cmd.Wait()
		close(a.exited)
	}()
	w.whole.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		<-a.exited
		fmt.Fprint(w.printed, a.log)
		if w.whole.Failed() || os.Getenv("E2E_LOG") != "" {
			w.whole.Logf("the log of agent %s:\n%s", name, a.log)
		}
	})
	return a
}

func (a *agent) signal(s syscall.Signal) {
	a.t.Helper()
	require.NoError(a.t, a.cmd.Process.Signal(s))
}

// running says whether the agent still runs.
func (a *agent) running() bool {
	select {
	case <-a.exited:
		return false
	default:
		return true
	}
}

// stop sends a signal, waits for the end, and gives how long that took and the exit code.
func (a *agent) stop(s syscall.Signal) (time.Duration, int) {
	a.t.Helper()
	began := time.Now()
	a.signal(s)
	select {
	case <-a.exited:
	case <-time.After(patience):
		require.Fail(a.t, "the agent did not stop", "%s after %s", a.name, s)
	}
	return time.Since(began), a.cmd.ProcessState.ExitCode()
}

// kill ends the agent at once.
func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	<-a.exited
}

// line is one record of an agent's log.
type line map[string]any

// text is what the line says, without its time.
func (l line) text() string {
	kept := line{}
	for key, value := range l {
		if key != "time" {
			kept[key] = value
		}
	}
	data, err := json.Marshal(kept)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// lines are the records of the log so far.
func (a *agent) lines() []line {
	var list []line
	for _, text := range strings.Split(a.log.String(), "\n") {
		var one line
		if json.Unmarshal([]byte(text), &one) == nil {
			list = append(list, one)
		}
	}
	return list
}

// saying are the lines from a position on that hold a text.
func (a *agent) saying(from int, text string) []string {
	var list []string
	for _, one := range a.lines()[from:] {
		if said := one.text(); strings.Contains(said, text) {
			list = append(list, said)
		}
	}
	return list
}

// awaitSaying waits until the log says something from a position on.
func (a *agent) awaitSaying(from int, text string) {
	a.t.Helper()
	await(a.t, fmt.Sprintf("%q in the log of agent %s", text, a.name), func(context.Context) error {
		if !a.running() {
			return fmt.Errorf("the agent ended: %s", tail(a.log.String()))
		}
		if len(a.saying(from, text)) == 0 {
			return fmt.Errorf("the log ends with: %s", tail(a.log.String()))
		}
		return nil
	})
}

func tail(text string) string {
	list := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(list[max(0, len(list)-3):], "\n")
}
