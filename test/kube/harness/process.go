package harness

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// serversVariable names the environment variable with the path of the built servers.
const serversVariable = "ICHOR_KUBE_SERVERS"

// patience only ends a test that hangs.
const patience = 5 * time.Minute

// Servers gives the path of the built servers. Without them the test is skipped: building Kubernetes takes minutes, and
// `make test-kube`, which `make test` runs, does it.
func Servers(t testing.TB) string {
	t.Helper()
	path := os.Getenv(serversVariable)
	if path == "" {
		t.Skipf("%s isn't set; run `make test-kube`", serversVariable)
	}
	return path
}

// process is one server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  string
	// stdin stays open for as long as this process lives; the servers end when it closes.
	stdin io.WriteCloser
}

// start starts a server, whose log goes to a file. The end of it is shown when the test fails.
func start(t testing.TB, dir, name string, args ...string) *process {
	t.Helper()
	p, err := launch(Servers(t), dir, name, args...)
	require.NoError(t, err)
	p.endWith(t)
	return p
}

// launch starts a server from the file at path; it is the caller's to end.
func launch(path, dir, name string, args ...string) (*process, error) {
	p := &process{done: make(chan struct{}), log: filepath.Join(dir, name+".log")}
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()                                             //nolint:errcheck // the process has its own
	p.cmd = exec.Command(path, append([]string{name}, args...)...) //nolint:gosec // the servers under test
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = file, file, dir
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	return p, nil
}

// endWith ends the process with the test.
func (p *process) endWith(t testing.TB) {
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the end of %s:\n%s", p.log, p.tail())
		}
	})
}

// kill ends the process as a power cut would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// tailLines and tailWidth, in bytes, bound what of a log is shown: some of the lines are pages long.
const tailLines, tailWidth = 15, 300

// tail gives the last lines of the log.
func (p *process) tail() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	for n, line := range lines {
		lines[n] = line[:min(len(line), tailWidth)]
	}
	return strings.Join(lines, "\n")
}

// Eventually waits until a condition holds, and fails the test with what last was in the way.
func Eventually(t testing.TB, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		require.True(t, time.Now().Before(deadline), "%s: %v", what, err)
		select {
		case <-tick.C:
		case <-t.Context().Done():
			require.NoError(t, t.Context().Err(), what)
		}
	}
}
