package reconcile

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// signedLab is a lab whose agents know a signer.
type signedLab struct {
	*lab
	alice *signer
	clock aheadClock
}

// aheadClock is the time, which a test may turn on.
type aheadClock struct {
	clock.RealClock
	ahead *atomic.Int64
}

func (c aheadClock) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }

func (c aheadClock) Since(then time.Time) time.Duration { return c.Now().Sub(then) }

func newSignedLab(l *lab) *signedLab {
	return &signedLab{lab: l, alice: newSigner(l.t), clock: aheadClock{ahead: &atomic.Int64{}}}
}

func (l *signedLab) config(writer string) Config {
	config := l.lab.config(writer)
	signers := signersOf(l.t, l.alice.line("alice", `namespaces="ichor-operation@prod,ichor-override@prod"`))
	config.Clock, config.Clocks = l.clock, turnedTimes{statefile.SystemClocks(), l.clock.ahead}
	config.Signers = func() (*operation.AllowedSigners, error) { return signers, nil }
	return config
}

func (l *signedLab) id() string { return schema.ClusterID(l.fleet.bundle.ClusterID()) }

// push puts a signed operation into the repository.
func (l *signedLab) push(name, namespace, body string) {
	text := operationText(name, l.id(), l.clock.Now().Add(-time.Minute), time.Hour, body)
	l.fleet.write("operations/"+name+".yaml", text)
	l.fleet.write("operations/"+name+".yaml.sig", string(l.alice.sign(text, namespace)))
	l.source.push(l.fleet.files)
}

func (l *signedLab) uuid(name string) string {
	for _, node := range l.farm.Nodes() {
		if node.Name() == name {
			return node.UUID()
		}
	}
	l.t.Fatalf("no machine %s", name)
	return ""
}

// phase waits until an operation is in a phase.
func inPhase(name string, phase statefile.OperationPhase) func(Report) bool {
	return func(r Report) bool {
		for _, c := range r.Clusters {
			if op := operationNamed(c.State, name); op != nil && op.Phase == phase {
				return true
			}
		}
		return false
	}
}

func TestASignedFileInGitRebootsAMachineOnce(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.78.1", 1, 1, 50))
	l.watchPromises()
	require.True(t, allReady(l.run(l.config("agent-1"), allReady)))
	l.push("reboot-w1", "ichor-operation@prod", nodeBody("w-1", l.uuid("w-1"), "reboot"))
	report := l.run(l.config("agent-2"), inPhase("reboot-w1", statefile.OperationCompleted))
	op := operationNamed(report.Clusters[0].State, "reboot-w1")
	require.NotNil(t, op)
	require.Equal(t, statefile.OperationCompleted, op.Phase, op.Message)
	require.Equal(t, map[string]int{"w-1": 1}, l.accepted("Reboot"))
	require.Nil(t, report.Clusters[0].State.Lock)
	require.Contains(t, op.Signer, "alice")
}
