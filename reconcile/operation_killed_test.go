package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/statefile"
)

// killed is one operation whose agents are killed.
type killed struct {
	name string
	// script makes the machines, in the words of the transcripts; body is the operation, over a world that prepare made ready.
	script  string
	prepare func(*world)
	body    func(*world) string
	// meanwhile is what people do while it runs.
	meanwhile func(*world)
	// calls are those that the machines, and Kubernetes, must have taken once at the end of an undisturbed run.
	calls []string
	// pauses are the calls that the operation isn't sure of where its agent died with the intent written and the call not sent, and
	// unsure those of which it isn't sure either where they were taken and the answer is lost. It pauses then, and never asks by itself.
	pauses, unsure []ActionKind
	// again says that a resume may ask once more; else it is cancelled.
	again bool
}

func aboutNode(machine, action string, more ...string) func(*world) string {
	return func(w *world) string {
		body := nodeBody(machine, w.model.nodes[machine].uuid, action)
		for _, line := range more {
			body += "    " + line + "\n"
		}
		return body
	}
}

func aboutMachine(kind, machine, more string) func(*world) string {
	return func(w *world) string {
		return fmt.Sprintf("  kind: %s\n  %s:\n    machineRef:\n      name: %s\n      uuid: %s\n%s", kind, kind, machine, w.model.nodes[machine].uuid, more)
	}
}

const (
	threeMachines = "machines 3 1\nrun\nkubernetes pods=2\n"
	ledByFirst    = "machines 3 1\nrun\nmachine cp-1 leader=yes\n"
	lostPast      = "machines 3 1\nrun until=bootstrap\nlose-state\nmachine cp-1 data=lost\nrun\n"
	beforeEtcd    = "machines 3 0\nrun until=first-config\nrun until=first-config\nrun until=first-config\ngit machine cp-1 pause=wait\ntick 2s\ntick 20s\npass\ngit machine cp-1 resume=yes\n"
	takenByOther  = "machines 1 1\nrun\nmachine w-1 owner=another\nmachine w-1 active=theirs persistent=theirs\nrun\n"
)

func everyOperation() []killed {
	return []killed{
		{name: "reboot", script: threeMachines, body: aboutNode("w-1", "reboot"), calls: []string{"reboot w-1"}, pauses: []ActionKind{ActReboot}},
		{name: "reboot of a control plane", script: threeMachines, body: aboutNode("cp-2", "reboot"), calls: []string{"reboot cp-2"}, pauses: []ActionKind{ActReboot}},
		{name: "shutdown", script: threeMachines, body: aboutNode("w-1", "shutdown"), meanwhile: powerOn("w-1"), calls: []string{"shutdown w-1"},
			pauses: []ActionKind{ActShutdown}},
		{name: "remove of a worker", script: threeMachines, body: aboutNode("w-1", "remove", "confirm: w-1"), calls: []string{"reset-machine w-1", "delete-node w-1"}},
		{name: "remove of a control plane", script: "machines 4 0\nrun\nkubernetes pods=2\ncount 3", body: aboutNode("cp-4", "remove", "confirm: cp-4"),
			calls: []string{"remove-member cp-4", "reset-machine cp-4", "delete-node cp-4"}},
		{name: "remove of a control plane before the bootstrap", script: beforeEtcd + "kubernetes pods=2\ncount 1", body: aboutNode("cp-3", "remove", "confirm: cp-3"),
			calls: []string{"bootstrap cp-1", "remove-member cp-3", "reset-machine cp-3", "delete-node cp-3"}},
		{name: "remove of one that is gone before the bootstrap", script: beforeEtcd + "machine cp-3 power=off", body: aboutNode("cp-3", "remove", "confirm: cp-3", "gone: true")},
		{name: "restart-service", script: threeMachines, body: aboutNode("w-1", "restart-service", "service: kubelet"), calls: []string{"restart-service w-1"},
			pauses: []ActionKind{ActRestartService}, again: true},
		{name: "etcd-defrag", script: ledByFirst, body: aboutNode("cp-2", "etcd-defrag"), calls: []string{"defragment cp-2"},
			pauses: []ActionKind{ActDefragment}, unsure: []ActionKind{ActDefragment}, again: true},
		{name: "etcd-forfeit-leadership", script: ledByFirst, body: aboutNode("cp-1", "etcd-forfeit-leadership"), calls: []string{"forfeit-leadership cp-1"}},
		{name: "adopt", script: takenByOther, body: aboutMachine("adopt", "w-1", "")},
		{name: "bootstrap", script: lostPast, body: aboutMachine("bootstrap", "cp-1", "    confirm: prod\n"), calls: []string{"bootstrap cp-1"}},
		{name: "etcd-backup", script: "machines 1 0\nrun\ngit backup hourly", body: func(*world) string {
			return "  kind: etcd-backup\n  etcdBackup:\n    backupRef:\n      name: hourly\n"
		}, again: true},
		{name: "resume", script: threeMachines + "machine w-1 drops=yes", prepare: dropsAReboot, body: func(w *world) string {
			op := operationNamed(w.state(), "reboot-w-1")
			return fmt.Sprintf("  kind: resume\n  resume:\n    operation: %s\n    digest: %s\n    pause: %d\n", op.Name, op.Digest, op.Pause)
		}, calls: []string{}},
	}
}

