package recovery

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/talos"
)

const someUUID = "00000000-0000-4000-8000-000000000001"

func configured(data talos.Fact) Seen {
	return Seen{Observation: talos.Observation{Mode: talos.ModeConfigured, UUID: someUUID, Stage: "running", MachineType: "controlplane",
		Etcd: talos.EtcdObservation{Data: data}}}
}

func TestWhatIsKnownBeforeAnythingIsBegun(t *testing.T) {
	fresh := Seen{Observation: talos.Observation{Mode: talos.ModeMaintenance, UUID: someUUID, Stage: "maintenance"}}
	with := func(seen Seen, change func(*Seen)) Seen { change(&seen); return seen }
	for name, test := range map[string]struct {
		seen                   Seen
		declared               string
		wipe                   []string
		mark                   string
		line, blocker, waiting string
	}{
		"fresh":                      {seen: fresh, line: "cp-1 (10.0.0.11) is in maintenance mode: it gets its config"},
		"fresh and nobody vouched":   {seen: with(fresh, func(s *Seen) { s.ConfigProblem = "nobody vouched" }), blocker: "nobody vouched"},
		"empty":                      {seen: configured(talos.No), line: "its etcd is empty"},
		"empty, and may be wiped":    {seen: configured(talos.No), wipe: []string{"cp-1"}, line: "its etcd is empty"},
		"with data":                  {seen: configured(talos.Yes), blocker: "--wipe cp-1"},
		"with data that may be lost": {seen: configured(talos.Yes), wipe: []string{"cp-1"}, line: "is WIPED"},
		"nobody knows":               {seen: configured(talos.Unknown), wipe: []string{"cp-1"}, waiting: "is not known"},
		"silent":                     {seen: Seen{Observation: talos.Observation{Problem: "connection refused"}}, waiting: "connection refused"},
		"booting without a UUID":     {seen: with(configured(talos.No), func(s *Seen) { s.UUID = "" }), waiting: "doesn't say its UUID"},
		"another machine":            {seen: configured(talos.No), declared: "4c4c4544-0039-3010-8048-b7c04f384432", blocker: "has the UUID " + someUUID},
		"a worker":                   {seen: with(configured(talos.Unknown), func(s *Seen) { s.MachineType = "worker" }), blocker: "is a worker"},
		"another Ichor's":            {seen: with(configured(talos.No), func(s *Seen) { s.Owner = "theirs" }), mark: "ours", blocker: "managed by an Ichor with another state"},
		"ours":                       {seen: with(configured(talos.No), func(s *Seen) { s.Owner = "ours" }), mark: "ours", line: "its etcd is empty"},
		"rebooting":                  {seen: with(configured(talos.No), func(s *Seen) { s.Stage = "rebooting" }), waiting: "is rebooting"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Assess(Assessment{Machines: []Machine{{Name: "cp-1", Endpoint: "10.0.0.11", UUID: test.declared}}, Seen: map[string]Seen{"cp-1": test.seen},
				Wipe: test.wipe, Mark: test.mark})
			check := func(want string, got []string) {
				if want == "" {
					require.Empty(t, got)
					return
				}
				require.Len(t, got, 1)
				require.Contains(t, got[0], want)
			}
			check(test.blocker, p.Blockers)
			check(test.waiting, p.Waits)
			if test.line != "" {
				require.Contains(t, p.Lines[0], test.line)
				require.Equal(t, someUUID, p.Machines[0].UUID)
			}
			require.Equal(t, "cp-1", p.Target)
		})
	}
}

func TestAnEtcdThatAnswersIsSaidNotToBeLost(t *testing.T) {
	seen := configured(talos.Yes)
	seen.Etcd.Members = []talos.EtcdMember{{ID: 1}, {ID: 2}, {ID: 3}}
	p := Assess(Assessment{Machines: []Machine{{Name: "cp-1", Endpoint: "a"}}, Seen: map[string]Seen{"cp-1": seen}, Wipe: []string{"cp-1"}})
	require.Empty(t, p.Blockers)
	require.Len(t, p.Warnings, 1)
	require.Contains(t, p.Warnings[0], "with 3 members: it is not lost")
}

