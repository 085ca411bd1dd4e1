package reconcile

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

var histories = flag.Int("histories", 200, "how many random histories the search tries")

// TestNoHistoryBreaksTheInvariants drives decisions through random histories: machines lose power, lose their data, can't be read,
// agents die before or after a call, writers change, Git approves and withdraws. Whatever happens: a cluster is bootstrapped
// at most once, unless the only bootstrap provably had no effect; no act of Ichor takes etcd below its quorum; nothing is sent to a
// machine that couldn't be read, isn't approved, or is another one.
func TestNoHistoryBreaksTheInvariants(t *testing.T) {
	for seed := range *histories {
		if !t.Run(fmt.Sprintf("history %d", seed), func(t *testing.T) { searchOne(t, uint64(seed)) }) {
			return
		}
	}
}

func searchOne(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 7))
	m := newModel(1+random.IntN(4), random.IntN(3))
	counts := []int{1, 3, 5}
	d := newDrive(m, counts[random.IntN(3)])
	s := &search{t: t, random: random, model: m, drive: d}
	for range 150 {
		s.happen()
		s.pass()
		m.tick([]time.Duration{time.Second, 2 * time.Second, 20 * time.Second, 6 * time.Minute}[random.IntN(4)])
	}
	s.heal()
}

type search struct {
	t      *testing.T
	random *rand.Rand
	model  *model
	drive  *drive
	events []string
}

func (s *search) note(format string, args ...any) {
	event := fmt.Sprintf(format, args...)
	if len(s.events) == 0 || s.events[len(s.events)-1] != event {
		s.events = append(s.events, event)
	}
}

// happen lets at most one thing go wrong.
func (s *search) happen() {
	names := s.model.names()
	node := s.model.nodes[names[s.random.IntN(len(names))]]
	machine := s.drive.cluster.Machine(node.name)
	switch s.random.IntN(24) {
	case 0:
		node.up = false
		s.note("%s loses power", node.name)
	case 1, 2, 3:
		if !node.up {
			s.model.powerCycle(node)
			node.up = true
			s.note("%s has power again", node.name)
		}
	case 4:
		s.model.powerCycle(node)
		s.note("%s is power-cycled", node.name)
	case 5:
		node.unknown = !node.unknown
		s.note("%s can be read: %t", node.name, !node.unknown)
	case 6:
		if node.etcd == nil && node.stage != "maintenance" {
			node.service = "Failed"
			s.note("%s's etcd service fails", node.name)
		}
	case 7:
		s.takeOver()
	case 8:
		if machine != nil && machine.Spec.Approved && s.random.IntN(3) == 0 {
			machine.Spec.Approved = false
			s.note("%s is unapproved", node.name)
		} else if machine != nil {
			machine.Spec.Approved = true
		}
	case 9:
		s.drive.wanted = fmt.Sprintf("config-%d", s.random.IntN(5))
	case 11:
		s.loseBootstrap(node)
	case 10:
		s.drive.cluster.Object.Spec.ControlPlane.Count = []int{1, 3, 5}[s.random.IntN(3)]
	}
}

// loseBootstrap cuts a machine's power between its answer to the bootstrap and its first write.
func (s *search) loseBootstrap(node *modelNode) {
	intent := s.drive.state.Intent
	if intent == nil || intent.Action != string(ActBootstrap) || intent.Machine != node.name || node.etcd == nil || len(node.etcd.members) > 1 {
		return
	}
	node.etcd, node.member, s.model.etcds = nil, 0, nil
	s.model.bootUp(node)
	s.note("%s loses the etcd that it was about to write", node.name)
}

// takeOver lets a new writer find the state, its predecessor's last outcome perhaps not written.
func (s *search) takeOver() {
	s.drive.state = cloneState(s.drive.state)
	s.drive.state.Writer.Epoch++
	s.drive.state.Writer.Since = stamp(s.model.now)
	if s.drive.state.Intent != nil && s.random.IntN(2) == 0 {
		s.drive.state.Intent.Outcome = ""
	}
	s.note("a new writer takes over")
}