func powerOn(name string) func(*world) {
	return func(w *world) {
		if op := operationNamed(w.state(), "asked"); op != nil && op.Phase == statefile.OperationShutDown && !w.model.nodes[name].up {
			w.model.bootUp(w.model.nodes[name])
		}
	}
}

// dropsAReboot leaves a reboot paused that its machine answered with OK and dropped; somebody boots the machine then.
func dropsAReboot(w *world) {
	w.sign("reboot-w-1", aboutNode("w-1", "reboot")(w))
	w.live(nil, func(s *statefile.State) bool {
		op := operationNamed(s, "reboot-w-1")
		return op != nil && op.Phase == statefile.OperationPaused && w.quiet(s)
	})
	w.model.nodes["w-1"].drops = false
	w.model.bootUp(w.model.nodes["w-1"])
	w.model.tick(aTurn)
	clear(w.model.accepted)
}

// begin makes the world of an operation, up to its file in Git.
func (k killed) begin(t *testing.T, m *mortals) *world {
	t.Helper()
	w := m.newWorld(t, k.script)
	if k.prepare != nil {
		k.prepare(w)
	}
	w.sign("asked", k.body(w))
	return w
}

// settled says whether all operations have come to an end or a pause, and nothing is left behind.
func (k killed) settled(w *world) func(*statefile.State) bool {
	return func(s *statefile.State) bool {
		if k.meanwhile != nil {
			k.meanwhile(w)
		}
		if len(s.Operations) < len(w.files) || !w.quiet(s) {
			return false
		}
		return !slices.ContainsFunc(s.Operations, func(op *statefile.OperationState) bool {
			return !op.Phase.Over() && op.Phase != statefile.OperationPaused
		})
	}
}

// TestAnAgentKilledAnywhereInAnyOperation kills an agent at each write of the state, at the object that is made once, and at each call to a
// machine or to Kubernetes, before its effect and after it; the next agent ends it. The points are those of a run that nobody disturbs; an
// ordinary run takes a sample of them. Then two agents are killed, at points drawn by lot.
func TestAnAgentKilledAnywhereInAnyOperation(t *testing.T) {
	t.Parallel()
	m := newMortals(t)
	for _, k := range everyOperation() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			points := k.undisturbed(t, m)
			count := crashmatrix.Of(t, k.name, crashmatrix.Modelled)
			var must []int
			for n, point := range points {
				if strings.HasPrefix(point, "after state Intent ") {
					must = append(must, n, n+1)
				}
			}
			count.Each(t, len(points), 16, 5, must, func(t *testing.T, n int) { k.kill(t, m, []int{n}) })
			random, pairs := count.Random(5), 4
			if crashmatrix.Full() {
				pairs = 25
			}
			count.Killed(0, 2*pairs)
			for range pairs {
				k.kill(t, m, []int{random.IntN(len(points)), random.IntN(len(points))})
			}
		})
	}
}

// undisturbed gives the points that a run meets which nobody disturbs.
func (k killed) undisturbed(t *testing.T, m *mortals) []string {
	t.Helper()
	w := k.begin(t, m)
	var points []string
	w.live(func(point string) bool { points = append(points, point); return false }, k.settled(w))
	k.completed(t, w)
	for _, call := range k.calls {
		require.Equal(t, 1, w.model.accepted[call], "%s: %v", call, w.model.accepted)
	}
	for _, must := range []string{"before begin asked", "after begin asked", "after state OperationAccepted", "OperationCompleted"} {
		require.Contains(t, strings.Join(points, "\n"), must)
	}
	return points
}

// kill lets one agent after another die at its point of that number, and the last one end it.
func (k killed) kill(t *testing.T, m *mortals, deaths []int) {
	t.Helper()
	w := k.begin(t, m)
	paused, where := false, ""
	for _, death := range deaths {
		n := -1
		died, at := w.live(func(string) bool { n++; return n == death }, k.settled(w))
		if died {
			where += at + "; "
			paused = paused || k.doubts(w)
		}
	}
	w.live(nil, k.settled(w))
	op := operationNamed(w.state(), "asked")
	if !paused {
		require.Equal(t, statefile.OperationCompleted, op.Phase, "killed %s: %s", where, op.Message)
	} else {
		require.Equal(t, statefile.OperationPaused, op.Phase, "killed %s: %s", where, op.Message)
		require.NotEmpty(t, op.FailureReason, "killed %s", where)
		k.goOn(t, w, op)
	}
	k.completed(t, w)
	if t.Failed() {
		t.Fatalf("killed %s", where)
	}
}

