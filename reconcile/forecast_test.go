package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// foretold are the calls of a forecast, one a line.
func foretold(f Forecast) []string {
	var calls []string
	for _, step := range f.Steps {
		if step.Action != nil {
			calls = append(calls, step.String())
		}
	}
	return calls
}

// reasons are what is said of each machine and of the cluster.
func reasons(s *statefile.State) map[string]string {
	found := map[string]string{"": s.Ready.Reason}
	for name, m := range s.Machines {
		found[name] = m.Ready.Reason
	}
	return found
}

// TestAForecastIsWhatTheAgentThenDoes foretells from one look at the model of the transcripts, lets an agent run on that model, and
// compares each call, in its order, and what is said of each machine in the end.
func TestAForecastIsWhatTheAgentThenDoes(t *testing.T) {
	for _, c := range []struct {
		name                   string
		controlPlanes, workers int
		fresh                  bool // the machines wait in maintenance mode
		change                 func(s *story)
		calls                  int
		reason, of             string // what is said of a machine in the end, of the cluster where none is named
	}{
		{name: "a new cluster of one control plane", controlPlanes: 1, fresh: true, calls: 2, reason: "Ready"},
		{name: "a new cluster of three control planes and two workers", controlPlanes: 3, workers: 2, fresh: true, calls: 6, reason: "Ready"},
		{name: "a new cluster of five control planes", controlPlanes: 5, fresh: true, calls: 6, reason: "Ready"},
		{name: "a new cluster with one control plane over the cap", controlPlanes: 5, fresh: true, calls: 5, of: "cp-5", reason: "ControlPlaneOverCap",
			change: func(s *story) { s.do("count 3") }},
		{name: "nothing changed", controlPlanes: 3, workers: 1, reason: "Ready"},
		{name: "a change that needs no reboot", controlPlanes: 3, workers: 3, calls: 12, reason: "Ready",
			change: func(s *story) { s.do("git config config-2") }},
		{name: "a change that needs a reboot of each", controlPlanes: 3, workers: 2, calls: 25, of: "w-2", reason: "Ready",
			change: func(s *story) {
				s.do("kubernetes pods=0")
				s.do("git config config-2")
				for _, name := range []string{"cp-1", "cp-2", "cp-3", "w-1", "w-2"} {
					s.do("machine " + name + " reboot-because=machine.install")
				}
			}},
		{name: "a change that needs a reboot of one", controlPlanes: 3, workers: 2, calls: 13, of: "cp-2", reason: "Ready",
			change: func(s *story) {
				s.do("kubernetes pods=0")
				s.do("git config config-2")
				s.do("machine cp-2 reboot-because=machine.files")
			}},
		{name: "a change that needs a reboot of each, by hand", controlPlanes: 3, workers: 2, calls: 5, of: "w-2", reason: "RebootRequired",
			change: func(s *story) {
				s.do("git reboots manual")
				s.do("git config config-2")
				for _, name := range []string{"cp-1", "cp-2", "cp-3", "w-1", "w-2"} {
					s.do("machine " + name + " reboot-because=machine.install")
				}
			}},
		{name: "a change and two workers at a time", controlPlanes: 1, workers: 4, calls: 10, reason: "Ready",
			change: func(s *story) { s.do("git config config-2"); s.do("git max-unavailable-workers 2") }},
		{name: "a new worker", controlPlanes: 3, workers: 1, calls: 1, reason: "Ready",
			change: func(s *story) { s.do("git add w-9 role=worker ip=10.0.0.99 at=2026-11-29T11:00:00Z") }},
		{name: "from three control planes to five, and a changed config", controlPlanes: 3, workers: 1, calls: 10, reason: "Ready",
			change: func(s *story) {
				s.do("count 5")
				s.do("git add cp-4 role=controlplane ip=10.0.0.14 at=2026-11-29T11:00:00Z")
				s.do("git add cp-5 role=controlplane ip=10.0.0.15 at=2026-11-29T11:01:00Z")
				s.do("git config config-2")
			}},
		{name: "a fifth control plane with a count of three is held", controlPlanes: 4, calls: 0, of: "cp-5", reason: "ControlPlaneOverCap",
			change: func(s *story) {
				s.do("count 3")
				s.do("git add cp-5 role=controlplane ip=10.0.0.15 at=2026-11-29T11:01:00Z")
			}},
		{name: "a shrink makes changes of control planes wait", controlPlanes: 3, workers: 1, calls: 2, of: "cp-1", reason: "ChangePending",
			change: func(s *story) { s.do("count 1"); s.do("git config config-2") }},
		{name: "a machine taken out of Git", controlPlanes: 3, workers: 2, calls: 8, of: "w-1", reason: "Unmanaged",
			change: func(s *story) { s.do("git delete w-1"); s.do("git config config-2") }},
		{name: "a machine that is no longer approved", controlPlanes: 1, workers: 2, calls: 4, of: "w-2", reason: "NotApproved",
			change: func(s *story) { s.do("git machine w-2 approved=no"); s.do("git config config-2") }},
		{name: "a control plane that is no longer approved", controlPlanes: 3, calls: 0, of: "cp-3", reason: "NotApproved",
			change: func(s *story) { s.do("git machine cp-3 approved=no"); s.do("git config config-2") }},
		{name: "a paused machine", controlPlanes: 3, workers: 2, calls: 8, of: "w-1", reason: "Paused",
			change: func(s *story) { s.do("git machine w-1 pause=mending"); s.do("git config config-2") }},
		{name: "a paused cluster", controlPlanes: 3, workers: 2, calls: 0, reason: "Paused",
			change: func(s *story) { s.do("git pause a freeze"); s.do("git config config-2") }},
		{name: "a machine under another name", controlPlanes: 3, workers: 1, calls: 8, reason: "Ready",
			change: func(s *story) { s.do("git rename cp-2 node-2"); s.do("git config config-2") }},
		{name: "a worker that doesn't answer", controlPlanes: 1, workers: 2, calls: 2, of: "w-1", reason: "Unreachable",
			change: func(s *story) { s.do("machine w-1 power=off"); s.do("git config config-2") }},
		{name: "a control plane that doesn't answer", controlPlanes: 3, workers: 1, calls: 2, of: "cp-2", reason: "Unreachable",
			change: func(s *story) { s.do("machine cp-2 power=off"); s.do("git config config-2") }},
		{name: "a machine that is another Ichor's", controlPlanes: 1, workers: 1, calls: 2, of: "w-1", reason: "ManagedElsewhere",
			change: func(s *story) { s.do("machine w-1 owner=other"); s.do("git config config-2") }},
		{name: "a member whose machine lost its data", controlPlanes: 3, calls: 0, reason: "Ready",
			change: func(s *story) { s.do("machine cp-3 data=lost"); s.do("machine cp-3 power=cycle") }},
		{name: "a control plane whose etcd service failed", controlPlanes: 3, calls: 1, reason: "Ready",
			change: func(s *story) { s.do("machine cp-3 data=lost service=Failed") }},
		{name: "a member that never got its name", controlPlanes: 3, calls: 1, reason: "Ready",
			change: func(s *story) { s.do("machine cp-3 nameless=yes"); s.do("pass"); s.do("wait 6m") }},
		{name: "a try that is under way", controlPlanes: 3, workers: 1, calls: 7, reason: "Ready",
			change: func(s *story) { s.do("git config config-2"); s.do("pass") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &story{t: t}
			s.do(fmt.Sprintf("machines %d %d", c.controlPlanes, c.workers))
			s.drive.overlay = s.overlay
			if !c.fresh {
				s.do("run")
				require.Equal(t, "Ready", s.drive.state.Ready.Reason)
			}
			if c.change != nil {
				c.change(s)
			}
			s.drive.overlay = s.overlay
			f := Foretell(s.drive.input())
			require.False(t, f.Unfinished)
			before := len(s.drive.log)
			s.do("run")
			require.Equal(t, s.drive.log[before:], foretoldOr(f))
			require.Len(t, foretold(f), c.calls)
			require.Equal(t, reasons(s.drive.state), reasons(f.End.Next))
			require.Equal(t, c.reason, reasons(f.End.Next)[c.of])
		})
	}
}

