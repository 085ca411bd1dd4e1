package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/reconcile/plan"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// planBench is a fleet of simulated machines with its repository and state.
type planBench struct {
	t                       *testing.T
	farm                    *talossim.Farm
	dir, fleet, state, keys string
}

func (b *planBench) run(args ...string) (int, string, string) {
	var out, errText bytes.Buffer
	a := &app{terminal: &terminal{in: strings.NewReader(""), out: &out, err: &errText}, clock: clock.RealClock{}, getenv: func(string) string { return "" }}
	code := a.execute(context.Background(), args)
	return code, out.String(), errText.String()
}

func (b *planBench) git(args ...string) {
	b.t.Helper()
	gitIn(b.t, b.fleet, args...)
}

// agent runs an agent, with more arguments where some are given, until done says so.
func (b *planBench) agent(done func() bool, more ...string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var log bytes.Buffer
	a := &app{terminal: &terminal{in: strings.NewReader(""), out: &log, err: &log}, clock: clock.RealClock{}, getenv: func(string) string { return "" }}
	ended := make(chan int, 1)
	go func() {
		ended <- a.execute(ctx, append([]string{"agent", "--repo", "file://" + b.fleet, "--state", "file://" + b.state, "--cache", filepath.Join(b.dir, "cache"),
			"--age-identity", b.keys, "--time-scale", "10", "--interval", "1s", "--trust-maintenance-network", "127.0.62.0/24", "--listen", "none"}, more...))
	}()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case code := <-ended:
			b.t.Fatalf("the agent ended with %d: %s", code, log.String())
		case <-ctx.Done():
			<-ended
			b.t.Fatalf("the agent did not come to an end: %s", log.String())
		}
	}
	cancel()
	<-ended
}

// begun are the calls that agents wrote intents for, in their order; the same call made once more is one.
func (b *planBench) begun() []string {
	var calls []string
	files, err := filepath.Glob(filepath.Join(b.state, "prod", "audit", "*.json"))
	require.NoError(b.t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(b.t, err)
		var record struct {
			Content struct {
				Action  string            `json:"action"`
				Details map[string]string `json:"details"`
			} `json:"content"`
		}
		require.NoError(b.t, json.Unmarshal(data, &record), file)
		if record.Content.Action != "Intent" {
			continue
		}
		words := strings.Fields(record.Content.Details["call"])
		call := words[0] + " " + words[1]
		if len(calls) == 0 || calls[len(calls)-1] != call {
			calls = append(calls, call)
		}
	}
	return calls
}

func (b *planBench) plan(args ...string) *plan.Report {
	b.t.Helper()
	code, out, errText := b.run(append([]string{"plan", b.fleet, "-o", "json", "--age-identity", b.keys}, args...)...)
	require.NotEqual(b.t, exitCannot, code, errText)
	report := &plan.Report{}
	require.NoError(b.t, json.Unmarshal([]byte(out), report))
	return report
}

func (b *planBench) live(args ...string) *plan.Report {
	b.t.Helper()
	return b.plan(append([]string{"--live", "--state", "file://" + b.state, "--trust-maintenance-network", "127.0.62.0/24"}, args...)...)
}

// calls are the steps of a plan that are calls.
func planCalls(r *plan.Report) []string {
	calls := []string{}
	for _, s := range r.Clusters[0].Steps {
		if s.Action != "join" {
			calls = append(calls, s.Action+" "+s.Machine)
		}
	}
	return calls
}

// throughKubernetes says whether a call goes to the Kubernetes API: those may be repeated, and have no intent of their own.
func throughKubernetes(call string) bool {
	return slices.Contains([]string{"cordon", "evict", "uncordon"}, strings.Fields(call)[0])
}

func planMachine(r *plan.Report, name string) plan.Machine {
	for _, m := range r.Clusters[0].Machines {
		if m.Name == name {
			return m
		}
	}
	return plan.Machine{}
}

// files are the names and contents of everything under a folder.
func (b *planBench) files(folder string) map[string]string {
	found := map[string]string{}
	require.NoError(b.t, filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		found[name] = string(data)
		return err
	}))
	return found
}

// applies counts the calls of ApplyConfiguration that a machine got, refused ones and dry runs included.
func (b *planBench) applies(name string) int {
	n := 0
	for _, entry := range b.farm.Node(name).Journal() {
		if strings.HasSuffix(entry.Method, "/ApplyConfiguration") && entry.Corrects == 0 {
			n++
		}
	}
	return n
}