// pass makes one pass as an agent would, dying before or after the call now and then.
func (s *search) pass() {
	d, m := s.drive, s.model
	in := d.input()
	before := cloneState(in.State)
	plan := Decide(in)
	require.Equal(s.t, before, cloneState(in.State), "a decision changes nothing of its input")
	require.True(s.t, sameState(plan.Next, Decide(in).Next), "equal inputs give equal plans")
	d.state = plan.Next
	if len(plan.Actions) == 0 {
		return
	}
	a := plan.Actions[0]
	s.allowed(a, in)
	if err := d.check(a, in); err != nil {
		s.note("refused: %v", err)
		return
	}
	next := cloneState(d.state)
	begun(next, a, statefile.Intent{Action: string(a.Kind), Machine: a.Machine, UUID: a.UUID, BootID: a.Boot, Carrier: a.Via,
		Member: memberHex(a.Member), Digest: a.Digest, Facts: a.Facts, Attempt: a.Attempt, Writer: next.Writer, At: stamp(m.now)})
	d.state = next
	s.note("%s", a)
	if s.random.IntN(6) == 0 {
		s.takeOver()
		return // it died before the call
	}
	quorate := len(m.etcds) == 1 && m.quorum(m.etcds[0])
	outcome, err := m.apply(a)
	if err != nil {
		outcome = statefile.OutcomeUnknown
	}
	s.sane()
	require.True(s.t, !quorate || m.quorum(m.etcds[0]), "%s takes etcd's quorum: %v", a, s.events)
	if s.random.IntN(6) == 0 {
		s.takeOver() // it died after the call and before the outcome
		return
	}
	d.state.Intent.Outcome = outcome
}

// allowed holds an action against what was to be seen.
func (s *search) allowed(a Action, in Input) {
	machine := s.drive.cluster.Machine(a.Machine)
	require.NotNil(s.t, machine, "%s: %v", a, s.events)
	require.True(s.t, machine.Spec.Approved, "%s goes to a machine that isn't approved: %v", a, s.events)
	carrier := in.Seen[a.carrier()]
	require.NotEqual(s.t, talos.ModeUnknown, carrier.Mode, "%s goes to a machine that doesn't answer: %v", a, s.events)
	require.Equal(s.t, s.model.nodes[a.carrier()].uuid, a.UUID, "%s: %v", a, s.events)
	target := in.Seen[a.Machine]
	switch a.Kind {
	case ActBootstrap:
		for _, m := range s.drive.cluster.Machines {
			seen := in.Seen[m.Metadata.Name]
			require.NotEqual(s.t, talos.Yes, seen.Etcd.Data, "%s beside the data of %s: %v", a, m.Metadata.Name, s.events)
		}
		require.Equal(s.t, talos.No, target.Etcd.Data, "%s where the data isn't known to be absent: %v", a, s.events)
	case ActReset:
		require.Equal(s.t, talos.Yes, target.Etcd.Data, "%s wipes what isn't known: %v", a, s.events)
		for _, e := range s.model.etcds {
			for _, member := range e.members {
				if s.model.nodes[a.Machine].etcd == e && member.ID == s.model.nodes[a.Machine].member {
					require.True(s.t, member.Learner, "%s wipes a voter: %v", a, s.events)
				}
			}
		}
	case ActReboot:
		require.Equal(s.t, talos.No, target.Etcd.Data, "%s: %v", a, s.events)
	}
}

// sane holds the world against what must never be.
func (s *search) sane() {
	require.LessOrEqual(s.t, len(s.model.etcds), 1, "two etcd clusters: %v", s.events)
}

// heal lets everything work again and asks for what every history must come to: no intent that stands for ever, and where the
// cluster was bootstrapped, one etcd in which every wanted control plane is.
func (s *search) heal() {
	for _, node := range s.model.nodes {
		if !node.up {
			s.model.powerCycle(node)
			node.up = true
		}
		node.unknown = false
	}
	later := s.model.now.Add(time.Hour)
	for _, m := range s.drive.cluster.Machines {
		m.Spec.Approved = true
		m.Spec.ApprovalDecision = &schema.ApprovalDecision{At: later}
		later = later.Add(time.Minute)
	}
	s.drive.cluster.Object.Spec.ControlPlane.Count = 5
	// A rollout that stopped goes on when Git changes, and a machine that dropped a mending call is power-cycled by hand.
	s.drive.wanted = "config-last"
	for n := range 400 {
		s.pass()
		if n%100 == 99 {
			s.drive.wanted = fmt.Sprintf("config-last-%d", n)
		}
		if n%60 == 59 {
			for _, node := range s.model.nodes {
				s.model.powerCycle(node)
				s.model.tick(2 * time.Second)
			}
			if r := s.drive.state.Rollout; r != nil && r.Stopped != "" {
				s.drive.wanted = fmt.Sprintf("config-last-%d", n)
			}
		}
		s.model.tick(30 * time.Second)
		if s.drive.state.Ready.Status {
			break
		}
	}
	s.sane()
	require.True(s.t, s.drive.state.Ready.Status, "%+v\n%s", s.drive.state.Ready, strings.Join(s.events[max(0, len(s.events)-40):], "\n"))
}
