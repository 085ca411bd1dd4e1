package talos_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// rig is simulated machines and what Ichor knows of them.
type rig struct {
	t       *testing.T
	farm    *talossim.Farm
	bundle  *talos.Bundle
	client  *talos.Client
	cluster *schema.TalosCluster
}

func newRig(t *testing.T, first string, controlPlanes, workers int) *rig {
	t.Helper()
	farm, err := talossim.Start(t.Context(), talossim.Options{Dir: t.TempDir(), First: first, ControlPlanes: controlPlanes, Workers: workers, TimeScale: 30})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, farm.Close()) })
	bundle, err := talos.GenerateBundle("v1.13")
	require.NoError(t, err)
	client := talos.NewClient(bundle, talos.ClientOptions{Scrubber: scrub.New()})
	t.Cleanup(func() { client.Close() })
	return &rig{t: t, farm: farm, bundle: bundle, client: client, cluster: &schema.TalosCluster{
		Metadata: schema.ObjectMeta{Name: "sim"},
		Spec: schema.ClusterSpec{
			Endpoint: "https://" + first + ":6443", TalosVersion: "v1.13.6", KubernetesVersion: "v1.36.2",
			ControlPlane: schema.ControlPlaneSpec{Count: controlPlanes}, Install: schema.InstallSpec{Disk: "/dev/sda"},
		},
	}}
}

func (r *rig) target(n *talossim.Node) talos.Target {
	return talos.Target{Name: n.Name(), Endpoint: n.Address(), ControlPlane: n.Role() == talossim.ControlPlane}
}

func (r *rig) render(n *talossim.Node, patches ...map[string]any) *talos.Rendered {
	r.t.Helper()
	machine := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: n.Name()}, Spec: schema.MachineSpec{
		Role: schema.Role(n.Role()), Endpoint: n.Address(), UUID: n.UUID(), Hostname: n.Name(), Approved: true,
	}}
	for _, patch := range patches {
		machine.Spec.Patches = append(machine.Spec.Patches, schema.Patch{Inline: patch})
	}
	rendered, err := talos.Render(r.cluster, machine, r.bundle, talos.RenderOptions{StateAnnotation: "test"})
	require.NoError(r.t, err)
	return rendered
}

// seen looks until what is seen satisfies the test.
func (r *rig) seen(n *talossim.Node, what string, satisfied func(talos.Observation) bool) talos.Observation {
	r.t.Helper()
	var last talos.Observation
	require.Eventually(r.t, func() bool {
		last = r.client.Observe(r.t.Context(), r.target(n))
		return satisfied(last)
	}, 3*time.Minute, 20*time.Millisecond, "%s: %s; last seen: mode %q, stage %q, data %d, etcd %q, %s", n.Name(), what, last.Mode, last.Stage, last.Etcd.Data, last.Etcd.Service, last.Problem)
	return last
}

func (r *rig) soon() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), 3*time.Minute)
	r.t.Cleanup(cancel)
	return ctx
}

// session dials until the machine answers.
func (r *rig) session(n *talossim.Node) *talos.Session {
	r.t.Helper()
	var session *talos.Session
	require.Eventually(r.t, func() bool {
		var err error
		session, err = r.client.Dial(r.soon(), r.target(n), talos.RoleAdmin)
		return err == nil
	}, 3*time.Minute, 20*time.Millisecond)
	r.t.Cleanup(func() { session.Close() })
	return session
}

func (r *rig) configure(n *talossim.Node, rendered *talos.Rendered) {
	r.t.Helper()
	o := r.seen(n, "waits in maintenance", func(o talos.Observation) bool { return o.Mode == talos.ModeMaintenance && o.Problem == "" })
	session, err := r.client.DialMaintenance(r.soon(), r.target(n), o.Fingerprint)
	require.NoError(r.t, err)
	defer session.Close()
	uuid, err := session.UUID(r.soon())
	require.NoError(r.t, err)
	require.Equal(r.t, n.UUID(), uuid)
	require.NoError(r.t, session.ApplyConfig(r.soon(), talos.ApplyRequest{Config: rendered.Bytes, Mode: talos.ApplyNoReboot}))
}

