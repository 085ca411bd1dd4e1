package conformance_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// phase is what an expectation needs of the nodes. The suite takes its own machines from one to the next.
type phase int

const (
	// maintenance: a machine that waits for its first config.
	maintenance phase = iota
	// unplugged: the same, and somebody must push its power button or give it a config for good.
	unplugged
	// configured: control planes that have a config and no etcd yet.
	configured
	// bootstrapped: one healthy cluster of three control planes and a worker; nothing is changed.
	bootstrapped
	// changing: the same; configs and services are changed and changed back, nothing goes away.
	changing
	// disruptive: the same; nodes are rebooted, wiped and broken.
	disruptive
	// power: as disruptive, and somebody must push the power button or turn the clock.
	power
	// container: nodes on Talos's container platform.
	container
)

func (p phase) String() string {
	return [...]string{"maintenance", "maintenance, power", "configured", "bootstrapped", "changing", "disruptive", "power", "container"}[p]
}

// origin is how an expectation is known.
type origin string

const (
	fromSource origin = "from source"
	seen       origin = "seen on real nodes"
)

// expectation is one thing that a Talos node does.
type expectation struct {
	// id is the number of the behaviour, with a letter where it takes several expectations.
	id string
	// sentence says what a node does.
	sentence string
	// source is the file of Talos (or the section of its documentation) that says so.
	source string
	known  origin
	needs  phase
	check  func(*testing.T, *env)
}

// all are the expectations in the order in which they are run: each group leaves the machines as the next one needs them.
func all() []expectation {
	var list []expectation
	for _, group := range [][]expectation{
		maintenanceExpectations(), joiningExpectations(), routingExpectations(), accessExpectations(), readingExpectations(),
		etcdExpectations(), configExpectations(), serviceExpectations(), sequenceExpectations(), resetExpectations(),
		membershipExpectations(), renamedExpectations(), loneExpectations(), recoveryExpectations(), clockExpectations(), containerExpectations(),
	} {
		list = append(list, group...)
	}

	return list
}

func TestConformance(t *testing.T) {
	e := newEnv(t)

	for _, x := range all() {
		t.Run(x.id+" "+x.sentence, func(t *testing.T) {
			if reason := e.lacks(x.needs); reason != "" {
				t.Skip(reason)
			}

			e.reach(t, x.needs)
			x.check(t, e)
		})
	}
}

//nolint:gochecknoglobals // flags of a test binary are
var (
	update      = flag.Bool("update", false, "write docs/conformance.md")
	talosconfig = flag.String("talosconfig", "", "talosconfig of an admin of running nodes; none: simulated machines are started")
	nodes       = flag.String("nodes", "", "addresses of those nodes, comma-separated; control planes first or last, the suite finds out")
	destructive = flag.Bool("destructive", false, "also run what reboots, wipes and breaks the given nodes")
)

func TestDocumentListsEveryExpectation(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "conformance.md")
	want := document(all())

	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}

	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run: go test ./internal/talossim/conformance -run TestDocument -args -update")
}

func TestExpectationsAreNumberedOnce(t *testing.T) {
	ids := map[string]bool{}

	for _, x := range all() {
		require.False(t, ids[x.id], "%s is there twice", x.id)
		require.NotEmpty(t, x.source, x.id)
		require.NotContains(t, x.sentence, "|", x.id)

		ids[x.id] = true
	}

	for n := 1; n <= 50; n++ {
		covered := false
		for id := range ids {
			covered = covered || strings.TrimRight(id, "abcdefghijklmnop") == fmt.Sprint(n)
		}

		require.True(t, covered, "behaviour %d has no expectation", n)
	}
}
