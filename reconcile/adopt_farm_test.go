package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// byHand configures a machine in maintenance mode as somebody without Ichor would, with a sysctl that Git doesn't have. mark is that of
// another Ichor's state; empty for none.
func (l *lab) byHand(client *talos.Client, name, mark string) {
	l.t.Helper()
	fleet, problems := schema.Load(l.fleet.files, []string{"."})
	require.Empty(l.t, problems)
	cluster := *fleet.Cluster("prod")
	cluster.Spec.Patches.All = []schema.Patch{{Inline: map[string]any{"machine": map[string]any{"sysctls": map[string]any{"vm.swappiness": "10"}}}}}
	for _, m := range fleet.MachinesOf("prod") {
		if m.Metadata.Name != name {
			continue
		}
		rendered, err := talos.Render(&cluster, m, l.fleet.bundle, talos.RenderOptions{StateAnnotation: mark})
		require.NoError(l.t, err)
		target := talos.Target{Name: name, Endpoint: m.Spec.Endpoint}
		l.eventually(name+" takes a config by hand", func(ctx context.Context) error {
			seen := client.Observe(ctx, target)
			if seen.Mode != talos.ModeMaintenance {
				return errors.New(seen.Problem)
			}
			session, err := client.DialMaintenance(ctx, target, seen.Fingerprint)
			if err != nil {
				return err
			}
			defer session.Close()
			return session.ApplyConfig(ctx, talos.ApplyRequest{Config: rendered.Bytes, Mode: talos.ApplyNoReboot})
		})
	}
}

// eventually tries something until it succeeds.
func (l *lab) eventually(what string, try func(context.Context) error) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), ample)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			require.NoError(l.t, err, what)
		}
	}
}

// saysOf is the reason that a report's only cluster has for a machine; empty while there is none.
func saysOf(r Report, machine string) statefile.Condition {
	if len(r.Clusters) == 0 || r.Clusters[0].State == nil || r.Clusters[0].State.Machines[machine] == nil {
		return statefile.Condition{}
	}
	return r.Clusters[0].State.Machines[machine].Ready
}

// says is that each of these machines has its reason.
func says(reasons map[string]string) func(Report) bool {
	return func(r Report) bool {
		for machine, reason := range reasons {
			if saysOf(r, machine).Reason != reason {
				return false
			}
		}
		return true
	}
}

// runs is the config that a machine runs.
func (l *lab) runs(client *talos.Client, name string) talos.Observation {
	l.t.Helper()
	var seen talos.Observation
	l.eventually("the config of "+name, func(ctx context.Context) error {
		seen = client.Observe(ctx, talos.Target{Name: name, Endpoint: l.farm.Node(name).Address()})
		if seen.Active == nil {
			return errors.New(seen.Problem)
		}
		return nil
	})
	return seen
}

func adoptBody(machine, uuid string) string {
	return fmt.Sprintf("  kind: adopt\n  adopt:\n    machineRef:\n      name: %s\n      uuid: %s\n", machine, uuid)
}

