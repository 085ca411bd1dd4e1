package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/statefile"
)

// The part of the model that signed operations need: what takes a machine down, and Kubernetes.

// operate does what a signed operation asks of a machine, as Talos does it.
func (m *model) operate(a Action, node *modelNode) statefile.Outcome {
	if node.drops {
		return statefile.OutcomeOK // LOCKED
	}
	switch a.Kind {
	case ActReboot:
		m.bootUp(node)
	case ActShutdown:
		node.up = false
	case ActResetMachine:
		node.etcd, node.member, node.learner, node.active, node.persistent = nil, 0, false, "", ""
		node.stage, node.boot, node.installed, node.up = "maintenance", node.boot+1, "", !a.PowerOff
	case ActRestartService:
		if _, is := node.services[a.Service]; !is {
			return statefile.OutcomeUnknown
		}
		node.services[a.Service] = m.now
	case ActDefragment:
	case ActForfeit:
		for _, name := range m.names() {
			if other := m.nodes[name]; node.leader && other != node && other.etcd == node.etcd {
				node.leader, other.leader = false, true
			}
		}
	default:
		panic("the model knows no " + a.Kind)
	}
	return statefile.OutcomeOK
}

// withKubernetes gives every machine a Node with pods.
func (m *model) withKubernetes(pods string) {
	m.kubernetes = ""
	each := 2
	if pods != "" {
		_, _ = fmt.Sscan(pods, &each)
	}
	for _, name := range m.names() {
		node := m.nodes[name]
		node.pods = each
		node.kubernetes = &kube.Node{Name: node.hostname, UID: "uid-" + name, Ready: kube.Yes, SystemUUID: node.uuid}
	}
}

// beat is the heartbeats of the machines that run.
func (m *model) beat() {
	for _, node := range m.nodes {
		if node.kubernetes == nil {
			continue
		}
		node.kubernetes.Ready = kube.Unknown
		if node.up && node.stage == "running" {
			node.kubernetes.Ready, node.kubernetes.Heartbeat, node.kubernetes.BootID = kube.Yes, m.now, node.bootID()
		}
	}
}

func (m *model) lookAtKubernetes(in *Input) *KubernetesView {
	m.beat()
	view := &KubernetesView{Problem: m.kubernetes, Nodes: map[string]kube.Node{}, Drain: m.drain, DrainOf: m.drainOf}
	if m.kubernetes != "" {
		return view
	}
	var nodes []kube.Node
	for _, name := range m.names() {
		if node := m.nodes[name]; node.kubernetes != nil {
			nodes = append(nodes, *node.kubernetes)
		}
	}
	view.match(in, nodes)
	return view
}

func (m *model) askKubernetes(a Action) {
	node := m.nodes[a.Machine]
	if m.kubernetes != "" || node.kubernetes == nil || node.kubernetes.UID != a.NodeUID {
		return
	}
	k := node.kubernetes
	switch a.Kind {
	case ActCordon:
		if !k.Unschedulable {
			k.Unschedulable, k.CordonedBy = true, a.Owner
		}
	case ActUncordon:
		if k.CordonedBy == a.Owner {
			k.Unschedulable, k.CordonedBy = false, ""
		}
	case ActDeleteNode:
		node.kubernetes = nil
	case ActEvict:
		var left kube.Drain
		if node.pods > 0 {
			left.Left = []kube.Pod{{Namespace: "shop", Name: "web-0", Terminating: node.held == "", Why: node.held}}
		}
		if node.held == "" && node.pods > 0 {
			node.pods--
		}
		m.drain, m.drainOf = &left, a.Drain
	}
}

// operation is a signed operation that was accepted and verified.
func (d *drive) operation(t testing.TB, name, action, machine string, options map[string]string) {
	t.Helper()
	uuid := nameOr(options["uuid"], d.model.nodes[machine].uuid)
	kind, data := "node", ""
	switch action {
	case "adopt", "bootstrap":
		kind = action
		data = fmt.Sprintf("  kind: %s\n  %s:\n    machineRef:\n      name: %s\n      uuid: %s\n", kind, kind, machine, uuid)
	default:
		data = nodeBody(machine, uuid, action)
	}
	if confirm := options["confirm"]; kind == "bootstrap" {
		data += fmt.Sprintf("    confirm: %s\n", confirm)
		delete(options, "confirm")
	}
	for _, key := range []string{"service", "allowLeader", "confirm", "gone", "then"} {
		if value := options[key]; value != "" {
			data += fmt.Sprintf("    %s: %s\n", key, value)
		}
	}
	if kind != "node" {
		action = ""
	}
	at := stamp(d.model.now)
	text := operationText(name, d.cluster.Object.Spec.ID, at, time.Hour, data)
	d.state = cloneState(d.state)
	if d.begun == nil {
		d.begun = map[string]string{}
	}
	d.state.Operations = append(d.state.Operations, &statefile.OperationState{Name: name, Digest: operation.Digest([]byte(text)),
		Kind: kind, Action: action, Target: machine, Source: "git", File: "operations/" + name + ".yaml", Phase: statefile.OperationRunning, AcceptedAt: at, StartedAt: at,
		JudgedAt: at, JudgedEpoch: d.state.Writer.Epoch, OnceNonce: "nonce", ExpiresAt: at.Add(1 << 40),
		Data: text})
}

// resume does what a signed resume does to the operation that it names.
func (d *drive) resume(t testing.TB, name string) {
	t.Helper()
	d.state = cloneState(d.state)
	op := operationNamed(d.state, name)
	require.Equal(t, statefile.OperationPaused, op.Phase)
	goesOn(op, stamp(d.model.now))
}