func newPlanBench(t *testing.T) *planBench {
	t.Helper()
	if testing.Short() {
		t.Skip("simulated machines with a real etcd each take seconds")
	}
	dir := t.TempDir()
	b := &planBench{t: t, dir: dir, fleet: filepath.Join(dir, "fleet"), state: filepath.Join(dir, "state"), keys: filepath.Join(dir, "age.key")}
	farm, err := talossim.Start(context.Background(), talossim.Options{Dir: filepath.Join(dir, "machines"), First: "127.0.62.1", ControlPlanes: 3,
		Workers: 2, TimeScale: 10, LooseMembership: true})
	require.NoError(t, err)
	t.Cleanup(func() { farm.Close() })
	b.farm = farm
	args := []string{"init", b.fleet, "--cluster", "prod", "--endpoint", "https://127.0.62.1:6443", "--age-identity-out", b.keys, "--approve",
		"--install-disk", "/dev/sda"}
	client := talos.NewClient(nil, talos.ClientOptions{})
	defer client.Close()
	for _, node := range farm.Nodes() {
		target := talos.Target{Name: node.Name(), Endpoint: node.Endpoint()}
		require.Eventually(t, func() bool { return client.Observe(context.Background(), target).UUID != "" }, 5*time.Minute, 50*time.Millisecond)
		kind := "--control-plane"
		if node.Role() == talossim.Worker {
			kind = "--worker"
		}
		args = append(args, kind, fmt.Sprintf("%s=%s,%s", node.Name(), node.Address(), node.UUID()))
	}
	code, _, errText := b.run(args...)
	require.Zero(t, code, errText)
	b.git("init", "-q", "-b", "main")
	b.git("add", "-A")
	b.git("commit", "-q", "-m", "first")
	return b
}

func (b *planBench) ready() bool {
	code, out, _ := b.run("status", "--state", "file://"+b.state, "-o", "json")
	return code == 0 && strings.Contains(out, `"ready": true`)
}

// TestThePlanIsWhatTheAgentDoesToMachines plans on simulated machines, from Git alone and from a look at them, lets an agent go, and
// compares what it began with the plan, call by call.
func TestThePlanIsWhatTheAgentDoesToMachines(t *testing.T) {
	b := newPlanBench(t)
	require.NoError(t, os.Mkdir(b.state, 0o700))

	// A cluster from nothing.
	fromGit, fromMachines := b.plan(), b.live()
	require.Equal(t, planCalls(fromGit), planCalls(fromMachines))
	require.Equal(t, []string{"first-config cp-1", "first-config cp-2", "first-config cp-3", "first-config w-1", "first-config w-2", "bootstrap cp-1"},
		planCalls(fromGit))
	require.Empty(t, b.files(b.state), "a plan writes nothing")
	b.agent(b.ready)
	require.Equal(t, planCalls(fromGit), b.begun())
	// The state is of the agent's last look: a control plane may have been between its etcd's start and its API server's.
	require.Eventually(t, func() bool { return !b.live().Changes }, 5*time.Minute, time.Second)

	// A change that is live on control planes and needs a reboot of workers: they are drained and rebooted one after the other.
	cluster := filepath.Join(b.fleet, "clusters/prod/cluster.yaml")
	before, err := os.ReadFile(cluster)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cluster, append(before, []byte(`  patches:
    controlPlane: [{inline: {machine: {sysctls: {vm.overcommit_memory: "1"}}}}, {file: sealed.age}]
    worker: [{inline: {machine: {files: [{path: /var/x, permissions: 0o644, op: create, content: "canary-in-a-file"}]}}}]
`)...), 0o600))
	b.seal("clusters/prod/sealed.age", "machine: {sysctls: {kernel.core_pattern: canary-sealed-7}}\n")
	b.git("add", "-A")
	b.git("commit", "-q", "-m", "second")
	asked, kept := b.applies("w-1"), b.files(b.state)
	fromGit, fromMachines = b.plan("--base", "HEAD~1"), b.live("--base", "HEAD~1")
	require.Equal(t, planCalls(fromGit), planCalls(fromMachines))
	require.Equal(t, plan.Counts{Live: 3, Reboot: 2}, fromMachines.Clusters[0].Counts)
	for _, m := range fromMachines.Clusters[0].Machines {
		require.Equal(t, "ok", m.Live.DryRun, "%s: %s", m.Name, m.Live.DryRunMessage)
		require.Equal(t, planMachine(fromGit, m.Name).Diff, m.Diff, m.Name)
	}
	require.Equal(t, asked+1, b.applies("w-1"))
	require.Equal(t, kept, b.files(b.state), "a plan writes nothing")
	b.noSecret("--base", "HEAD~1")
	already := len(b.begun())
	calls := planCalls(fromGit)
	emptied := slices.Index(calls, "cordon w-1")
	require.Greater(t, emptied, 0)
	require.Equal(t, []string{"config-stage w-1", "cordon w-1", "evict w-1", "reboot w-1", "uncordon w-1"}, calls[emptied-1:emptied+4])
	calls = slices.DeleteFunc(calls, throughKubernetes)
	b.agent(func() bool { return b.ready() && len(b.begun()) >= already+len(calls) })
	require.Equal(t, calls, b.begun()[already:])

	b.machinesInTrouble()
}