// doubts says whether the agent that just died left something of which nobody can tell whether it was done.
func (k killed) doubts(w *world) bool {
	s := w.state()
	if k.name == "etcd-backup" {
		b := s.Backups["hourly"]
		return b != nil && b.Request != nil && !b.Request.Started.IsZero() && b.Request.Done.IsZero()
	}
	if s.Intent == nil || s.Intent.Outcome != "" {
		return false
	}
	kind := ActionKind(s.Intent.Action)
	if w.model.accepted[s.Intent.Action+" "+s.Intent.Machine] == 0 {
		return slices.Contains(k.pauses, kind)
	}
	return slices.Contains(k.unsure, kind)
}

// goOn is what a person does about a pause.
func (k killed) goOn(t *testing.T, w *world, op *statefile.OperationState) {
	t.Helper()
	if !k.again {
		w.sign("away-with-it", fmt.Sprintf("  kind: cancel\n  cancel:\n    operation: %s\n    digest: %s\n", op.Name, op.Digest))
	} else {
		w.sign("go-on", fmt.Sprintf("  kind: resume\n  resume:\n    operation: %s\n    digest: %s\n    pause: %d\n", op.Name, op.Digest, op.Pause))
	}
	w.live(nil, k.settled(w))
}

// completed is what each run ends with.
func (k killed) completed(t *testing.T, w *world) {
	t.Helper()
	state := w.state()
	resumed := 0
	for _, op := range state.Operations {
		if op.Name == "go-on" {
			resumed = 1
		}
		require.True(t, op.Phase == statefile.OperationCompleted || op.Phase == statefile.OperationCancelled && operationNamed(state, "away-with-it") != nil,
			"%s is %s: %s", op.Name, op.Phase, op.Message)
	}
	for call, count := range w.model.accepted {
		kind := ActionKind(strings.Fields(call)[0])
		switch {
		case kind.cordoning(): // is made again as often as need be
		case slices.Contains(k.unsure, kind):
			require.LessOrEqual(t, count, 1+resumed, call)
		default:
			require.Equal(t, 1, count, call)
		}
	}
	require.LessOrEqual(t, w.snapshots, 1+resumed)
	require.Empty(t, w.cordoned())
	require.Nil(t, state.Lock)
	require.Nil(t, state.Intent)
	keys := 0
	require.NoError(t, w.store.List(t.Context(), "prod/audit/once/", "", func(statefile.ObjectInfo) error { keys++; return nil }))
	require.Equal(t, len(w.files), keys, "one object for each operation that was begun")
	(&signedLab{lab: &lab{t: t, store: w.store, fleet: &fleetOnFarm{bundle: w.bundle}}}).acceptedOnce()
}

// rolledReboot is a worker on which a stored change waits for a boot.
const rolledReboot = threeMachines + `machine w-1 reboot-because=machine.files
	machine cp-1 active=config-2 persistent=config-2
	machine cp-2 active=config-2 persistent=config-2
	machine cp-3 active=config-2 persistent=config-2
	machine w-1 persistent=config-2
	git config config-2`

// TestAnAgentKilledAnywhereInARolledReboot kills an agent at each point of a reboot that Ichor decides on by itself, for a changed config.
func TestAnAgentKilledAnywhereInARolledReboot(t *testing.T) {
	t.Parallel()
	m := newMortals(t)
	over := func(w *world) func(*statefile.State) bool {
		return func(s *statefile.State) bool {
			ended := s.Rollout == nil && w.model.nodes["w-1"].active == "config-2"
			return w.quiet(s) && (ended || s.Rollout != nil && s.Rollout.Stopped != "")
		}
	}
	w := m.newWorld(t, rolledReboot)
	var points []string
	w.live(func(point string) bool { points = append(points, point); return false }, over(w))
	require.Nil(t, w.state().Rollout)
	require.Subset(t, points, []string{"after Cordon w-1", "after state Intent reboot w-1", "after Reboot w-1", "after Uncordon w-1"})
	crashmatrix.Of(t, "reboot for a changed config", crashmatrix.Modelled).Each(t, len(points), 24, 5, nil, func(t *testing.T, n int) {
		w := m.newWorld(t, rolledReboot)
		n0 := -1
		died, at := w.live(func(string) bool { n0++; return n0 == n }, over(w))
		require.True(t, died)
		require.Equal(t, points[n], at)
		s := w.state()
		unsent := s.Intent != nil && s.Intent.Outcome == "" && w.model.accepted["reboot w-1"] == 0
		w.live(nil, over(w))
		if unsent {
			require.Contains(t, w.state().Rollout.Stopped, "it is not asked twice", "killed %s", at)
			require.Zero(t, w.model.accepted["reboot w-1"], "killed %s", at)
			w.model.bootUp(w.model.nodes["w-1"])
			w.live(nil, func(s *statefile.State) bool { return s.Rollout == nil })
			return
		}
		require.Nil(t, w.state().Rollout, "killed %s", at)
		require.Equal(t, 1, w.model.accepted["reboot w-1"], "killed %s", at)
	})
}