func TestAnotherMachineThanTheLastOneRecoversWhereThereIsOne(t *testing.T) {
	seen := map[string]Seen{"cp-1": configured(talos.No), "cp-2": configured(talos.No)}
	two := []Machine{{Name: "cp-2", Endpoint: "b"}, {Name: "cp-1", Endpoint: "a"}}
	require.Equal(t, "cp-1", Assess(Assessment{Machines: two, Seen: seen}).Target)
	require.Equal(t, "cp-2", Assess(Assessment{Machines: two, Seen: seen, LastTarget: "cp-1"}).Target)
	require.Equal(t, "cp-1", Assess(Assessment{Machines: two, Seen: seen, LastTarget: "cp-2"}).Target)
	require.Equal(t, "cp-1", Assess(Assessment{Machines: two[1:], Seen: seen, LastTarget: "cp-1"}).Target, "there is no other")
	require.NotEmpty(t, Assess(Assessment{}).Blockers)
}

func TestAControlPlaneThatNobodyNamedMayRunTheOldEtcd(t *testing.T) {
	answers, silent, worker := configured(talos.Yes), Seen{}, configured(talos.Unknown)
	worker.MachineType = "worker"
	p := Assess(Assessment{Machines: []Machine{{Name: "cp-1", Endpoint: "a"}}, Seen: map[string]Seen{"cp-1": configured(talos.No)},
		Strangers: map[string]Seen{"cp-7 (10.0.0.17)": answers, "cp-8 (10.0.0.18)": silent, "w-1 (10.0.0.21)": worker}})
	require.Len(t, p.Blockers, 1)
	require.Contains(t, p.Blockers[0], "cp-7 (10.0.0.17)")
	require.Len(t, p.Warnings, 1)
	require.Contains(t, p.Warnings[0], "cp-8 (10.0.0.18)")
}

func TestAControlPlaneThatGitDeclaresAndThatIsNotRecoveredOnMayRunTheOldEtcd(t *testing.T) {
	worker, waiting := configured(talos.Yes), Seen{}
	worker.MachineType, waiting.Mode = "worker", talos.ModeMaintenance
	for name, test := range map[string]struct {
		seen              Seen
		blocks, warnsThat string
	}{
		"it answers and holds data":                    {configured(talos.Yes), "Git declares cp-9 (10.0.0.19) as a control plane", ""},
		"it answers, and whether it does is not known": {configured(talos.Unknown), "power it off", ""},
		"it answers and holds none":                    {configured(talos.No), "", "it joins the recovered etcd by itself"},
		"it doesn't answer":                            {Seen{}, "", "keep it off until it is wiped"},
		"it waits for a config":                        {waiting, "", ""},
		"it is a worker by now":                        {worker, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := Assess(Assessment{Machines: []Machine{{Name: "cp-1", Endpoint: "a"}}, Seen: map[string]Seen{"cp-1": configured(talos.No)},
				Others: map[string]Seen{"cp-9 (10.0.0.19)": test.seen}})
			for _, one := range []struct {
				want string
				got  []string
			}{{test.blocks, p.Blockers}, {test.warnsThat, p.Warnings}} {
				if one.want == "" {
					require.Empty(t, one.got)
					continue
				}
				require.Len(t, one.got, 1)
				require.Contains(t, one.got[0], one.want)
			}
		})
	}
}

// addressed are machines at their addresses; each tells at each look what it tells at that one.
type addressed struct {
	Nodes
	mu    sync.Mutex
	tells map[string][]talos.Observation
	asked map[string]int
}

func (a *addressed) Observe(_ context.Context, target talos.Target) talos.Observation {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[target.Endpoint]++
	told := a.tells[target.Endpoint]
	if len(told) == 0 {
		return talos.Observation{}
	}
	a.tells[target.Endpoint] = told[1:]
	return told[0]
}

