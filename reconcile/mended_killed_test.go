package reconcile

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// unasked is something that an agent does by itself.
type unasked struct {
	name   string
	script string
	// calls are how often at most the machines may take each call, wherever one agent died. What is not among them they never take.
	calls map[string]int
	// met are calls that an undisturbed run makes.
	met []string
	// ended says of the machines that they are as Git wants them.
	ended func(w *world) bool
	// once are the calls that are never made twice on one boot of a machine: where their agent died with the intent written and nothing sent, a
	// person must boot the machine.
	once []ActionKind
}

// all says whether all machines run and store a config.
func all(config string) func(w *world) bool {
	return func(w *world) bool {
		return !slices.ContainsFunc(w.model.names(), func(name string) bool {
			node := w.model.nodes[name]
			return node.active != config || node.persistent != config || node.tried
		})
	}
}

// joinedAll says whether all control planes are voters of one etcd, by the names that they have.
func joinedAll(w *world) bool {
	if len(w.model.etcds) != 1 {
		return false
	}
	etcd, joined := w.model.etcds[0], 0
	for _, name := range w.model.names() {
		node := w.model.nodes[name]
		if node.role == schema.RoleWorker {
			continue
		}
		joined++
		at := slices.IndexFunc(etcd.members, func(m talos.EtcdMember) bool { return m.ID == node.member })
		if node.etcd != etcd || at < 0 || etcd.members[at].Learner || etcd.members[at].Name != node.hostname {
			return false
		}
	}
	return len(etcd.members) == joined
}

// everyMending is all of that. A member that is no machine's is counted with the control plane that took it out.
func everyMending() []unasked {
	return []unasked{
		{name: "bring-up", script: "machines 3 1", ended: func(w *world) bool { return all("config-1")(w) && joinedAll(w) },
			met:   []string{"first-config cp-1", "first-config w-1", "bootstrap cp-1"},
			calls: map[string]int{"first-config cp-1": 1, "first-config cp-2": 1, "first-config cp-3": 1, "first-config w-1": 1, "bootstrap cp-1": 1}},
		{name: "changed config, tried and made to stay", script: "machines 3 1\nrun\ngit config config-2", ended: all("config-2"),
			met: []string{"config-try cp-1", "config-confirm cp-1", "config-try w-1", "config-confirm w-1"},
			calls: map[string]int{"config-try cp-1": 2, "config-try cp-2": 2, "config-try cp-3": 2, "config-try w-1": 2,
				"config-confirm cp-1": 2, "config-confirm cp-2": 2, "config-confirm cp-3": 2, "config-confirm w-1": 2}},
		{name: "changed config, stored for the next boot", script: "machines 1 1\nrun\nmachine w-1 reboot-because=machine.files\nmachine cp-1 active=config-2 persistent=config-2\ngit config config-2",
			ended: func(w *world) bool {
				return w.model.nodes["w-1"].persistent == "config-2" && w.model.nodes["w-1"].active == "config-1"
			},
			met: []string{"config-stage w-1"}, calls: map[string]int{"config-stage w-1": 2}},
		{name: "join mending: a learner that nobody promotes", script: "machines 3 0\nrun until=bootstrap\ntick 2s\nmachine cp-2 power=cycle\nrun", ended: joinedAll,
			met: []string{"remove-member cp-2", "reset-ephemeral cp-2"}, calls: map[string]int{"remove-member cp-2": 1, "reset-ephemeral cp-2": 1}, once: []ActionKind{ActReset}},
		{name: "join mending: a member that never started", script: "machines 3 0\nrun\nmachine cp-2 nameless=yes", ended: joinedAll,
			met: []string{"remove-member cp-1"}, calls: map[string]int{"remove-member cp-1": 1}},
		{name: "join mending: a former self under another name", script: "machines 3 0\nrun\nmachine cp-2 hostname=talos-x1y", ended: joinedAll,
			met: []string{"remove-member cp-1"}, calls: map[string]int{"remove-member cp-1": 1}},
		{name: "join mending: an etcd that gave up joining", script: "machines 3 0\nrun\nmachine cp-3 data=lost service=Failed", ended: joinedAll,
			met: []string{"reboot cp-3"}, calls: map[string]int{"reboot cp-3": 1}, once: []ActionKind{ActReboot}},
	}
}

// TestAnAgentKilledAnywhereInWhatItDoesByItself kills an agent at each write of the state and each call to a machine, before its effect and
// after it, while it rolls a change out or mends a join. The next agent ends it, and no machine takes twice what it may take once.
func TestAnAgentKilledAnywhereInWhatItDoesByItself(t *testing.T) {
	t.Parallel()
	m := newMortals(t)
	for _, u := range everyMending() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			var points []string
			w := u.begin(t, m)
			w.live(func(point string) bool { points = append(points, point); return false }, u.over(w))
			for _, call := range u.met {
				require.Equal(t, 1, w.model.accepted[call], "%s: %v", call, w.model.accepted)
			}
			var must []int
			for n, point := range points {
				if strings.HasPrefix(point, "after state Intent ") {
					must = append(must, n, n+1)
				}
			}
			crashmatrix.Of(t, u.name, crashmatrix.Modelled).Each(t, len(points), 16, 5, must, func(t *testing.T, n int) { u.kill(t, m, points[n], n) })
		})
	}
}

func (u unasked) begin(t *testing.T, m *mortals) *world {
	t.Helper()
	w := m.newWorld(t, u.script)
	w.configs = true
	return w
}

func (u unasked) over(w *world) func(*statefile.State) bool {
	return func(s *statefile.State) bool {
		return w.quiet(s) && (u.ended(w) && s.Rollout == nil && len(s.Joins) == 0 || u.stuck(s) != "")
	}
}

// stuck says why an agent goes no further by itself; empty while it does.
func (u unasked) stuck(s *statefile.State) string {
	if s.Rollout != nil && s.Rollout.Stopped != "" {
		return s.Rollout.Stopped
	}
	for _, m := range s.Machines {
		if m.Ready.Reason == "MendFailed" {
			return m.Ready.Message
		}
	}
	return ""
}

func (u unasked) kill(t *testing.T, m *mortals, point string, n int) {
	t.Helper()
	w := u.begin(t, m)
	met := -1
	died, at := w.live(func(string) bool { met++; return met == n }, u.over(w))
	require.True(t, died)
	require.Equal(t, point, at)
	unsent := false
	if intent := w.state().Intent; intent != nil && intent.Outcome == "" && w.model.accepted[intent.Action+" "+intent.Machine] == 0 {
		unsent = slices.Contains(u.once, ActionKind(intent.Action))
	}
	w.live(nil, u.over(w))
	stuck := u.stuck(w.state())
	if unsent {
		require.Contains(t, stuck, "it isn't asked twice on one boot: power-cycle it by hand")
		for name, m := range w.state().Machines {
			if m.Ready.Reason == "MendFailed" {
				w.model.powerCycle(w.model.nodes[name])
			}
		}
		w.live(nil, func(s *statefile.State) bool { return w.quiet(s) && u.ended(w) && len(s.Joins) == 0 })
	} else {
		require.Empty(t, stuck)
	}
	require.True(t, u.ended(w))
	for call, count := range w.model.accepted {
		require.LessOrEqual(t, count, u.calls[call], "%s: %v", call, w.model.accepted)
	}
}