// TestASignedAdoptTakesMachinesOver has a cluster that runs before Ichor first sees it: its control plane was configured by hand, and its
// worker bears the mark of another Ichor. Each is left alone until its adopt is signed, and then gets what Git has.
func TestASignedAdoptTakesMachinesOver(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.101", 1, 1, 50))
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = client.Close() })
	l.byHand(client, "cp-1", "")
	l.byHand(client, "w-1", "elsewhere")
	l.eventually("the bootstrap by hand", func(ctx context.Context) error {
		session, err := client.Dial(ctx, talos.Target{Name: "cp-1", Endpoint: l.farm.Node("cp-1").Address(), ControlPlane: true}, talos.RoleAdmin)
		if err != nil {
			return err
		}
		defer session.Close()
		return session.Bootstrap(ctx)
	})

	left := says(map[string]string{"cp-1": "Adopting", "w-1": "ManagedElsewhere"})
	// What is in Git before the agent knows what was there when it came is skipped.
	report := l.run(l.config("agent-1"), func(r Report) bool { return left(r) && r.Clusters[0].State.OperationsFrom != "" })
	require.Contains(t, saysOf(report, "cp-1").Message, "ichor run-op adopt cp-1")
	require.Contains(t, saysOf(report, "cp-1").Message, "vm.swappiness")
	require.Contains(t, saysOf(report, "w-1").Message, "ichor run-op adopt w-1")
	require.Equal(t, map[string]int{"cp-1": 1, "w-1": 1}, l.accepted("ApplyConfiguration"), "by hand, and nothing since")

	adopted := func(machine string) *statefile.OperationState {
		l.push("adopt-"+machine, "ichor-operation@prod", adoptBody(machine, l.uuid(machine)))
		op := operationNamed(l.run(l.config("adopts-"+machine), inPhase("adopt-"+machine, statefile.OperationCompleted)).Clusters[0].State, "adopt-"+machine)
		require.Equal(t, statefile.OperationCompleted, op.Phase, op.Message)
		return op // the rollout that follows may have the lock already
	}
	op := adopted("w-1")
	require.Contains(t, op.Message, "taken over from the state with the mark elsewhere")
	report = l.run(l.config("agent-2"), func(r Report) bool {
		return saysOf(r, "w-1").Status && len(r.Clusters) > 0 && r.Clusters[0].State.Rollout == nil && r.Clusters[0].State.Machines["w-1"].TakenFrom == ""
	})
	require.True(t, saysOf(report, "w-1").Status, "%+v", saysOf(report, "w-1"))
	require.Empty(t, report.Clusters[0].State.Machines["w-1"].TakenFrom, "what bears the other's mark once more is the other's")
	require.Equal(t, "Adopting", saysOf(report, "cp-1").Reason)
	require.Equal(t, map[string]int{"cp-1": 1, "w-1": 3}, l.accepted("ApplyConfiguration"), "one try and one confirmation, and cp-1 is nobody's yet")

	adopted("cp-1")
	report = l.run(l.config("agent-3"), allReady)
	require.True(t, allReady(report), "%+v", report.Problems())
	require.Equal(t, map[string]int{"cp-1": 3, "w-1": 3}, l.accepted("ApplyConfiguration"))
	for _, name := range []string{"cp-1", "w-1"} {
		machine := l.runs(client, name).Active.Machine()
		require.NotContains(t, machine.Sysctls(), "vm.swappiness", name)
		require.Equal(t, l.config("").Mark, machine.NodeAnnotations()[talos.AnnotationState], name)
	}
	require.Equal(t, map[string]int{"cp-1": 1}, l.accepted("Bootstrap"))
	require.Empty(t, l.cordonedNodes())
	op = l.does("adopt-again", adoptBody("w-1", l.uuid("w-1")), statefile.OperationPaused)
	require.Contains(t, op.FailureReason, "w-1 is Ichor's to change already")
}

func bootstrapBody(machine, uuid, confirm string) string {
	return fmt.Sprintf("  kind: bootstrap\n  bootstrap:\n    machineRef:\n      name: %s\n      uuid: %s\n    confirm: %s\n", machine, uuid, confirm)
}

// refusedOperations are the reasons for which operations were refused, by name.
func refusedOperations(r Report) map[string]string {
	reasons := map[string]string{}
	if len(r.Clusters) > 0 && r.Clusters[0].State != nil {
		for _, op := range r.Clusters[0].State.Operations {
			if op.Phase == statefile.OperationRefused {
				reasons[op.Name] = op.Refusal
			}
		}
	}
	return reasons
}

