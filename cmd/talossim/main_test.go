package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/keptport"
	"ichor.maesh.dev/internal/talossim"
)

// program is talossim with its output; it runs until stop.
type program struct {
	t    *testing.T
	out  *buffer
	stop context.CancelFunc
	done chan error
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.b.String()
}

func start(t *testing.T, args ...string) *program {
	t.Helper()

	ctx, stop := context.WithCancel(context.Background())
	p := &program{t: t, out: &buffer{}, stop: stop, done: make(chan error, 1)}

	go func() { p.done <- execute(ctx, p.out, args...) }()

	t.Cleanup(stop)

	return p
}

func execute(ctx context.Context, out io.Writer, args ...string) error {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(out)

	return root.ExecuteContext(ctx)
}

// ctl runs one command and returns its output.
func ctl(t *testing.T, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	err := execute(t.Context(), &out, append([]string{"ctl"}, args...)...)

	return out.String(), err
}

func (p *program) shows(text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return strings.Contains(p.out.String(), text) }, 3*time.Minute, 10*time.Millisecond,
		"%q isn't shown", text)
}

// folder is a short one: a socket's path may be about 100 characters long.
func folder(t *testing.T) string {
	t.Helper()

	dir, err := os.MkdirTemp("", "sim")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })

	return dir
}

func TestUpShowsTheMachinesAndCtlReachesThem(t *testing.T) {
	dir := filepath.Join(folder(t), "farm")
	p := start(t, "up", "--dir", dir, "--control-planes", "1", "--workers", "1", "--first", "127.0.30.141", "--time-scale", "50")

	p.shows("Time scale 50")
	p.shows("cp-1 waits in maintenance mode; its certificate's fingerprint is ")

	specs, err := talossim.ReadNodes(dir)
	require.NoError(t, err)
	require.Len(t, specs, 2)
	require.Contains(t, p.out.String(), specs[0].UUID)

	t.Run("another one on the same folder is refused", func(t *testing.T) {
		require.ErrorContains(t, execute(t.Context(), io.Discard, "up", "--dir", dir), "another talossim runs on "+dir)
	})
	t.Run("a machine that isn't there is named with those that are", func(t *testing.T) {
		_, err := ctl(t, "--dir", dir, "power-off", "cp-9")
		require.EqualError(t, err, `there is no machine "cp-9"; there are cp-1, w-1`)
	})
	t.Run("a power cycle shows in a new fingerprint", func(t *testing.T) {
		before := strings.Count(p.out.String(), "cp-1 waits")
		_, err := ctl(t, "--dir", dir, "power-cycle", "cp-1")
		require.NoError(t, err)
		require.Eventually(t, func() bool { return strings.Count(p.out.String(), "cp-1 waits") > before }, 3*time.Minute, 10*time.Millisecond)
	})
	t.Run("a partitioned machine doesn't answer and a healed one does", func(t *testing.T) {
		_, err := ctl(t, "--dir", dir, "partition", "w-1")
		require.NoError(t, err)
		require.Empty(t, maintenanceFingerprint(t.Context(), "127.0.30.142:50000"))

		_, err = ctl(t, "--dir", dir, "heal", "w-1")
		require.NoError(t, err)
		require.Eventually(t, func() bool { return maintenanceFingerprint(t.Context(), "127.0.30.142:50000") != "" }, 3*time.Minute, 10*time.Millisecond)
	})
	t.Run("a machine that is off doesn't answer", func(t *testing.T) {
		_, err := ctl(t, "--dir", dir, "power-off", "w-1")
		require.NoError(t, err)
		require.Empty(t, maintenanceFingerprint(t.Context(), "127.0.30.142:50000"))

		_, err = ctl(t, "--dir", dir, "power-on", "w-1")
		require.NoError(t, err)
		require.Eventually(t, func() bool { return maintenanceFingerprint(t.Context(), "127.0.30.142:50000") != "" }, 3*time.Minute, 10*time.Millisecond)
	})

	p.stop()
	require.NoError(t, <-p.done)
	p.shows("Stopping")

	_, err = ctl(t, "--dir", dir, "power-on", "cp-1")
	require.ErrorContains(t, err, "start one with talossim up")

	conn, err := net.Dial("tcp", "127.0.30.141:50000")
	if err == nil {
		conn.Close() //nolint:errcheck // nothing depends on it
	}

	require.Error(t, err, "the address is free again")
}