func foretoldOr(f Forecast) []string {
	if calls := foretold(f); calls != nil {
		return calls
	}
	return []string{}
}

// TestAForecastFromGitAloneIsWhatTheAgentThenDoes imagines the cluster as it stands at the base, and compares what it foretells with
// what an agent does on machines that really got there.
func TestAForecastFromGitAloneIsWhatTheAgentThenDoes(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *story)
	}{
		{"nothing", func(*story) {}},
		{"a live change", func(s *story) { s.do("git config config-2") }},
		{"two more control planes", func(s *story) {
			s.do("count 5")
			s.do("git add cp-4 role=controlplane ip=10.0.0.14 at=2026-11-29T11:00:00Z")
			s.do("git add cp-5 role=controlplane ip=10.0.0.15 at=2026-11-29T10:59:00Z")
		}},
		{"a worker goes and another comes", func(s *story) {
			s.do("git delete w-1")
			s.do("git add w-3 role=worker ip=10.0.0.53 at=2026-11-29T11:00:00Z")
			s.do("git config config-2")
		}},
		{"a pause", func(s *story) { s.do("git machine cp-2 pause=x"); s.do("git config config-2") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &story{t: t}
			s.do("machines 3 2")
			s.do("run")
			base := s.drive.input()
			wanted := map[string]ConfigView{}
			for _, m := range base.Cluster.Machines {
				wanted[m.Metadata.Name] = ConfigView{Wanted: "config-1"}
			}
			settled := Settled(base, wanted)
			require.Equal(t, reasons(base.State), reasons(settled.State), "it stands as the machines really do")
			c.change(s)
			in := s.drive.input()
			before := s.drive.input().Seen
			in.State, in.Seen = settled.State, map[string]Seen{}
			for name, seen := range settled.Seen {
				seen.Config = before[name].Config
				in.Seen[name] = seen
			}
			for _, m := range in.Cluster.Machines {
				if _, known := in.Seen[m.Metadata.Name]; !known {
					in.Seen[m.Metadata.Name] = Waiting(m, ConfigView{Wanted: s.drive.wanted})
				}
			}
			for name := range in.Seen {
				if in.Cluster.Machine(name) == nil && in.State.Machines[name] == nil {
					delete(in.Seen, name)
				}
			}
			f := Foretell(in)
			log := len(s.drive.log)
			s.do("run")
			require.Equal(t, s.drive.log[log:], foretoldOr(f))
			require.Equal(t, reasons(s.drive.state), reasons(f.End.Next))
		})
	}
}