// machinesInTrouble: what must get no dry run gets none, and what doesn't answer is named.
func (b *planBench) machinesInTrouble() {
	t := b.t
	identities, err := sealed.LoadIdentities(b.keys)
	require.NoError(t, err)
	bundle, err := bundleFromCheckout(b.fleet, "prod", identities)
	require.NoError(t, err)
	client := talos.NewClient(bundle, talos.ClientOptions{})
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	apply := func(name string, mode talos.ApplyMode, change func(string) string) {
		target := talos.Target{Name: name, Endpoint: b.farm.Node(name).Endpoint()}
		session, err := client.Dial(ctx, target, talos.RoleAdmin)
		require.NoError(t, err)
		defer session.Close()
		active, _, err := session.Configs(ctx)
		require.NoError(t, err)
		text, err := active.Bytes()
		require.NoError(t, err)
		changed := change(string(text))
		require.NotEqual(t, string(text), changed)
		require.NoError(t, session.ApplyConfig(ctx, talos.ApplyRequest{Config: []byte(changed), Mode: mode, TryFor: time.Hour}))
	}
	apply("cp-2", talos.ApplyTry, func(s string) string {
		return strings.Replace(s, "vm.overcommit_memory: \"1\"", "vm.overcommit_memory: \"2\"", 1)
	})
	mark := planMark(t, b)
	apply("cp-1", talos.ApplyNoReboot, func(s string) string { return strings.Replace(s, mark, "another-ichor", 1) })
	require.NoError(t, b.farm.Node("w-2").PowerOff())
	file := filepath.Join(b.fleet, "clusters/prod/machines/cp-3.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), b.farm.Node("cp-3").UUID(), "11111111-1111-4111-8111-111111111111", 1)), 0o600))
	counts := map[string]int{}
	for _, node := range b.farm.Nodes() {
		counts[node.Name()] = b.applies(node.Name())
	}
	report := b.live()
	for _, name := range []string{"cp-1", "cp-2", "cp-3", "w-2"} {
		require.Equal(t, "not-sent", planMachine(report, name).Live.DryRun, name)
		require.Equal(t, counts[name], b.applies(name), "%s was asked nothing", name)
	}
	require.Equal(t, "ManagedElsewhere", planMachine(report, "cp-1").Reason)
	require.Equal(t, "ForeignConfig", planMachine(report, "cp-2").Reason)
	require.Equal(t, "WrongMachine", planMachine(report, "cp-3").Reason)
	require.Equal(t, "Unreachable", planMachine(report, "w-2").Reason)
	require.NotEmpty(t, planMachine(report, "w-2").Live.Problem)
	b.noSecret()
}

// planMark is the mark that the machines bear.
func planMark(t *testing.T, b *planBench) string {
	store, err := (&stateFlags{url: "file://" + b.state}).open(context.Background(), nil, false)
	require.NoError(t, err)
	defer store.Close()
	return statefile.LocationHash(store)
}

func (b *planBench) seal(name, text string) {
	recipients, err := os.ReadFile(filepath.Join(b.fleet, "clusters/prod/recipients.txt"))
	require.NoError(b.t, err)
	to, err := sealed.ParseRecipients("recipients.txt", recipients)
	require.NoError(b.t, err)
	data, err := sealed.Seal(to, []byte(text))
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(b.fleet, name), data, 0o600))
}

// noSecret looks for secrets in every form of a live plan.
func (b *planBench) noSecret(args ...string) {
	identities, err := sealed.LoadIdentities(b.keys)
	require.NoError(b.t, err)
	bundle, err := bundleFromCheckout(b.fleet, "prod", identities)
	require.NoError(b.t, err)
	for _, format := range []string{"text", "markdown", "json"} {
		_, out, errText := b.run(append([]string{"plan", b.fleet, "--live", "--state", "file://" + b.state, "-o", format, "--age-identity", b.keys}, args...)...)
		require.NotEmpty(b.t, out, errText)
		for _, secret := range append(bundle.Scalars(), "canary-sealed-7") {
			require.False(b.t, strings.Contains(out+errText, secret), "%s shows a secret (%.6s…)", format, secret)
		}
	}
}
