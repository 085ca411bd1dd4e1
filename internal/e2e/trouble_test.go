package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/statefile"
)

// trouble is something around an agent that goes wrong, and comes right again.
type trouble struct {
	name  string
	cause func(w *world)
	cure  func(w *world)
	// says is part of the one sentence about it.
	says string
	// shown is nil when the state shows it. Nil: the state can't be written meanwhile.
	shown func(*statefile.State) error
	// status is part of what `ichor status` prints, and code how that ends.
	status string
	code   int
	// once is how `ichor agent --once` ends.
	once int
	// sentences is how many there may be about it, 1 unless given: a full disk keeps the clone from following, and then also
	// the guard against a rolled-back state from remembering.
	sentences int
	// mounts says that it takes a file system of its own.
	mounts bool
	// starts says that it is there when the agent starts: a running agent doesn't ask for it again.
	starts bool
}

func troubles() []trouble {
	return []trouble{
		{
			name: "bad YAML is pushed",
			cause: func(w *world) {
				w.change(clusterDir+"/cluster.yaml", "controlPlane: {count: 1}", "controlPlane: {cuont: 1}")
				w.push()
			},
			cure: func(w *world) {
				w.change(clusterDir+"/cluster.yaml", "controlPlane: {cuont: 1}", "controlPlane: {count: 1}")
				w.push()
			},
			says: "cuont", shown: refused("cuont"), status: "cuont", once: 1,
		},
		{
			name:  "a machine can't be reached",
			cause: func(w *world) { w.farm.Node("w-1").Partition() },
			cure:  func(w *world) { w.farm.Node("w-1").Heal() },
			says:  "w-1 can't be reached at", shown: machineIs("w-1", "Unreachable"), status: "w-1 can't be reached at", code: 1, once: 1,
		},
		{
			name:  "the Git server can't be reached",
			cause: func(w *world) { w.git.Stop() },
			cure:  func(w *world) { w.git.Start() },
			says:  "can't be reached: the connection was refused", shown: gitProblem("the connection was refused"),
			status: "the connection was refused", once: 1,
		},
		{
			name:  "the Git token has expired",
			cause: func(w *world) { w.git.Authorize(gittest.Basic("x-access-token", w.token+"-next")) },
			cure:  func(w *world) { w.writeFile("token", w.token+"-next\n") },
			says:  "token", shown: gitProblem("token"), status: "token", once: 1,
		},
		{
			name:  "the bucket can't be reached",
			cause: func(w *world) { w.bucket.Stop() },
			cure:  func(w *world) { w.startBucket() },
			says:  "the store can't be reached", status: "the store can't be reached", code: 2, once: 2,
		},
		{
			name:  "the disk of the cache folder is full",
			cause: func(w *world) { w.fillCache("one"); w.setting("100000"); w.push() },
			cure:  func(w *world) { w.emptyCache("one") },
			says:  "is full", once: 1, sentences: 2, mounts: true,
		},
		{
			name:  "the age identity is another one",
			cause: func(w *world) { w.otherIdentity() },
			cure:  func(w *world) { w.writeFile("age.key", w.identity.String()+"\n") },
			says:  "it is sealed to other recipients", once: 1, starts: true,
		},
	}
}

func refused(text string) func(*statefile.State) error {
	return func(s *statefile.State) error {
		if s.Revision.Refused == nil || !strings.Contains(strings.Join(s.Revision.Refused.Findings, " "), text) {
			return fmt.Errorf("no revision is refused for %s: %+v", text, s.Revision)
		}
		return nil
	}
}

func machineIs(name, reason string) func(*statefile.State) error {
	return func(s *statefile.State) error {
		if m := s.Machines[name]; m == nil || m.Ready.Reason != reason {
			return fmt.Errorf("%s is not %s: %+v", name, reason, m)
		}
		return nil
	}
}

func gitProblem(text string) func(*statefile.State) error {
	return func(s *statefile.State) error {
		if !strings.Contains(s.Revision.Problem, text) {
			return fmt.Errorf("the state says of the repository %q", s.Revision.Problem)
		}
		return nil
	}
}

// smallCache puts a small file system of its own under the cache folder of an agent.
func (w *world) smallCache(name string) {
	w.t.Helper()
	folder := w.path("cache", name)
	require.NoError(w.t, os.MkdirAll(folder, 0o700))
	mountSmall(w.whole, folder)
}

func (w *world) fillCache(name string) {
	w.t.Helper()
	fill(w.t, w.path("cache", name, "filler"))
}

func (w *world) emptyCache(name string) {
	w.t.Helper()
	require.NoError(w.t, os.Remove(w.path("cache", name, "filler")))
}

