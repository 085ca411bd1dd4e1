package childprocess

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// outputLimit bounds what a child may say, in bytes.
const outputLimit = 4 << 20

// FailedError: the work came to a bad end that its order is to blame for, and which. Any other error of [Run] says that nobody knows.
type FailedError struct{ Problem string }

func (e *FailedError) Error() string { return e.Problem }

// Run starts a child, waits for it, and decodes its answer. The work's name is for texts too. Errors: [*FailedError]; any other is this
// machine's or ctx's.
func Run(ctx context.Context, name string, order, answer any) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program to start it for the %s: %w", name, err)
	}
	encoded, err := json.Marshal(order)
	if err != nil {
		return fmt.Errorf("encoding the order of the %s: %w", name, err)
	}
	cmd := exec.CommandContext(ctx, self)
	// Of the environment it gets nothing else: no credentials.
	cmd.Env = []string{workEnv + "=" + name, orderEnv + "=" + string(encoded), "GOMEMLIMIT=40MiB"}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("starting the %s: %w", name, err)
	}
	defer func() { _ = stdin.Close() }()
	out, failed := &limited{}, &limited{}
	cmd.Stdout, cmd.Stderr = out, failed
	if err := cmd.Run(); err != nil {
		return ended(ctx, name, err, failed)
	}
	var said said
	if err := json.Unmarshal(out.Bytes(), &said); err != nil {
		return fmt.Errorf("the process of the %s said nothing that can be read: %w", name, err)
	}
	if said.Problem != "" {
		if said.Machine && !strings.Contains(said.Problem, syscall.ENOSPC.Error()) {
			return fmt.Errorf("the %s could not be done: %s", name, said.Problem)
		}
		if strings.Contains(said.Problem, syscall.ENOSPC.Error()) {
			return fmt.Errorf("spool: %s; make room in the spool folder", said.Problem)
		}
		return &FailedError{said.Problem}
	}
	if err := json.Unmarshal(said.Answer, answer); err != nil {
		return fmt.Errorf("the answer of the %s can't be read: %w", name, err)
	}
	return nil
}

// ended says what the end of a child means: one that broke down over the file is the file's fault.
func ended(ctx context.Context, name string, err error, output *limited) error {
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the %s was broken off: %w", name, ctx.Err())
	case !errors.As(err, &exit):
		return fmt.Errorf("starting the %s: %w", name, err)
	case exit.ExitCode() < 0:
		return fmt.Errorf("the process of the %s was killed (%s): the machine may be out of memory", name, exit)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(output.String()), "\n")
	return &FailedError{fmt.Sprintf("the database can't be read: the process that opened it broke down (%s)", first)}
}

// limited keeps the beginning of what is written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := outputLimit - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