func TestJournalPrintsWhatANodeGot(t *testing.T) {
	dir := folder(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "cp-1"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cp-1", "journal.jsonl"), []byte(
		`{"seq":1,"time":"2026-11-29T10:00:00Z","bootID":"0123456789","caller":{"maintenance":true},"method":"/machine.MachineService/Version","code":"OK"}
{"seq":2,"time":"2026-11-29T10:00:01Z","caller":{"organization":["os:admin"]},"method":"/machine.MachineService/Reset","request":{"reboot":true},"code":"OK","mutating":true,"accepted":true}
{"seq":3,"time":"2026-11-29T10:00:01Z","corrects":2,"method":"/machine.MachineService/Reset","code":"","caller":{},"note":"dropped\u001b[2J"}
`), 0o600))

	out, err := ctl(t, "--dir", dir, "journal", "cp-1")
	require.NoError(t, err)
	require.Contains(t, out, "maintenance")
	require.Contains(t, out, "Reset")
	require.Contains(t, out, `{"reboot":true}`)
	require.NotContains(t, out, "\x1b")

	out, err = ctl(t, "--dir", dir, "journal", "cp-1", "-o", "json", "--method", "Version")
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(out, "\n"))

	out, err = ctl(t, "--dir", dir, "journal", "cp-1", "-o", "json", "--accepted")
	require.NoError(t, err)
	require.Empty(t, out, "the reset was dropped")

	_, err = ctl(t, "--dir", dir, "journal", "cp-1", "-o", "xml")
	require.ErrorContains(t, err, "--output is text or json")
	_, err = ctl(t, "--dir", dir, "journal", "cp-2")
	require.ErrorContains(t, err, "has no machine cp-2 that was ever called")
	_, err = ctl(t, "--dir", dir, "journal", "../etc")
	require.ErrorContains(t, err, "is not a machine's name")
}

func TestCredentialsAreMadeOnceAndKept(t *testing.T) {
	dir := t.TempDir()

	first, err := credentials(dir)
	require.NoError(t, err)
	require.NotEmpty(t, first.SecretAccessKey)

	again, err := credentials(dir)
	require.NoError(t, err)
	require.Equal(t, first, again)

	info, err := os.Stat(filepath.Join(dir, credentialsFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	require.NoError(t, os.WriteFile(filepath.Join(dir, credentialsFile), []byte("{}"), 0o600))

	_, err = credentials(dir)
	require.ErrorContains(t, err, "delete it to have new keys made")
}

// TestMain lets a test start this program as a process of its own: the S3 server changes its working directory.
func TestMain(m *testing.M) {
	if args := os.Getenv("TALOSSIM_ARGS"); args != "" {
		os.Exit(run(strings.Split(args, " "), os.Stdout, os.Stderr))
	}

	os.Exit(m.Run())
}

func TestS3ServesAFolder(t *testing.T) {
	dir := folder(t)
	port, err := keptport.Keep()
	require.NoError(t, err)

	address := port.Address
	process := child(t, "s3 --dir "+dir+" --listen "+address+" --bucket prod")

	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + address + "/healthz")
		if err != nil {
			return false
		}

		defer resp.Body.Close() //nolint:errcheck // only its status counts

		return resp.StatusCode == http.StatusOK
	}, 3*time.Minute, 20*time.Millisecond, "%s", process)

	resp, err := http.Get("http://" + address + "/prod")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "nobody gets in without the keys")
	require.DirExists(t, filepath.Join(dir, "buckets", "prod"))
	require.Contains(t, process.String(), "S3 on http://"+address)
	runtime.KeepAlive(port)
}
