package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/reconcile"
)

// lockedLog is a log that can be read while it is written.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// webBench is a fleet of one machine that is off, and an agent that serves its page.
type webBench struct {
	*testing.T
	dir string
	log *lockedLog
	// stop ends the agent and gives its exit code.
	stop func() int
	url  string
}

const webHookSecret = "the secret of the webhook"

func newWebBench(t *testing.T, extra ...string) *webBench {
	t.Helper()
	b := &webBench{T: t, dir: t.TempDir(), log: &lockedLog{}}
	b.ichor(exitOK, "init", b.path("fleet"), "--cluster", "prod", "--endpoint", "https://127.0.64.1:6443", "--control-plane",
		"cp-1=127.0.64.1,4c4c4544-0039-5310-8052-b4c04f384c31", "--approve", "--age-identity-out", b.path("age.key"), "--install-disk", "/dev/sda")
	b.git("init", "-q", "-b", "main")
	b.commit("first")
	require.NoError(t, os.WriteFile(b.path("hook-secret"), []byte(webHookSecret), 0o600))

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	args := append([]string{"agent", "--repo", "file://" + b.path("fleet"), "--state", "file://" + b.path("state"), "--cache", b.path("cache"),
		"--age-identity", b.path("age.key"), "--interval", "1h", "--hook-secret-file", b.path("hook-secret")}, extra...)
	go func() { ended <- b.app(b.log).execute(ctx, args) }()
	b.stop = sync.OnceValue(func() int {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *webBench) app(out io.Writer) *app {
	return &app{terminal: &terminal{in: strings.NewReader(""), out: out, err: out}, clock: clock.RealClock{}, getenv: func(string) string { return "" }}
}

func (b *webBench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *webBench) ichor(code int, args ...string) string {
	b.Helper()
	var out lockedLog
	require.Equal(b, code, b.app(&out).execute(context.Background(), args), out.String())
	return out.String()
}

func (b *webBench) git(args ...string) {
	b.Helper()
	gitIn(b, b.path("fleet"), args...)
}

// gitIn runs git without the configuration of whoever runs the tests.
func gitIn(t testing.TB, folder string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func (b *webBench) commit(message string) string {
	b.Helper()
	b.git("add", "-A")
	b.git("commit", "-q", "--allow-empty", "-m", message)
	out, err := exec.Command("git", "-C", b.path("fleet"), "rev-parse", "HEAD").Output()
	require.NoError(b, err)
	return strings.TrimSpace(string(out))
}

func (b *webBench) eventually(is func() bool, what string) {
	b.Helper()
	require.Eventually(b, is, 5*time.Minute, 20*time.Millisecond, what)
}

// served waits for the page and gives its URL.
func (b *webBench) served() {
	b.Helper()
	url := regexp.MustCompile(`the status page is served" url=(\S+)`)
	b.eventually(func() bool {
		match := url.FindStringSubmatch(b.log.String())
		if match != nil {
			b.url = match[1]
		}
		return match != nil
	}, "the page is served")
}

func (b *webBench) get(path string) string {
	b.Helper()
	answer, err := http.Get(b.url + path)
	require.NoError(b, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(b, err)
	return string(text)
}

func (b *webBench) observed() string {
	b.Helper()
	var status reconcile.Status
	require.NoError(b, json.Unmarshal([]byte(b.get("api/v1/status")), &status))
	if len(status.Clusters) == 0 {
		return ""
	}
	return status.Clusters[0].Revision.Observed
}

func TestAnAgentServesWhatTheCommandPrints(t *testing.T) {
	if testing.Short() {
		t.Skip("an agent with its repository and state takes seconds")
	}
	b := newWebBench(t, "--listen", "127.0.0.1:0")
	b.served()
	b.eventually(func() bool { return strings.Contains(b.get("api/v1/status"), `"cp-1"`) }, "the machine is in the status")
	b.eventually(func() bool {
		return b.get("api/v1/status") == b.ichor(exitNo, "status", "--state", "file://"+b.path("state"), "--age-identity", b.path("age.key"), "--fleet",
			b.path("fleet"), "-o", "json")
	}, "both are the same while nothing changes")
	require.Equal(t, "ok\n", b.get("readyz"))
	require.Contains(t, b.get(""), "<h1>prod is not Ready</h1>")
	require.Contains(t, b.get("metrics"), "ichor_cluster_ready{cluster=\"prod\"} 0\n")
	require.Contains(t, b.get("metrics"), "ichor_lease_held{shard=\"0\"} 1\n")

	second := b.commit("second")
	require.NotEqual(t, second, b.observed(), "the next pull is an hour away")
	hook, err := http.NewRequest(http.MethodPost, b.url+"hooks/git", strings.NewReader("{}"))
	require.NoError(t, err)
	hook.Header.Set("X-Gitlab-Token", webHookSecret)
	answer, err := http.DefaultClient.Do(hook)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusAccepted, answer.StatusCode)
	b.eventually(func() bool { return b.observed() == second }, "the webhook makes the pull immediate")

	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(b.url, "http://"), "/"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n") // and nothing more
	require.NoError(t, err)
	began := time.Now()
	require.Equal(t, exitOK, b.stop(), "it does not wait for a client that says nothing")
	t.Logf("the agent stopped after %s", time.Since(began))
	_, err = http.Get(b.url)
	require.Error(t, err)
	require.NotContains(t, b.log.String(), webHookSecret)
}

func TestAnAgentWhoseUsualAddressIsTakenWorksWithoutAPage(t *testing.T) {
	if testing.Short() {
		t.Skip("an agent with its repository and state takes seconds")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:4246")
	if err == nil {
		defer taken.Close()
	}
	b := newWebBench(t)
	b.eventually(func() bool {
		return strings.Contains(b.log.String(), "no status page and no metrics")
	}, "it says so")
	b.eventually(func() bool {
		_, err := os.Stat(filepath.Join(b.path("state"), "prod", "state.json"))
		return err == nil
	}, "it works")
	require.Equal(t, exitOK, b.stop())
}

func TestAnAddressThatWasAskedForAndIsTakenKeepsTheAgentFromStarting(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	var out lockedLog
	dir := t.TempDir()
	a := &app{terminal: &terminal{in: strings.NewReader(""), out: &out, err: &out}, clock: clock.RealClock{}, getenv: func(string) string { return "" }}
	code := a.execute(t.Context(), []string{"agent", "--repo", "file:///nowhere", "--state", "file://" + dir, "--cache", dir, "--listen", taken.Addr().String()})
	require.Equal(t, exitCannot, code)
	require.Contains(t, out.String(), "--listen "+taken.Addr().String())
	require.Contains(t, out.String(), "address already in use")
}
