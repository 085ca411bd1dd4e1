package recovery

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/statefile"
)

// crashSample is at how many points of a scenario a process dies in an ordinary run.
const crashSample = 8

// scenario is a restore that processes die in.
type scenario struct {
	size           int
	gentle, cancel bool
	// own is the machine that the agent runs on, target the one that recovers.
	own, target string
}

func (c scenario) String() string {
	way, where := "full", "outside"
	if c.gentle {
		way = "gentle"
	}
	if c.cancel {
		way = "gentle, cancelled"
	}
	switch c.own {
	case "":
	case c.target:
		where = "on the target"
	default:
		where = "on another, which comes last"
	}
	return fmt.Sprintf("%s, %d control planes, agent %s", way, c.size, where)
}

func scenarios() []scenario {
	var all []scenario
	for _, size := range []int{1, 3, 5} {
		all = append(all, scenario{size: size, target: "cp-1"})
		if size == 1 {
			continue
		}
		all = append(all, scenario{size: size, target: "cp-2", own: "cp-1"},
			scenario{size: size, gentle: true, target: "cp-1"}, scenario{size: size, gentle: true, target: "cp-1", own: "cp-1"},
			scenario{size: size, gentle: true, cancel: true, target: "cp-1", own: "cp-1"})
	}
	return all
}

// stage makes the machines of a scenario. Where all are wiped, etcd has lost its majority: more members are gone than are there.
func (c scenario) stage(t *testing.T) *stage {
	t.Helper()
	var names, members []string
	for n := range c.size {
		names = append(names, fmt.Sprintf("cp-%d", n+1))
	}
	members = slices.Clone(names)
	if !c.gentle {
		for n := range c.size + 1 {
			members = append(members, fmt.Sprintf("gone-%d", n+1))
		}
	}
	w := newWorld(names...)
	w.runOld(members...)
	s := newStage(t, w, names...)
	s.target, s.own = c.target, c.own
	withKubernetes(s)
	if c.gentle {
		s.holder = names[len(names)-1]
	}
	return s
}

// play runs processes one after the other until the restore is done. The one-and-only death is at a point that is counted through all of
// them; an agent that runs on a control plane dies with it besides.
func (c scenario) play(t *testing.T, at int) (*stage, *Marker, int) {
	t.Helper()
	s := c.stage(t)
	seen := 0
	for n := range 8 {
		r, p, ctx := s.process(0)
		if at > seen {
			p.at = at - seen
		}
		s.world.died = func(name string) {
			if n == 0 && name == s.own { // the next agent runs wherever Kubernetes has put it
				p.end()
			}
		}
		err := s.begin(ctx, r)
		for err == nil && r.marker.Phase != PhaseDone {
			if err = ctx.Err(); err == nil {
				r.Cancel = c.cancel && (s.count("leave") >= c.size-1 || r.marker.Phase == PhaseCancelling)
				_, err = r.once(ctx)
				s.clock.Step(r.Timing.Look)
			}
		}
		p.mu.Lock()
		seen += p.points
		p.mu.Unlock()
		if err == nil {
			return s, r.marker, seen
		}
		require.Error(t, ctx.Err(), "it stopped by itself: %v: %s", err, s.said)
	}
	require.Fail(t, "it never ends", "%s", s.said)
	return nil, nil, 0
}

// require says what must be so wherever a process died.
func (c scenario) require(t *testing.T, s *stage, m *Marker) {
	t.Helper()
	if c.cancel {
		s.requireOld(m)
		require.LessOrEqual(t, s.count("leave"), c.size-1, s.accepted)
	} else {
		s.requireWhole(m)
		require.Equal(t, 1, s.count("recover"), s.accepted)
	}
	resets := map[string]int{}
	for _, one := range s.accepted {
		resets[one]++
	}
	begun := map[string]int{}
	for _, i := range m.Intents {
		if i.Action == ActReset && i.Outcome != statefile.OutcomeRefused {
			begun[i.Machine]++
		}
	}
	for name, b := range s.machines {
		require.LessOrEqual(t, resets["reset "+name], begun[name], "%s was wiped without an intent of its own: %v", name, s.accepted)
		require.LessOrEqual(t, resets["reset "+name], 1, "%s was wiped twice: %v", name, s.accepted)
		require.LessOrEqual(t, resets["reboot "+name], 1, "%s was rebooted twice: %v", name, s.accepted)
		if c.gentle && name != s.holder {
			require.Zero(t, resets["reset "+name], "%s lost its data: %v", name, s.accepted)
		}
		require.Zero(t, b.resetIn)
	}
}

// TestARestoreIsKilledAtEveryPoint kills its process before and after every write of the marker and every call to a machine or to Kubernetes,
// in each scenario. There is never a moment with two etcds that answer, nothing is wiped twice, and the next process brings it to its end.
func TestARestoreIsKilledAtEveryPoint(t *testing.T) {
	for _, c := range scenarios() {
		t.Run(c.String(), func(t *testing.T) {
			s, m, points := c.play(t, 0)
			c.require(t, s, m)
			require.Greater(t, points, 10*c.size)
			crashmatrix.Of(t, "restore, "+c.String(), crashmatrix.Modelled).Each(t, points, crashSample, 20261130, []int{0, points - 1}, func(t *testing.T, n int) {
				s, m, _ := c.play(t, n+1)
				c.require(t, s, m)
			})
		})
	}
}
