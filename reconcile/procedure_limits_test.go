package reconcile

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// upWithKubernetes is a cluster of one control plane and two workers that runs, its control plane taking no pods.
func upWithKubernetes(t *testing.T) *drive {
	t.Helper()
	d := newDrive(newModel(1, 2), 1)
	no := false
	d.cluster.Object.Spec.ControlPlane.Schedulable = &no
	for range 200 {
		_, err := d.pass()
		require.NoError(t, err)
		d.model.tick(2 * time.Second)
	}
	require.True(t, d.state.Ready.Status, "%+v", d.state.Ready)
	d.model.withKubernetes("0")
	return d
}

// without passes for so many minutes, and calls of those kinds are never begun. It gives the operation.
func (d *drive) without(t *testing.T, minutes int, name string, kinds ...ActionKind) *statefile.OperationState {
	t.Helper()
	for range minutes {
		in := d.input()
		plan := Decide(in)
		if plan.NeedKubernetes {
			in.Kubernetes = d.model.lookAtKubernetes(&in)
			plan = Decide(in)
		}
		if len(plan.Actions) > 0 && slices.Contains(kinds, plan.Actions[0].Kind) {
			d.state = plan.Next
		} else {
			_, err := d.pass()
			require.NoError(t, err)
		}
		d.model.tick(time.Minute)
	}
	return operationNamed(d.state, name)
}

func TestAnOperationWhoseCallIsNeverBegunPausesAndItsMachineTakesPodsAgain(t *testing.T) {
	d := upWithKubernetes(t)
	d.operation(t, "reboot-w-1", "reboot", "w-1", map[string]string{})
	op := d.without(t, 15, "reboot-w-1", ActReboot)
	require.Equal(t, statefile.OperationRunning, op.Phase, op.Message)
	require.Equal(t, stepRebooted, op.Step)
	op = d.without(t, 20, "reboot-w-1", ActReboot)
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "the reboot of w-1 was decided again and again for 20m")
	require.Zero(t, op.Sent[string(ActReboot)])
	require.Nil(t, d.state.Lock)
	require.False(t, d.model.nodes["w-1"].kubernetes.Unschedulable)
}

func TestARebootedMachineThatCannotBeUncordonedPausesItsOperation(t *testing.T) {
	d := upWithKubernetes(t)
	d.operation(t, "reboot-w-1", "reboot", "w-1", map[string]string{})
	op := d.without(t, 40, "reboot-w-1", ActUncordon)
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "kubectl uncordon w-1")
	require.Equal(t, 1, op.Sent[string(ActReboot)])
	require.True(t, d.model.nodes["w-1"].kubernetes.Unschedulable)
	d.without(t, 5, "reboot-w-1")
	require.False(t, d.model.nodes["w-1"].kubernetes.Unschedulable, "it is lifted once that can be done")
}

func TestADrainOfANodeThatCannotBeCordonedEnds(t *testing.T) {
	d := upWithKubernetes(t)
	d.operation(t, "reboot-w-1", "reboot", "w-1", map[string]string{})
	op := d.without(t, 20, "reboot-w-1", ActCordon)
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "could not be kept from that")
}

func TestAMachineOfWhichNobodyKnowsWhetherItTakesPodsIsNotTheOneThatTakesThem(t *testing.T) {
	for what, change := range map[string]func(*Seen){
		"whether it is cordoned is unknown":    func(seen *Seen) { seen.Unschedulable = talos.Unknown },
		"whether its Node is Ready is unknown": func(seen *Seen) { seen.NodeReady = talos.Unknown },
		"it is cordoned":                       func(seen *Seen) { seen.Unschedulable = talos.Yes },
		"it gives no answer":                   func(seen *Seen) { *seen = Seen{} },
	} {
		t.Run(what, func(t *testing.T) {
			d := upWithKubernetes(t)
			d.overlay = map[string]func(*Seen){"w-2": change}
			d.operation(t, "reboot-w-1", "reboot", "w-1", map[string]string{})
			op := d.without(t, 10, "reboot-w-1")
			require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
			require.Contains(t, op.FailureReason, "no other machine is Ready and takes pods")
			require.False(t, d.model.nodes["w-1"].kubernetes.Unschedulable)
		})
	}
}

// oneAnswer answers every look with the same.
type oneAnswer struct {
	Nodes
	talos.Observation
}

func (o oneAnswer) Observe(context.Context, talos.Target) talos.Observation { return o.Observation }

type oneNode struct {
	Kubernetes
	node kube.Node
}

func (o oneNode) Nodes(context.Context) ([]kube.Node, error) { return []kube.Node{o.node}, nil }

func TestANodeIsNotDeletedWhileItsMachineRunsOrMayRun(t *testing.T) {
	const uuid = "4c4c4544-0042-3510-8052-b4c04f4e3732"
	for _, c := range []struct {
		what  string
		seen  talos.Observation
		fails string
	}{
		{"nobody answers", talos.Observation{}, ""},
		{"it is wiped", talos.Observation{Mode: talos.ModeMaintenance, UUID: uuid}, ""},
		{"another machine has its address", talos.Observation{Mode: talos.ModeConfigured, UUID: "11111111-2222-3333-4444-555555555555"}, ""},
		{"it runs", talos.Observation{Mode: talos.ModeConfigured, UUID: uuid}, "runs and is configured"},
		{"it runs, its UUID written otherwise", talos.Observation{Mode: talos.ModeConfigured, UUID: "4C4C4544-0042-3510-8052-B4C04F4E3732"}, "runs and is configured"},
		{"something runs and doesn't say what it is", talos.Observation{Mode: talos.ModeConfigured, Problem: "no UUID"}, "doesn't say which machine it is: no UUID"},
	} {
		t.Run(c.what, func(t *testing.T) {
			g := &Gate{Nodes: oneAnswer{Observation: c.seen}, Kubernetes: oneNode{node: kube.Node{Name: "w-1", UID: "uid"}}}
			_, a, err := g.lookAtNode(t.Context(), call{action: Action{Kind: ActDeleteNode, Machine: "w-1", Node: "w-1"}, declared: uuid}, attempt{})
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "uid", a.facts["node"])
		})
	}
}

func TestAForecastLiftsNoCordonOfOthersAndThoseOfItsOwn(t *testing.T) {
	d := upWithKubernetes(t)
	d.overlay = map[string]func(*Seen){"w-1": func(seen *Seen) { seen.Unschedulable = talos.Yes }, "w-2": func(seen *Seen) { seen.Unschedulable = talos.Yes }}
	d.state = cloneState(d.state)
	d.state.Cordons = []statefile.LeftCordon{{Machine: "w-2", Evacuation: statefile.Evacuation{Node: "w-2", NodeUID: "uid-w-2", Owner: cordonForRollout, Cordoned: true}}}
	steps := Foretell(d.input()).Steps
	require.Len(t, steps, 1)
	require.Equal(t, "uncordon w-2", steps[0].String())
}
