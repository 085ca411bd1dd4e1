package reconcile

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/statefile"
)

// object reads an object of the store as it is.
func (l *lab) object(key string) []byte {
	l.t.Helper()
	object, err := l.store.Get(context.Background(), key, "")
	require.NoError(l.t, err)
	return object.Data
}

func (l *lab) put(key string, data []byte) {
	l.t.Helper()
	_, err := l.store.Put(context.Background(), key, data, statefile.If{})
	require.NoError(l.t, err)
}

// handle is the state as a person's command opens it.
func (l *lab) handle(writer string) *statefile.Cluster {
	l.t.Helper()
	material := l.fleet.bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	require.NoError(l.t, err)
	cluster, err := statefile.OpenCluster(l.store, statefile.Options{Name: "prod", Sealer: sealer, WriterID: writer})
	require.NoError(l.t, err)
	return cluster
}

func reasonIs(reason string) func(Report) bool {
	return func(r Report) bool { return len(r.Clusters) > 0 && r.Clusters[0].Ready.Reason == reason }
}

func TestNoStateOfThePastBringsAnOperationBack(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.78.31", 1, 1, 50))
	require.True(t, allReady(l.run(l.config("agent-1"), allReady)))
	yesterday := l.object("prod/state.json")
	l.push("today", "ichor-operation@prod", nodeBody("w-1", l.uuid("w-1"), "reboot"))
	reboots := 0
	config := l.config("agent-2")
	running := newTap(func(point string) bool { return point == "after Reboot w-1" })
	l.runUntilKilled(config, func(Report) bool { return false }, running.dies)
	midway := l.object("prod/state.json")
	require.Equal(t, statefile.OperationCompleted, l.phaseOf(l.run(l.config("agent-3"), inPhase("today", statefile.OperationCompleted)), "today"))
	reboots++
	require.Equal(t, reboots, l.accepted("Reboot")["w-1"])

	t.Run("yesterday's state is seen, and accepted it begins nothing that was begun", func(t *testing.T) {
		l.put("prod/state.json", yesterday)
		report := l.run(l.config("agent-4"), reasonIs("StateRolledBack"))
		require.True(t, reasonIs("StateRolledBack")(report), "%v", report.Problems())
		_, err := l.handle("person").Accept(context.Background(), "alice", "a test")
		require.NoError(t, err)
		report = l.run(l.config("agent-5"), inPhase("today", statefile.OperationRefused))
		op := operationNamed(report.Clusters[0].State, "today")
		require.Equal(t, "AlreadyRan", op.Refusal, "%s: %s", op.Phase, op.Message)
		require.Equal(t, reboots, l.accepted("Reboot")["w-1"])
	})
	t.Run("a state from the middle of an operation is paused by its acceptance", func(t *testing.T) {
		l.put("prod/state.json", midway)
		_, err := l.handle("person").Accept(context.Background(), "alice", "a test")
		require.NoError(t, err)
		report := l.run(l.config("agent-6"), inPhase("today", statefile.OperationPaused))
		op := operationNamed(report.Clusters[0].State, "today")
		require.Equal(t, statefile.OperationPaused, op.Phase)
		require.Contains(t, op.FailureReason, "the state was put back")
		require.Nil(t, report.Clusters[0].State.Lock)
		require.Equal(t, reboots, l.accepted("Reboot")["w-1"])
	})
	t.Run("a lost state skips what is there", func(t *testing.T) {
		require.NoError(t, l.store.Delete(context.Background(), "prod/state.json"))
		report := l.run(l.config("agent-7"), inPhase("today", statefile.OperationSkipped))
		require.Equal(t, statefile.OperationSkipped, l.phaseOf(report, "today"))
		require.Equal(t, statefile.OriginLost, report.Clusters[0].State.Origin)
		require.Equal(t, reboots, l.accepted("Reboot")["w-1"])
	})
	t.Run("and run by name all the same it is refused, since it ran", func(t *testing.T) {
		require.NoError(t, l.store.Delete(context.Background(), "prod/state.json"))
		config := l.config("agent-8")
		config.RunExisting = []string{"today"}
		report := l.run(config, inPhase("today", statefile.OperationRefused))
		require.Equal(t, "AlreadyRan", operationNamed(report.Clusters[0].State, "today").Refusal)
		require.Equal(t, reboots, l.accepted("Reboot")["w-1"])
	})
	t.Run("a file of the inbox is as good as one of Git", func(t *testing.T) {
		text := operationText("by-inbox", l.id(), l.clock.Now().Add(-time.Minute), time.Hour, nodeBody("w-1", l.uuid("w-1"), "reboot"))
		require.NoError(t, statefile.PutInbox(context.Background(), l.store, "prod", "by-inbox", []byte(text), l.alice.sign(text, "ichor-operation@prod")))
		require.NoError(t, statefile.PutInbox(context.Background(), l.store, "prod", "forged", []byte(strings.ReplaceAll(text, "by-inbox", "forged")),
			newSigner(t).sign(text, "ichor-operation@prod")))
		config := l.config("agent-9")
		config.Inbox = func(ctx context.Context, cluster string) ([]statefile.InboxFile, bool, error) {
			return statefile.ReadInbox(ctx, l.store, cluster)
		}
		report := l.run(config, func(r Report) bool {
			return inPhase("by-inbox", statefile.OperationCompleted)(r) && inPhase("forged", statefile.OperationRefused)(r)
		})
		require.Equal(t, statefile.OperationCompleted, l.phaseOf(report, "by-inbox"))
		require.Equal(t, "SignatureWrong", operationNamed(report.Clusters[0].State, "forged").Refusal)
		reboots++
		require.Equal(t, reboots, l.accepted("Reboot")["w-1"])
	})
	t.Run("two agents that both believe to hold the lease reboot it once", func(t *testing.T) {
		require.True(t, allReady(l.run(l.config("between"), allReady)))
		l.push("both", "ichor-operation@prod", nodeBody("w-1", l.uuid("w-1"), "reboot"))
		var group sync.WaitGroup
		for _, writer := range []string{"agent-10", "agent-11"} {
			config := l.config(writer)
			group.Go(func() {
				l.run(config, func(r Report) bool { return over(r, "both") || reasonIs("OtherWriter")(r) })
			})
		}
		group.Wait()
		report := l.run(l.config("agent-12"), inPhase("both", statefile.OperationCompleted))
		require.Equal(t, statefile.OperationCompleted, l.phaseOf(report, "both"), "%v", report.Problems())
		reboots++
		require.Equal(t, reboots, l.accepted("Reboot")["w-1"])
	})
	t.Run("who may sign can't be read for a while: nothing starts, and later it does", func(t *testing.T) {
		require.True(t, allReady(l.run(l.config("between-again"), allReady)))
		l.push("waits", "ichor-operation@prod", nodeBody("w-1", l.uuid("w-1"), "reboot"))
		config := l.config("agent-13")
		config.Signers = func() (*operation.AllowedSigners, error) { return nil, errors.New("allowed_signers:3: nonsense") }
		report := l.run(config, inPhase("waits", statefile.OperationRefused))
		op := operationNamed(report.Clusters[0].State, "waits")
		require.Equal(t, "SignersUnreadable", op.Refusal)
		require.Contains(t, op.Message, "allowed_signers:3: nonsense")
		report = l.run(l.config("agent-14"), inPhase("waits", statefile.OperationCompleted))
		require.Equal(t, statefile.OperationCompleted, l.phaseOf(report, "waits"))
	})
}

func (l *signedLab) phaseOf(r Report, name string) statefile.OperationPhase {
	l.t.Helper()
	for _, c := range r.Clusters {
		if op := operationNamed(c.State, name); op != nil {
			return op.Phase
		}
	}
	return ""
}
