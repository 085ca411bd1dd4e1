package web

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
	testclock "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

const (
	token  = "0123456789abcdef-token"
	secret = "It's a Secret to Everybody"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// told is an agent that reports what the test says.
type told struct {
	mu     sync.Mutex
	report reconcile.Report
	pokes  atomic.Int64
}

func (a *told) Report() reconcile.Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.report
}

func (a *told) Poke() { a.pokes.Add(1) }

// transcript is a log that can be read while it is written.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// bench is a server with an agent and a store.
type bench struct {
	*Server
	t     testing.TB
	agent *told
	store statefile.Store
	clock *testclock.FakeClock
	log   *transcript
	dir   string
}

// newBench makes a server that listens on loopback, or as change says.
func newBench(t testing.TB, change func(*Config)) *bench {
	t.Helper()
	b := &bench{t: t, agent: &told{report: working(prod())}, clock: testclock.NewFakeClock(noon), log: &transcript{}, dir: t.TempDir()}
	var err error
	b.store, err = statefile.OpenFolder(filepath.Join(b.dir, "state"), statefile.FolderOptions{Agent: true})
	require.NoError(t, err)
	scrubber := scrub.New()
	config := Config{Address: "127.0.0.1:0", Version: "v1.2.3", Clock: b.clock, Scrubber: scrubber,
		Log: slog.New(scrubber.Handler(slog.NewTextHandler(b.log, nil)))}
	if change != nil {
		change(&config)
	}
	b.Server, err = Listen(config)
	require.NoError(t, err)
	b.Attach(b.agent, b.store, func() gitsource.Stats {
		return gitsource.Stats{Polls: 7, Fetches: 3, Clones: 1, LastSuccess: noon.Add(-20 * time.Second)}
	})
	t.Cleanup(func() {
		b.Close()
		_ = b.store.Close()
	})
	return b
}

func writeFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// ask has the handler answer a request as if it had come in at the address that is listened on.
func (b *bench) ask(method, target string, change func(*http.Request)) *httptest.ResponseRecorder {
	b.t.Helper()
	r := httptest.NewRequest(method, "http://localhost"+target, nil)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(b.listener.Addr())))
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	b.http.Handler.ServeHTTP(w, r)
	return w
}

func (b *bench) get(target string) *httptest.ResponseRecorder {
	b.t.Helper()
	return b.ask(http.MethodGet, target, nil)
}

// serve runs the server until the test ends.
func (b *bench) serve() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(b.t, <-ended)
	})
	b.t.Cleanup(stop)
	return stop
}

// working is the report of an agent that holds the one lease and works for these.
func working(clusters ...reconcile.ClusterReport) reconcile.Report {
	lease := statefile.LeaseStatus{Held: true, Holder: "a3f1", Token: 4}
	for n := range clusters {
		clusters[n].Lease = lease
	}
	return reconcile.Report{Newest: &gitsource.Revision{Commit: "7d1e5ca0c0ffee", Subject: "More workers", Author: "Alice"},
		Leases: []statefile.LeaseStatus{lease}, Clusters: clusters}
}

func ready(name string) statefile.Condition {
	return statefile.Condition{Type: "Ready", Status: true, Reason: "Ready", Message: name + " runs what Git wants", Since: noon.Add(-time.Hour)}
}

// prod is a cluster of three control planes and a worker that is down.
func prod() reconcile.ClusterReport {
	s := &statefile.State{SchemaVersion: 1, Cluster: statefile.ClusterIdentity{Name: "prod", ID: "1f3a9c0d2b4e6f78"},
		Revision: statefile.RevisionState{Observed: "7d1e5ca0c0ffee", Applied: "7d1e5ca0c0ffee"},
		Ready:    statefile.Condition{Type: "Ready", Reason: "MachinesNotReady", Message: "3 of 4 machines are Ready; not: w-1"},
		Machines: map[string]*statefile.MachineState{}}
	for n := range 3 {
		name := fmt.Sprintf("cp-%d", n+1)
		s.Machines[name] = &statefile.MachineState{Role: "controlplane", Address: fmt.Sprintf("10.0.0.1%d", n+1), TalosVersion: "v1.13.6",
			Ready: ready(name), LastReconciled: noon.Add(-time.Hour)}
	}
	s.Machines["w-1"] = &statefile.MachineState{Role: "worker", Address: "10.0.0.21",
		Ready: statefile.Condition{Type: "Ready", Reason: "Unreachable", Message: "w-1 does not answer on 10.0.0.21:50000"}}
	s.Backups = map[string]*statefile.BackupState{
		"hourly": {Ready: statefile.Condition{Status: true, Reason: "Ready", Message: "the newest snapshot is of 11:00"}, LastAttempt: noon.Add(-time.Hour),
			LastSuccess: noon.Add(-time.Hour), LastDuration: "12.5s", Failures: 3,
			Drill: &statefile.BackupDrill{Snapshot: "etcd-20261130T040000Z.snapshot.age", At: noon.Add(-8 * time.Hour), Passed: true, Keys: 1204, Revision: 88000},
			Snapshots: []statefile.BackupSnapshot{
				{Name: "etcd-20261130T110000Z.snapshot.age", Time: noon.Add(-time.Hour), Size: 48 << 20, Revision: 90210},
				{Name: "etcd-20261130T040000Z.snapshot.age", Time: noon.Add(-8 * time.Hour), Size: 47 << 20, Revision: 88000, Drill: "passed"}}},
		"offsite": {Ready: statefile.Condition{Reason: "StoreFailed", Message: "the bucket offsite refuses to be written: access denied"}, Failures: 7,
			LastError: "access denied", Drill: &statefile.BackupDrill{At: noon.Add(-50 * time.Hour), Problem: "the snapshot is cut"}},
	}
	return reconcile.ClusterReport{Name: "prod", Ready: s.Ready, State: s,
		Passes:   reconcile.PassCount{Count: 12, Spent: 6 * time.Second, LastWhole: noon.Add(-3 * time.Second)},
		Compared: map[string]time.Time{"cp-1": noon.Add(-3 * time.Second)}}
}

func bearer(value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+value) }
}

func host(value string) func(*http.Request) {
	return func(r *http.Request) { r.Host = value }
}

// everything is each path that needs a permission.
var everything = []string{"/", "/clusters/prod", "/style.css", "/icon.svg", "/api/v1/status", "/api/v1/agent", "/api/v1/clusters/prod",
	"/api/v1/clusters/prod/machines/cp-1", "/metrics", "/nowhere", "/api/nowhere"}

// requireHarmless fails when a page holds anything but text, tables and links within this server.
func requireHarmless(t testing.TB, text string) {
	t.Helper()
	document, err := html.Parse(strings.NewReader(text))
	require.NoError(t, err)
	may := map[string]bool{}
	for name := range strings.FieldsSeq("html head meta title link body header main section footer h1 h2 h3 p a span time code bdi div dl dt dd ul ol li " +
		"table thead tbody tr th td") {
		may[name] = true
	}
	for node := range document.Descendants() {
		if node.Type == html.ElementNode {
			require.True(t, may[node.Data], "<%s> stands on the page", node.Data)
		}
		for _, attribute := range node.Attr {
			require.False(t, strings.HasPrefix(attribute.Key, "on") || attribute.Key == "style" || attribute.Key == "src", attribute.Key)
			if attribute.Key == "href" {
				require.Regexp(t, `^([?]|/([^/]|$))`, attribute.Val, "a link leaves this server")
			}
		}
	}
	for _, r := range text {
		require.False(t, r < ' ' && r != '\n' || r == '\u202e' || r == 0x7f, "%U stands on the page", r)
	}
}