// fill writes a file until its file system is full.
func fill(t *testing.T, name string) {
	t.Helper()
	file, err := os.Create(name)
	require.NoError(t, err)
	defer file.Close()
	block := make([]byte, 4096)
	for {
		if _, err = file.Write(block); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
}

func (w *world) otherIdentity() {
	w.t.Helper()
	other, err := age.GenerateX25519Identity()
	require.NoError(w.t, err)
	w.writeFile("age.key", other.String()+"\n")
}

// passes waits until the agent has looked around several times: at Git, and at the machines where it still does.
func (w *world) passes(a *agent, count int64) {
	w.t.Helper()
	polls, looks := w.git.Requests(), w.looks()
	await(w.t, "more passes of the agent", func(context.Context) error {
		if w.git.Requests()-polls >= 2*count || w.looks()-looks >= 10*int(count) {
			return nil
		}
		return fmt.Errorf("%d requests to Git and %d calls to machines", w.git.Requests()-polls, w.looks()-looks)
	})
	require.True(w.t, a.running(), "the agent ended: %s", tail(a.log.String()))
}

// looks counts the calls that machines got.
func (w *world) looks() int {
	count := 0
	for _, node := range w.farm.Nodes() {
		count += len(node.Journal())
	}
	return count
}

func TestEachTroubleIsSaidOnceAndGoesByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.80.1", 1, 1)
	w.smallCache("one")
	a := w.startAgent("one")
	w.awaitState("the cluster Ready", ready)
	for _, trouble := range troubles() {
		if trouble.mounts && !canMount() {
			t.Logf("left out, because no small file system may be mounted here: %s", trouble.name)
			continue
		}
		ok := t.Run(trouble.name, func(t *testing.T) {
			was := w.t
			w.t, a.t = t, t
			defer func() { w.t, a.t = was, was }()
			if trouble.starts {
				a.stop(syscall.SIGTERM)
				trouble.cause(w)
				a = w.startAgent("one")
			}
			from, before := len(a.lines()), w.changes()
			if !trouble.starts {
				trouble.cause(w)
			}
			a.awaitSaying(from, trouble.says)
			if trouble.shown != nil {
				w.awaitState("the state showing it", trouble.shown)
			}
			w.passes(a, 5)
			for text, count := range repeated(a.lines()[from:]) {
				assert.Equal(t, 1, count, "said more than once: %s", text)
			}
			assert.LessOrEqual(t, len(a.saying(from, trouble.says)), max(1, trouble.sentences), "sentences about it: %s", strings.Join(a.saying(from, trouble.says), "\n"))
			if trouble.status != "" {
				status := w.statusText()
				assert.Contains(t, status.out+status.err, trouble.status)
				assert.Equal(t, trouble.code, status.code, status.out+status.err)
			}
			assert.Equal(t, before, w.changes(), "calls that machines took meanwhile")
			trouble.cure(w)
			w.awaitState("the cluster Ready again", readyAt(w.repo.Tip("main")))
			w.awaitState("the state free of it", func(s *statefile.State) error {
				if s.Revision.Problem != "" || s.Revision.Refused != nil {
					return fmt.Errorf("%+v", s.Revision)
				}
				return nil
			})
		})
		require.True(t, ok)
	}
	_, code := a.stop(syscall.SIGTERM)
	require.Zero(t, code)
	t.Run("and ends one pass with its exit code", func(t *testing.T) { w.eachTroubleOnce(t) })
}

// eachTroubleOnce makes one pass in each trouble and one after it.
func (w *world) eachTroubleOnce(t *testing.T) {
	allIsWell := func(t *testing.T) {
		await(t, "a pass after which all is well", func(context.Context) error {
			if again := w.once("one"); again.code != 0 {
				return fmt.Errorf("exit code %d: %s", again.code, tail(again.err))
			}
			return nil
		})
	}
	allIsWell(t)
	for _, trouble := range troubles() {
		if trouble.mounts && !canMount() {
			continue
		}
		if trouble.name == "the Git token has expired" {
			w.writeFile("token", "git-expired\n")
			trouble.cause, trouble.cure = func(*world) {}, func(w *world) { w.writeFile("token", w.token+"-next\n") }
		}
		t.Run(trouble.name, func(t *testing.T) {
			w.t = t
			before := w.changes()
			trouble.cause(w)
			got := w.once("one")
			t.Logf("exit code %d\n%s%s", got.code, got.out, got.err)
			assert.Equal(t, trouble.once, got.code)
			assert.Contains(t, got.err, trouble.says)
			assert.Equal(t, before, w.changes(), "calls that machines took")
			trouble.cure(w)
			allIsWell(t)
		})
	}
}

// changes counts the mutating calls that machines took.
func (w *world) changes() int {
	count := 0
	for _, node := range w.farm.Nodes() {
		count += len(acceptedCalls(node))
	}
	return count
}

// repeated counts what lines of a log say, but for that a trouble is over: the one before may still be.
func repeated(lines []line) map[string]int {
	counts := map[string]int{}
	for _, one := range lines {
		if one["msg"] != "passes are whole again" {
			counts[one.text()]++
		}
	}
	return counts
}