func TestControlPlanesThatAreNotRecoveredOnAreAskedAtTheirAddresses(t *testing.T) {
	holds := func(uuid string, addresses ...string) talos.Observation {
		seen := configured(talos.Yes).Observation
		seen.UUID, seen.Addresses = uuid, addresses
		return seen
	}
	first := Seen{Observation: holds("uuid-1", "10.0.0.11", "10.1.0.11")}
	first.Discovery = []talos.DiscoveredMember{{Name: "cp-1", Addresses: []string{"10.0.0.11"}}, {Name: "cp-5", Addresses: []string{"10.1.0.15"}},
		{Name: "cp-7", Addresses: []string{"10.0.0.17"}}}
	nodes := &addressed{asked: map[string]int{}, tells: map[string][]talos.Observation{
		"10.0.0.15": {{}, holds("uuid-5", "10.0.0.15", "10.1.0.15")}, // it is slow to answer
		"10.0.0.16": {holds("UUID-1")},                               // the first one's other address
		"10.0.0.17": {holds("uuid-7")},
	}}
	strangers, others := Beside(t.Context(), nodes, []Machine{{Name: "cp-1", Endpoint: "10.0.0.11"}},
		[]Machine{{Name: "cp-5", Endpoint: "10.0.0.15"}, {Name: "cp-6", Endpoint: "10.0.0.16"}, {Name: "cp-8", Endpoint: "10.0.0.18"}, {Name: "old", Endpoint: "10.1.0.11"}},
		map[string]Seen{"cp-1": first})
	require.Equal(t, []string{"cp-5 (10.0.0.15)", "cp-8 (10.0.0.18)"}, slices.Sorted(maps.Keys(others)))
	require.Equal(t, "uuid-5", others["cp-5 (10.0.0.15)"].UUID)
	require.Equal(t, talos.ModeUnknown, others["cp-8 (10.0.0.18)"].Mode)
	require.Equal(t, []string{"cp-7 (10.0.0.17)"}, slices.Sorted(maps.Keys(strangers)), "cp-5 is known by another of its addresses")
	require.Equal(t, map[string]int{"10.0.0.15": 2, "10.0.0.16": 1, "10.0.0.17": 1, "10.0.0.18": 2}, nodes.asked)
}

func TestOnlyTheTargetOfARecoveryThatWasBegunCanNotBeLeftOut(t *testing.T) {
	m := &Marker{Machines: []Machine{{Name: "cp-1"}, {Name: "cp-2"}}, Target: "cp-1", Intents: []Intent{{Action: ActUpload, Machine: "cp-1"}}}
	begun := m.clone()
	begun.Intents = append(begun.Intents, Intent{Action: ActRecover, Machine: "cp-1"})
	require.NoError(t, m.Leave([]string{"cp-1", "cp-9"}))
	require.Equal(t, "cp-2", m.Target)
	require.ErrorContains(t, m.Leave([]string{"cp-2"}), "no control plane would be left")
	require.ErrorContains(t, begun.Leave([]string{"cp-1"}), "cp-1 was told to recover")
	require.NoError(t, begun.Leave([]string{"cp-2"}))
}

func TestOneMachineUnderTwoNamesIsRefusedBeforeAnythingIsBegun(t *testing.T) {
	for name, seen := range map[string]Seen{
		"in maintenance mode":                {Observation: talos.Observation{Mode: talos.ModeMaintenance, UUID: someUUID, Stage: "maintenance"}},
		"configured and empty":               configured(talos.No),
		"with data that may be lost on both": configured(talos.Yes),
	} {
		t.Run(name, func(t *testing.T) {
			p := Assess(Assessment{Machines: []Machine{{Name: "cp-1", Endpoint: "10.0.0.11"}, {Name: "cp-2", Endpoint: "10.0.1.11"}},
				Seen: map[string]Seen{"cp-1": seen, "cp-2": seen}, Wipe: []string{"cp-1", "cp-2"}})
			require.Equal(t, []string{"cp-1 (10.0.0.11) and cp-2 (10.0.1.11) are one machine, with the UUID " + someUUID + ": correct the address of one of them, or leave it out"}, p.Blockers)
		})
	}
}
