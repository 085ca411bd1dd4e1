package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/statefile"
)

// TestAnAgentKilledAtEveryPointOfAnOperation kills each agent at the first point that none was killed at before, from the file in Git to
// the end of the reboot that it asks for: every write of the state, the object that is made once, and every call on a connection to a
// machine, before its effect and after it. A new agent goes on each time. Operations follow one another until one meets nothing new; in an
// ordinary run there are few, whose agents die at one point in three.
func TestAnAgentKilledAtEveryPointOfAnOperation(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.78.11", 1, 1, 50))
	require.True(t, allReady(l.run(l.config("bring-up"), allReady)))
	met := map[string]bool{}
	rounds, reboots := 0, 0
	dies := crashmatrix.Of(t, "reboot, and the cancelling of one", crashmatrix.Simulated).Once(met, 3, 1, "after state Intent reboot w-1", "after Reboot w-1")
	// An ordinary run has one that nobody can know the fate of, one that dies after its call, and one that meets what comes then.
	more := func(before int) bool {
		if crashmatrix.Full() {
			return len(met) > before
		}
		return reboots < 2
	}
	for before := -1; more(before); rounds++ {
		require.Less(t, rounds, 12, "it never ends: %v", met)
		before = len(met)
		name := fmt.Sprintf("reboot-%d", rounds)
		l.push(name, "ichor-operation@prod", nodeBody("w-1", l.uuid("w-1"), "reboot"))
		if l.crashAtNewPoints(name, dies) {
			reboots++
		}
		require.Equal(t, reboots, l.accepted("Reboot")["w-1"], "after %s", name)
	}
	require.Greater(t, reboots, 0)
	for _, point := range []string{"before state OperationAccepted", "after state OperationAccepted", "before begin reboot-", "after begin reboot-",
		"after state Intent reboot w-1", "before Reboot w-1", "after Reboot w-1", "before state Outcome reboot w-1", "after state OperationStep",
		"before state OperationCompleted", "after state OperationCompleted"} {
		found := false
		for at := range met {
			found = found || strings.Contains(at, strings.TrimPrefix(strings.TrimPrefix(point, "before "), "after ")) && strings.HasPrefix(at, strings.Fields(point)[0])
		}
		require.True(t, found, "%s was not met, but %v", point, met)
	}
	l.acceptedOnce()
}

// crashAtNewPoints runs agents, each of which dies at the first point that isn't in met yet, until the operation is over; true where it
// rebooted its machine. Where the agent died with the intent written and nothing sent, nobody can know that, and it pauses.
func (l *signedLab) crashAtNewPoints(name string, dies func(string) bool) bool {
	l.t.Helper()
	sent := true
	for n := 1; ; n++ {
		require.Less(l.t, n, 200, "it never ends")
		config := l.config(fmt.Sprintf("%s-agent-%d", name, n))
		config.Timing.Patience = 4 * ample // however busy the host
		turned := false
		done := func(r Report) bool {
			if sent {
				return over(r, name) && allReady(r)
			}
			if len(r.Clusters) == 0 {
				return false
			}
			if state := r.Clusters[0].State; state != nil && state.Intent == nil && !turned { // it counts as sent, and is waited for
				turned = true
				l.clock.ahead.Add(int64(config.Timing.Return + time.Minute))
			}
			return inPhase(name, statefile.OperationPaused)(r)
		}
		killed, at := l.runUntilKilled(config, done, anyName(dies, name))
		switch {
		case killed:
			l.t.Logf("agent %d of %s was killed %s", n, name, at)
			if at == "after state Intent reboot w-1" || at == "before Reboot w-1" {
				sent = false
				l.clock.ahead.Add(int64(config.Timing.Return + time.Minute))
			}
		case sent:
			return true
		default:
			l.cancel(name, dies)
			return false
		}
	}
}

// anyName takes the points of one operation for those of any.
func anyName(dies func(string) bool, name string) func(string) bool {
	return func(point string) bool { return dies(strings.ReplaceAll(point, name, "reboot-")) }
}

// cancel ends a paused operation, by agents that die as well.
func (l *signedLab) cancel(name string, dies func(string) bool) {
	l.t.Helper()
	report := l.run(l.config("cancels-"+name), inPhase(name, statefile.OperationPaused))
	op := operationNamed(report.Clusters[0].State, name)
	require.Equal(l.t, statefile.OperationPaused, op.Phase)
	require.Nil(l.t, report.Clusters[0].State.Lock)
	l.push("cancel-"+name, "ichor-operation@prod", fmt.Sprintf("  kind: cancel\n  cancel:\n    operation: %s\n    digest: %s\n", name, op.Digest))
	for n := 1; ; n++ {
		require.Less(l.t, n, 50, "it never ends")
		done := func(r Report) bool { return over(r, name) && over(r, "cancel-"+name) }
		killed, at := l.runUntilKilled(l.config(fmt.Sprintf("cancel-%s-agent-%d", name, n)), done, anyName(dies, name))
		if !killed {
			return
		}
		l.t.Logf("agent %d of the cancelling of %s was killed %s", n, name, at)
	}
}

// over says whether an operation has ended.
func over(r Report, name string) bool {
	for _, c := range r.Clusters {
		if op := operationNamed(c.State, name); op != nil && op.Phase.Over() {
			return true
		}
	}
	return false
}

// events are those of the audit, in their order.
func (l *lab) events() []statefile.Event {
	l.t.Helper()
	material := l.fleet.bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	require.NoError(l.t, err)
	bySequence := map[uint64]statefile.Event{}
	take := func(content []byte) {
		var e statefile.Event
		require.NoError(l.t, json.Unmarshal(content, &e))
		bySequence[e.Sequence] = e
	}
	var keys []string
	require.NoError(l.t, l.store.List(context.Background(), "prod/audit/0", "", func(info statefile.ObjectInfo) error {
		keys = append(keys, info.Key)
		return nil
	}))
	for _, key := range append(keys, "prod/state.json") {
		object, err := l.store.Get(context.Background(), key, "")
		require.NoError(l.t, err)
		record, err := statefile.DecodeRecord(sealer, key, object.Data)
		require.NoError(l.t, err)
		if key != "prod/state.json" {
			take(record.Content)
			continue
		}
		var state statefile.State
		require.NoError(l.t, json.Unmarshal(record.Content, &state))
		for _, waiting := range state.Audit.Pending {
			take(waiting.Content)
		}
	}
	var events []statefile.Event
	for _, sequence := range slices.Sorted(maps.Keys(bySequence)) {
		events = append(events, bySequence[sequence])
	}
	return events
}

// acceptedOnce is what every operation must end with: it was accepted, begun and ended once.
func (l *signedLab) acceptedOnce() {
	l.t.Helper()
	counts := map[string]map[string]int{}
	for _, e := range l.events() {
		if e.Operation != "" {
			if counts[e.Operation] == nil {
				counts[e.Operation] = map[string]int{}
			}
			counts[e.Operation][e.Action]++
		}
	}
	require.NotEmpty(l.t, counts)
	for digest, actions := range counts {
		require.Equal(l.t, 1, actions["OperationAccepted"], "%s: %v", digest, actions)
		require.Equal(l.t, 1, actions["OperationStarted"], "%s: %v", digest, actions)
		require.Equal(l.t, 1, actions["OperationCompleted"]+actions["OperationCancelled"], "%s: %v", digest, actions)
		// A process that died kept its call's outcome from being written: what became of it was looked for and resolved.
		require.LessOrEqual(l.t, actions["Intent"], max(actions["Outcome"]+1, actions["Resolved"]), "%s: %v", digest, actions)
	}
}
