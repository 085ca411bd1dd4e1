package reconcile

import (
	"fmt"
	"net/netip"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// drive is an agent over the model: decide, store, and do the first action, without any I/O.
type drive struct {
	model   *model
	cluster Cluster
	wanted  string
	state   *statefile.State
	log     []string
	listing *Listing
	overlay map[string]func(*Seen)
	// operations are the files of a story and what became of them; nil: there are none.
	operations *storyOperations
	// begun are the operations of a story without files whose audit/once object is there; nil: there are none.
	begun map[string]string
}

func newDrive(m *model, count int) *drive {
	return &drive{model: m, cluster: m.cluster(count), wanted: "config-1", state: &statefile.State{SchemaVersion: 1,
		Writer: statefile.Writer{ID: "agent-1", Epoch: 1, Since: m.now}}}
}

func (d *drive) input() Input {
	seen := d.model.see(d.wanted)
	for name, change := range d.overlay {
		one := seen[name]
		change(&one)
		seen[name] = one
	}
	in := Input{Cluster: d.cluster, State: d.state, Seen: seen, Now: d.model.now, Timing: DefaultTiming(),
		TrustedNetworks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Mark: "mark", Operations: d.known()}
	if d.operations != nil {
		in.NodeName = d.operations.own
	}
	return in
}

// known is what a pass knows of operations.
func (d *drive) known() *Operations {
	if d.begun != nil {
		judged := map[string]bool{}
		for _, op := range d.state.Operations {
			judged[op.Digest] = true
		}
		return &Operations{Begun: d.begun, Judged: judged, Nonce: "nonce", Problem: "nobody said who may sign"}
	}
	return d.operations.input(d)
}

// pass is one pass. It returns the action that was done, if one was.
func (d *drive) pass() (*Action, error) {
	in := d.input()
	plan := Decide(in)
	if plan.NeedKubernetes {
		in.Kubernetes = d.model.lookAtKubernetes(&in)
		plan = Decide(in)
	}
	if plan.NeedBackups {
		in.Backups = d.listing
		plan = Decide(in)
	}
	d.state = plan.Next
	if d.model.now.After(d.state.Latest) {
		d.state.Latest = stamp(d.model.now)
	}
	if d.begun != nil {
		for _, b := range plan.Begin {
			d.begun[b.Digest] = b.Nonce
		}
	}
	if d.operations.begin(plan) || len(plan.Actions) == 0 {
		return nil, nil
	}
	a := plan.Actions[0]
	if err := d.check(a, in); err != nil {
		return &a, err
	}
	if a.Kind.cordoning() {
		d.log = append(d.log, a.String())
		d.model.askKubernetes(a)
		return &a, nil
	}
	next := cloneState(d.state)
	begun(next, a, statefile.Intent{Nonce: fmt.Sprint(len(d.log)), Action: string(a.Kind), Machine: a.Machine, UUID: a.UUID, BootID: a.Boot,
		Carrier: a.Via, Member: memberHex(a.Member), Digest: a.Digest, Facts: a.Facts, Operation: a.Operation, Attempt: a.Attempt, Writer: next.Writer, At: stamp(d.model.now)})
	d.state = next
	d.log = append(d.log, a.String())
	outcome, err := d.model.apply(a)
	if err != nil {
		outcome = statefile.OutcomeUnknown
	}
	d.state.Intent.Outcome, d.state.Intent.Message = outcome, d.model.said
	return &a, nil
}

// check asks the gate's refusals about an action, as the gate does with what a connection shows.
func (d *drive) check(a Action, in Input) error {
	if a.Kind.cordoning() {
		return nil
	}
	carrier := d.model.nodes[a.carrier()]
	declared := carrier.uuid
	if m := d.cluster.Machine(a.carrier()); m != nil {
		declared = m.Spec.UUID
	}
	at := attempt{action: a, cluster: d.cluster.Object, bundleID: d.cluster.Object.Spec.ID, declared: declared, uuid: carrier.uuid,
		boot: a.Boot, facts: a.Facts, state: d.state, etcd: viewEtcd(&in), leaseHeld: true, mode: talos.ApplyNoReboot, hasDeadline: true,
		partitions: []wipe{{"EPHEMERAL", true}}, worker: d.model.nodes[a.Machine].role != schema.RoleControlPlane}
	return refuse(at)
}

func memberHex(id uint64) string {
	if id == 0 {
		return ""
	}
	return hexID(id)
}