func TestAForecastChangesNothingOfWhatItWasGiven(t *testing.T) {
	s := &story{t: t}
	s.do("machines 3 1")
	s.do("run")
	s.do("git config config-2")
	in, again := s.drive.input(), s.drive.input()
	first, second := Foretell(in), Foretell(in)
	require.Equal(t, again, in)
	require.Equal(t, foretold(first), foretold(second))
	require.NotEmpty(t, foretold(first))
}

// TestAForecastShowsWhoJoinsEtcd is about the steps that machines take by themselves.
func TestAForecastShowsWhoJoinsEtcd(t *testing.T) {
	s := &story{t: t}
	s.do("machines 3 1")
	f := Foretell(s.drive.input())
	var steps []string
	for _, step := range f.Steps {
		steps = append(steps, step.String())
	}
	require.Equal(t, []string{
		"first-config cp-1 where mode=maintenance", "first-config cp-2 where mode=maintenance", "first-config cp-3 where mode=maintenance",
		"first-config w-1 where mode=maintenance", "bootstrap cp-1 where data=absent", "join cp-2", "join cp-3"}, steps)
	members, voters, healthy, need := Members(Input{Cluster: s.drive.cluster, State: f.End.Next, Seen: f.Seen})
	slices.Sort(members)
	require.Equal(t, []string{"cp-1", "cp-2", "cp-3"}, members)
	require.Equal(t, []int{3, 3, 2}, []int{voters, healthy, need})
	require.ElementsMatch(t, []string{"cp-1", "cp-2", "cp-3", "w-1"}, slices.Collect(maps.Keys(f.Seen)))
}
