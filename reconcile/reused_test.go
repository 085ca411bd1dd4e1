package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// reused is a cluster of three control planes, with the host names that Talos makes up, in which cp-3 is another machine from now on. Git had no
// cp-3 in between only if so much was seen.
type reused struct {
	*drive
	first, second *modelNode
}

func reuse(t *testing.T, address string, between bool, spoil func(first *modelNode, memory *statefile.MachineState)) reused {
	m := newModel(3, 0)
	for name, node := range m.nodes {
		node.hostname = "talos-" + name
	}
	r := reused{drive: newDrive(m, 3), first: m.nodes["cp-3"]}
	r.follow(t, 100, false)
	require.True(t, r.state.Ready.Status, "%+v\n%v", r.state.Ready, r.log)
	spoil(r.first, r.state.Machines["cp-3"])
	delete(m.nodes, "cp-3")
	m.nodes["first"] = r.first
	if between {
		r.declare()
		r.follow(t, 20, false)
	}
	r.second = m.add("cp-3", address, schema.RoleControlPlane)
	r.second.hostname, r.second.uuid = "talos-second", "4c4c4544-0000-4000-8000-0000000000ff"
	r.log = nil
	r.declare()
	r.cluster.Machine("cp-3").Spec.ApprovalDecision.At = m.now
	return r
}

// declare has Git want all but the first machine.
func (r reused) declare() {
	delete(r.model.nodes, "first")
	r.cluster = r.model.cluster(3)
	r.model.nodes["first"] = r.first
}

// follow lets time pass; the etcd of the second machine begins to join only when it may.
func (r reused) follow(t *testing.T, passes int, joins bool) {
	t.Helper()
	for range passes {
		_, err := r.pass()
		require.NoError(t, err)
		if r.second != nil && !joins && r.second.service == "Preparing" {
			r.second.service = "Waiting"
		}
		r.model.tick(2 * time.Second)
	}
}

// members are those of the etcd members.
func (r reused) members() (names []string) {
	for _, member := range r.model.etcds[0].members {
		names = append(names, member.Name)
	}
	return names
}

// TestTheNextMachineOfANameBringsNothingOfTheFirst: a machine goes from Git, and another one gets its name.
func TestTheNextMachineOfANameBringsNothingOfTheFirst(t *testing.T) {
	runsOn := func(*modelNode, *statefile.MachineState) {}
	for _, between := range []bool{true, false} {
		for name, test := range map[string]struct {
			address string
			spoil   func(first *modelNode, memory *statefile.MachineState)
			// log is what is done, aside whether the first one is remembered.
			log   []string
			aside bool
		}{
			"the first one was not removed and is a healthy member": {"10.0.0.99", runsOn, []string{"first-config cp-3"}, true},
			"the first one is dead, and the next one has its address": {"10.0.0.13", func(first *modelNode, _ *statefile.MachineState) { first.up = false },
				[]string{"first-config cp-3", "remove-member cp-3 via cp-1 member 102"}, true},
			"the first one was removed": {"10.0.0.99", func(first *modelNode, memory *statefile.MachineState) {
				memory.Removed, memory.MemberID, first.up = true, "", false
				first.etcd.drop(first.member)
			}, []string{"first-config cp-3"}, false},
		} {
			t.Run(name, func(t *testing.T) {
				r := reuse(t, test.address, between, test.spoil)
				r.follow(t, 60, false)
				require.Len(t, r.log, len(test.log), "%v", r.log)
				for n, line := range test.log {
					require.True(t, strings.HasPrefix(r.log[n], line), "%v", r.log)
				}
				require.Equal(t, r.second.uuid, r.state.Machines["cp-3"].UUID)
				aside := r.state.Machines["cp-3~"+r.first.uuid]
				require.Equal(t, test.aside, aside != nil)
				if aside != nil {
					require.Equal(t, r.first.uuid, aside.UUID)
					require.Contains(t, aside.Ready.Message, "which was cp-3 (10.0.0.13) before another one got that name, was not removed")
				}
				r.second.service = "Preparing"
				r.follow(t, 60, true)
				require.Contains(t, r.members(), "talos-second", "%+v", r.state.Machines["cp-3"].Ready)
			})
		}
	}
}

// TestTheFirstMachineOfANameIsKnownAgainUnderItsOwn: what is remembered of it comes back with it.
func TestTheFirstMachineOfANameIsKnownAgainUnderItsOwn(t *testing.T) {
	r := reuse(t, "10.0.0.99", false, func(*modelNode, *statefile.MachineState) {})
	r.follow(t, 5, false)
	delete(r.model.nodes, "first")
	r.model.nodes["cp-4"], r.first.name = r.first, "cp-4"
	r.cluster = r.model.cluster(3)
	r.follow(t, 5, false)
	require.NotContains(t, r.state.Machines, "cp-3~"+r.first.uuid)
	require.True(t, r.state.Machines["cp-4"].Managed)
	require.Equal(t, hexID(r.first.member), r.state.Machines["cp-4"].MemberID)
	require.Equal(t, "Ready", r.state.Machines["cp-4"].Ready.Reason)
}

// TestWhenTheNextMachineOfANameWasApprovedIsAskedAnew: the time of the first one's approval is not the next one's.
func TestWhenTheNextMachineOfANameWasApprovedIsAskedAnew(t *testing.T) {
	m := newModel(3, 0)
	state := &statefile.State{Machines: map[string]*statefile.MachineState{"cp-3": {UUID: "another", Managed: true, FirstApproved: m.now.Add(-time.Hour)}}}
	c := m.cluster(3)
	c.Machine("cp-3").Spec.ApprovalDecision = nil
	Approve(state, c, m.now)
	require.Equal(t, m.now, state.Machines["cp-3"].FirstApproved)
	require.Equal(t, m.now.Add(-time.Hour), state.Machines["cp-3~another"].FirstApproved)
}