func TestASimulatedMachineFromNothingToEtcdAndBack(t *testing.T) {
	r := newRig(t, "127.0.40.11", 1, 0)
	n := r.farm.Nodes()[0]
	o := r.seen(n, "waits in maintenance", func(o talos.Observation) bool { return o.Mode == talos.ModeMaintenance && o.Problem == "" })
	require.Equal(t, n.UUID(), o.UUID)
	require.Len(t, o.Fingerprint, 44)
	require.Equal(t, "maintenance", o.Stage)
	require.NotEmpty(t, o.Disks)
	require.Empty(t, o.Disks[0].Contents)
	require.Equal(t, talos.Unknown, o.Etcd.Data, "no such file in maintenance says nothing")

	rendered := r.render(n)
	r.configure(n, rendered)
	o = r.seen(n, "is configured, and has no data", func(o talos.Observation) bool { return o.Mode == talos.ModeConfigured && o.Etcd.Data == talos.No })
	require.Equal(t, "booting", o.Stage)
	require.Equal(t, rendered.Digest, o.ActiveDigest)
	require.Empty(t, o.PersistentDigest, "a machine that booted from its disk shows no stored config")
	require.Equal(t, n.BootID(), o.BootID)
	require.Equal(t, n.Name(), o.Hostname)
	require.Equal(t, "controlplane", o.MachineType)
	require.Equal(t, "test", talos.StateAnnotationOf(o.Active))

	require.Eventually(t, func() bool { return r.session(n).Bootstrap(r.soon()) == nil }, 3*time.Minute, 50*time.Millisecond)
	o = r.seen(n, "has joined", func(o talos.Observation) bool {
		return o.Etcd.Data == talos.Yes && len(o.Etcd.Members) == 1 && o.Etcd.ServiceHealthy == talos.Yes && o.Stage == "running" && o.Ready
	})
	require.Equal(t, o.Etcd.MemberID, o.Etcd.Members[0].ID)
	require.Equal(t, n.Name(), o.Etcd.Members[0].Name)
	require.Equal(t, o.Etcd.MemberID, o.Etcd.Leader)

	err := r.session(n).Bootstrap(r.soon())
	require.ErrorContains(t, err, "etcd data directory is not empty")
	require.Equal(t, talos.OutcomeUnknown, talos.Classify(err), "AlreadyExists means: look")

	// A reset of EPHEMERAL is over when the boot is another one and the data is gone.
	before := o.BootID
	require.NoError(t, r.session(n).Reset(r.soon(), talos.ResetRequest{Partitions: []string{"EPHEMERAL"}, Reboot: true}))
	o = r.seen(n, "came back without data", func(o talos.Observation) bool {
		return o.BootID != "" && o.BootID != before && o.Etcd.Data == talos.No
	})
	require.Equal(t, rendered.Digest, o.ActiveDigest, "the config stays")
}

func TestConfigsTravelAsTheirModeSays(t *testing.T) {
	r := newRig(t, "127.0.40.21", 1, 0)
	n := r.farm.Nodes()[0]
	first := r.render(n)
	r.configure(n, first)
	r.seen(n, "runs the first config", func(o talos.Observation) bool { return o.ActiveDigest == first.Digest && o.Etcd.Data == talos.No })
	live := r.render(n, map[string]any{"machine": map[string]any{"sysctls": map[string]any{"vm.overcommit_memory": "1"}}})
	reboot, _, err := talos.NeedsReboot(first.Config, live.Config)
	require.NoError(t, err)
	require.False(t, reboot)

	session := r.session(n)
	require.NoError(t, session.ApplyConfig(r.soon(), talos.ApplyRequest{Config: live.Bytes, Mode: talos.ApplyTry, TryFor: time.Hour}))
	o := r.seen(n, "tries it", func(o talos.Observation) bool { return o.ActiveDigest == live.Digest })
	require.Empty(t, o.PersistentDigest, "a tried config is not kept")
	require.NoError(t, session.ApplyConfig(r.soon(), talos.ApplyRequest{Config: live.Bytes, Mode: talos.ApplyNoReboot}))
	r.seen(n, "keeps it", func(o talos.Observation) bool {
		return o.ActiveDigest == live.Digest && o.PersistentDigest == live.Digest
	})

	slow := r.render(n, map[string]any{"machine": map[string]any{"env": map[string]any{"SECRET": "canary-in-the-diff"}}})
	reboot, because, err := talos.NeedsReboot(live.Config, slow.Config)
	require.NoError(t, err)
	require.True(t, reboot)
	require.Equal(t, []string{"machine.env"}, because)
	err = session.ApplyConfig(r.soon(), talos.ApplyRequest{Config: slow.Bytes, Mode: talos.ApplyNoReboot})
	require.ErrorContains(t, err, "immediate mode")
	require.NotContains(t, err.Error(), "canary")
	require.Equal(t, talos.OutcomeRefused, talos.Classify(err))
	require.NoError(t, session.ApplyConfig(r.soon(), talos.ApplyRequest{Config: slow.Bytes, Mode: talos.ApplyStaged}))
	o = r.seen(n, "has it staged", func(o talos.Observation) bool { return o.PersistentDigest == slow.Digest })
	require.Equal(t, live.Digest, o.ActiveDigest)

	require.NoError(t, session.Reboot(r.soon(), talos.RebootDefault))
	r.seen(n, "booted into it", func(o talos.Observation) bool {
		return o.ActiveDigest == slow.Digest && o.PersistentDigest == ""
	})
	_, err = session.BootID(r.soon())
	require.Error(t, err, "the session ended with the boot it was made for")
}

func TestAMachineThatIsCutOffIsUnknownAndSeenAgainLater(t *testing.T) {
	r := newRig(t, "127.0.40.31", 1, 1)
	cp, worker := r.farm.Node("cp-1"), r.farm.Node("w-1")
	r.configure(cp, r.render(cp))
	r.configure(worker, r.render(worker))
	r.seen(cp, "is configured", func(o talos.Observation) bool { return o.Mode == talos.ModeConfigured && o.Problem == "" })
	o := r.seen(worker, "is configured", func(o talos.Observation) bool { return o.Mode == talos.ModeConfigured && o.Problem == "" })
	require.Equal(t, "worker", o.MachineType)
	require.Equal(t, talos.Unknown, o.Etcd.Data, "a worker's etcd is not asked for")
	require.Empty(t, o.Etcd.MembersProblem)

	require.NoError(t, cp.PowerOff())
	o = r.client.Observe(t.Context(), r.target(cp))
	require.Equal(t, talos.ModeUnknown, o.Mode)
	require.Contains(t, o.Problem, "cp-1")
	cp.PowerOn()
	r.seen(cp, "is back", func(o talos.Observation) bool { return o.Mode == talos.ModeConfigured && o.BootID == cp.BootID() })
}
