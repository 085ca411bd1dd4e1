package s3gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"ichor.maesh.dev/internal/keptport"
)

// childEnv carries the options to a child as JSON.
const childEnv = "ICHOR_S3GATEWAY_CHILD"

// startTimeout bounds how long a child may take until it answers.
const startTimeout = 3 * time.Minute

// RunIfChild serves and ends the process if it was started by [StartChild]; else it returns at once. A TestMain calls it first.
func RunIfChild() {
	encoded := os.Getenv(childEnv)
	if encoded == "" {
		return
	}
	os.Exit(runChild(encoded))
}

func runChild(encoded string) int {
	var opts Options
	if err := json.Unmarshal([]byte(encoded), &opts); err != nil {
		fmt.Fprintln(os.Stderr, "the S3 server's options don't parse:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The parent holds the other end of stdin: when it dies, however, this ends too.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := Serve(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Child is a server in a process of its own.
type Child struct {
	// Endpoint is its URL.
	Endpoint string
	Options  Options

	port  *keptport.Port // nil when the address was given
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   *logBuffer
	done  chan struct{}
}

// StartChild starts this program again as an S3 server and waits until it answers. An empty Listen takes a free port of
// 127.0.0.1 and keeps it for [Child.Restart]. The child ends when the context does, when Stop is called, and when this process ends.
func StartChild(ctx context.Context, opts Options) (*Child, error) {
	if opts.Listen != "" {
		return startChild(ctx, opts, nil)
	}
	port, err := keptport.Keep()
	if err != nil {
		return nil, fmt.Errorf("finding a port for the S3 server: %w", err)
	}
	opts.Listen = port.Address
	return startChild(ctx, opts, port)
}

// Restart starts a child that was stopped again, at the same address and over the same folder.
func (c *Child) Restart(ctx context.Context) (*Child, error) {
	return startChild(ctx, c.Options, c.port)
}

func startChild(ctx context.Context, opts Options, port *keptport.Port) (*Child, error) {
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("finding the S3 server's folder: %w", err)
	}
	opts.Dir = dir
	encoded, err := json.Marshal(opts)
	if err != nil {
		return nil, fmt.Errorf("encoding the S3 server's options: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program to start it as an S3 server: %w", err)
	}
	child := &Child{Endpoint: "http://" + opts.Listen, Options: opts, port: port, log: &logBuffer{}, done: make(chan struct{})}
	if opts.CertFile != "" {
		child.Endpoint = "https://" + opts.Listen
	}
	child.cmd = exec.CommandContext(ctx, self)
	child.cmd.Env = append(os.Environ(), childEnv+"="+string(encoded))
	child.cmd.Stdout, child.cmd.Stderr = child.log, child.log
	if child.stdin, err = child.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("starting the S3 server: %w", err)
	}
	if err := child.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the S3 server: %w", err)
	}
	go func() {
		_ = child.cmd.Wait()
		close(child.done)
	}()
	if err := child.waitReady(ctx); err != nil {
		child.Stop()
		return nil, err
	}
	return child, nil
}

// Stop ends the child at once.
func (c *Child) Stop() {
	_ = c.stdin.Close()
	_ = c.cmd.Process.Kill()
	<-c.done
}

// Pid is the child's process ID.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

func (c *Child) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if c.ready(ctx) {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("the S3 server ended before it answered: %s", c.log)
		case <-ctx.Done():
			return fmt.Errorf("the S3 server did not answer at %s: %w: %s", c.Endpoint, ctx.Err(), c.log)
		case <-ticker.C:
		}
	}
}

// ready says whether the health check answers. Over TLS with a certificate that isn't trusted here, a connection is enough.
func (c *Child) ready(ctx context.Context) bool {
	if c.Options.CertFile != "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.Options.Listen)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Endpoint+HealthPath, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode == http.StatusOK
}

// logBuffer keeps the end of what a child prints.
type logBuffer struct {
	mu   sync.Mutex
	data []byte
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if over := len(b.data) - 8<<10; over > 0 {
		b.data = b.data[over:]
	}
	return len(p), nil
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