// TestASignedBootstrapGoesOnBesideASnapshotOnce has a new cluster in whose bucket a snapshot is found: it stops, and goes on with a
// bootstrap that is signed for overrides and for that very machine, whatever else is asked for before and after.
func TestASignedBootstrapGoesOnBesideASnapshotOnce(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.121", 3, 0, 50))
	l.watchPromises()
	v := l.withBackups(t)
	v.leave(t, "etcd-20250101T000000Z.snapshot.age")
	config := func(writer string) Config {
		config := l.config(writer)
		config.Backups = v.config
		return config
	}
	report := l.run(config("agent-1"), func(r Report) bool {
		return strings.Contains(strings.Join(r.Problems(), "\n"), "ichor run-op bootstrap") && says(map[string]string{"cp-1": "NeedsApproval"})(r)
	})
	require.Contains(t, strings.Join(report.Problems(), "\n"), "sign a bootstrap of one if there is nothing to restore (ichor run-op bootstrap)")
	require.Contains(t, saysOf(report, "cp-1").Message, "renew spec.approvalDecision.at")
	require.Empty(t, l.accepted("ApplyConfiguration"))

	// Somebody says of each machine that it is new. Its config alone bootstraps nothing.
	for _, node := range l.farm.Nodes() {
		file := "clusters/prod/machines/" + node.Name() + ".yaml"
		_, after, _ := strings.Cut(string(l.fleet.files[file].Data), "at: ")
		before, _, _ := strings.Cut(after, ",")
		l.fleet.write(file, replaceOnce(t, string(l.fleet.files[file].Data), before, time.Now().UTC().Format(time.RFC3339)))
	}
	l.source.push(l.fleet.files)
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = client.Close() })
	waiting := func(r Report) bool {
		for _, node := range l.farm.Nodes() {
			seen := client.Observe(t.Context(), talos.Target{Name: node.Name(), Endpoint: node.Address(), ControlPlane: true})
			if seen.Mode != talos.ModeConfigured || seen.Etcd.Data != talos.No || seen.Discovery == nil {
				return false
			}
		}
		return len(r.Clusters) > 0 && r.Clusters[0].Ready.Reason == "NotBootstrapped"
	}
	require.True(t, waiting(l.run(config("agent-1"), waiting)))
	require.Empty(t, l.accepted("Bootstrap"))

	l.push("ordinary", "ichor-operation@prod", bootstrapBody("cp-2", l.uuid("cp-2"), "prod"))
	l.push("other-uuid", "ichor-override@prod", bootstrapBody("cp-2", l.uuid("cp-3"), "prod"))
	l.push("other-name", "ichor-override@prod", bootstrapBody("cp-2", l.uuid("cp-2"), "staging"))
	l.fleet.write("operations/unsigned.yaml", operationText("unsigned", l.id(), l.clock.Now().Add(-time.Minute), time.Hour, bootstrapBody("cp-2", l.uuid("cp-2"), "prod")))
	l.source.push(l.fleet.files)
	report = l.run(config("agent-2"), func(r Report) bool { return len(refusedOperations(r)) == 4 })
	require.Equal(t, map[string]string{"ordinary": "NamespaceWrong", "other-name": "Malformed", "other-uuid": "TargetDiffers", "unsigned": "SignatureMissing"}, refusedOperations(report))
	require.Empty(t, l.accepted("Bootstrap"))

	l.push("begin", "ichor-override@prod", bootstrapBody("cp-2", l.uuid("cp-2"), "prod"))
	patient := config("agent-3")
	patient.Timing.Patience = ample
	report = l.run(patient, func(r Report) bool { return inPhase("begin", statefile.OperationCompleted)(r) && allReady(r) })
	require.True(t, allReady(report), "%+v", report.Problems())
	require.Equal(t, map[string]int{"cp-2": 1}, l.accepted("Bootstrap"))

	l.push("again", "ichor-override@prod", bootstrapBody("cp-3", l.uuid("cp-3"), "prod"))
	report = l.run(config("agent-4"), inPhase("again", statefile.OperationPaused))
	require.Contains(t, operationNamed(report.Clusters[0].State, "again").FailureReason, "the etcd of this cluster runs since ")
	require.Equal(t, map[string]int{"cp-2": 1}, l.accepted("Bootstrap"))
}
