package reconcile

import (
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// wants puts a udev rule, which Talos takes at a boot alone, and what is to be known of rollouts into the cluster's file.
func (l *lab) wants(rule, rollout string) string {
	l.t.Helper()
	text := string(l.fleet.files["clusters/prod/cluster.yaml"].Data)
	text, _, _ = strings.Cut(text, "  patches:")
	l.fleet.write("clusters/prod/cluster.yaml", text+"  patches: {all: [{file: udev.yaml}]}\n"+rollout)
	l.fleet.write("clusters/prod/udev.yaml", fmt.Sprintf("machine: {udev: {rules: ['SUBSYSTEM==\"block\", ENV{ICHOR}=%q']}}\n", rule))
	return l.source.push(l.fleet.files)
}

// everywhere is that every machine runs a revision and nothing is under way.
func everywhere(commit string) func(Report) bool {
	return func(r Report) bool {
		return allReady(r) && r.Clusters[0].State.Revision.Applied == commit && r.Clusters[0].State.Rollout == nil && r.Clusters[0].State.Lock == nil
	}
}

// rebootsInOrder are the machines that accepted a reboot, as they did.
func (l *lab) rebootsInOrder() []string {
	type reboot struct {
		machine string
		at      time.Time
	}
	var reboots []reboot
	for _, node := range l.farm.Nodes() {
		for _, entry := range node.Accepted("Reboot") {
			reboots = append(reboots, reboot{node.Name(), entry.Time})
		}
	}
	sort.Slice(reboots, func(i, j int) bool { return reboots[i].at.Before(reboots[j].at) })
	names := make([]string, len(reboots))
	for n, r := range reboots {
		names[n] = r.machine
	}
	return names
}

// runsRule is that each of these machines runs with a udev rule.
func (l *lab) runsRule(rule string, machines ...string) {
	l.t.Helper()
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	defer client.Close()
	for _, name := range machines {
		require.Contains(l.t, strings.Join(l.runs(client, name).Active.Machine().Udev().Rules(), "\n"), fmt.Sprintf("%q", rule), name)
	}
}

// TestAChangeThatNeedsRebootsGoesMachineByMachine rolls one over three control planes and two workers: each is emptied, rebooted once and
// takes pods again before the next is begun. The promises that are watched are that one machine is away at a time and etcd keeps its quorum.
func TestAChangeThatNeedsRebootsGoesMachineByMachine(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.141", 3, 2, 50))
	l.watchPromises()
	require.True(t, allReady(l.run(l.config("bring-up"), allReady)))
	commit := l.wants("one", "")
	ready := everywhere(commit)
	worst := 0
	report := l.run(l.config("agent-1"), func(r Report) bool {
		worst = max(worst, rebooted(l.lab))
		return ready(r)
	})
	require.True(t, ready(report), "%+v", report.Problems())
	order := l.rebootsInOrder()
	require.ElementsMatch(t, []string{"cp-1", "cp-2", "cp-3", "w-1", "w-2"}, order, "each once")
	require.LessOrEqual(t, worst, 1, "of the machines one at a time is away")
	require.Empty(t, l.cordonedNodes())
	l.runsRule("one", order...)
	l.promisesKept()
}

// rebooted is how many machines don't run a kubelet just now.
func rebooted(l *lab) int {
	away := 0
	for _, node := range l.farm.Nodes() {
		if !node.KubeletUp() {
			away++
		}
	}
	return away
}

// TestRebootsForAChangeWaitForAWindowOrForSomebodyWhoSigns has a change stored that needs reboots: with a window that is closed and with
// manual nothing is rebooted, a signed reboot ends the wait of its machine, and a window that is open that of the rest.
func TestRebootsForAChangeWaitForAWindowOrForSomebodyWhoSigns(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.161", 1, 2, 50))
	l.watchPromises()
	require.True(t, allReady(l.run(l.config("bring-up"), allReady)))
	waits := map[string]string{"cp-1": "RebootRequired", "w-1": "RebootRequired", "w-2": "RebootRequired"}

	far := fmt.Sprintf("30 %d * * *", (time.Now().UTC().Hour()+12)%24)
	l.wants("one", fmt.Sprintf("  rollout: {reboots: window, windows: [{schedule: %q, duration: 1h}]}\n", far))
	report := l.run(l.config("agent-1"), says(waits))
	require.Contains(t, saysOf(report, "w-1").Message, "machine.udev")
	require.Contains(t, saysOf(report, "w-1").Message, "it is rebooted once a window opens (the next at ")
	require.Contains(t, saysOf(report, "w-1").Message, ":30Z)")

	l.wants("one", "  rollout: {reboots: manual}\n")
	report = l.run(l.config("agent-2"), func(r Report) bool {
		return says(waits)(r) && strings.Contains(saysOf(r, "w-1").Message, "reboot it with ichor run-op node reboot w-1")
	})
	require.True(t, says(waits)(report), "%+v", report.Problems())
	require.Empty(t, l.accepted("Reboot"))

	l.does("reboot-w-1", nodeBody("w-1", l.uuid("w-1"), "reboot"), statefile.OperationCompleted)
	report = l.run(l.config("agent-3"), says(map[string]string{"cp-1": "RebootRequired", "w-1": "Ready", "w-2": "RebootRequired"}))
	require.True(t, saysOf(report, "w-1").Status, "%+v", saysOf(report, "w-1"))
	require.Equal(t, map[string]int{"w-1": 1}, l.accepted("Reboot"))
	l.runsRule("one", "w-1")

	began := time.Now().UTC().Add(-time.Hour)
	commit := l.wants("one", fmt.Sprintf("  rollout: {reboots: window, windows: [{schedule: '%d %d * * *', duration: 23h}]}\n", began.Minute(), began.Hour()))
	report = l.run(l.config("agent-4"), everywhere(commit))
	require.True(t, everywhere(commit)(report), "%+v", report.Problems())
	require.Equal(t, map[string]int{"cp-1": 1, "w-1": 1, "w-2": 1}, l.accepted("Reboot"))
	require.Empty(t, l.cordonedNodes())
	l.runsRule("one", "cp-1", "w-1", "w-2")
}
