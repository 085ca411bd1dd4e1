package kubetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/test/kube/harness"
)

// startFarm starts simulated machines, configures and bootstraps them, and runs Kubernetes on them.
func startFarm(t *testing.T, first, endpoint string, controlPlanes, workers int) (*world, *talossim.Farm) {
	t.Helper()
	w := withSecrets(t)
	farm, err := talossim.Start(t.Context(), talossim.Options{Dir: t.TempDir(), First: first, ControlPlanes: controlPlanes, Workers: workers, TimeScale: 20, LooseMembership: true, ForeignKubernetes: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, farm.Close()) })
	client := talos.NewClient(w.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = client.Close() })
	cluster := &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}, Spec: schema.ClusterSpec{
		Endpoint: "https://" + endpoint + ":6443", TalosVersion: "v1.13.6", KubernetesVersion: "v1.36.2", Contract: "v1.13",
		ControlPlane: schema.ControlPlaneSpec{Count: controlPlanes}, Install: schema.InstallSpec{Disk: "/dev/sda"},
	}}
	for _, node := range farm.Nodes() {
		configure(t, client, cluster, node, w.bundle)
		if node.Role() == talossim.ControlPlane {
			w.servers = append(w.servers, node.Address())
		}
	}
	w.servers = append(w.servers, cluster.Spec.Endpoint)
	target := talos.Target{Name: farm.Nodes()[0].Name(), Endpoint: farm.Nodes()[0].Address(), ControlPlane: true}
	harness.Eventually(t, "the bootstrap", func() error {
		return dialled(t, client, target, talos.RoleAdmin, func(s *talos.Session) error { return s.Bootstrap(within(t)) })
	})
	w.api = harness.StartSimulated(t, farm, w.secrets, endpoint).API
	harness.Eventually(t, "every control plane has joined etcd", func() error { return joined(t, client, target, controlPlanes) })
	for _, server := range w.servers {
		harness.Eventually(t, server+" is ready", func() error { return w.client(t, server).Ready(within(t)) })
	}
	return w, farm
}

// dialled does something over a connection of its own to a machine.
func dialled(t *testing.T, client *talos.Client, target talos.Target, role talos.Role, do func(*talos.Session) error) error {
	t.Helper()
	session, err := client.Dial(within(t), target, role)
	if err != nil {
		return err
	}
	defer session.Close() //nolint:errcheck // what it was for is done
	return do(session)
}

// joined says whether etcd has so many started voters.
func joined(t *testing.T, client *talos.Client, target talos.Target, count int) error {
	return dialled(t, client, target, talos.RoleReader, func(s *talos.Session) error {
		members, err := s.Members(within(t))
		if err == nil && (len(members) != count || slices.ContainsFunc(members, func(m talos.EtcdMember) bool { return m.Learner || m.Name == "" })) {
			err = fmt.Errorf("members %+v", members)
		}
		return err
	})
}

// configure gives a machine in maintenance mode its first config.
func configure(t *testing.T, client *talos.Client, cluster *schema.TalosCluster, node *talossim.Node, bundle *talos.Bundle) {
	t.Helper()
	machine := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: node.Name()}, Spec: schema.MachineSpec{
		ClusterRef: schema.ClusterRef{Name: "prod"}, Role: schema.Role(node.Role()), Endpoint: node.Address(), UUID: node.UUID(), Hostname: node.Name(), Approved: true,
	}}
	rendered, err := talos.Render(cluster, machine, bundle, talos.RenderOptions{})
	require.NoError(t, err)
	target := talos.Target{Name: node.Name(), Endpoint: node.Address()}
	harness.Eventually(t, node.Name()+" takes its config", func() error {
		seen := client.Observe(within(t), target)
		if seen.Mode != talos.ModeMaintenance {
			return errors.New(seen.Problem)
		}
		session, err := client.DialMaintenance(within(t), target, seen.Fingerprint)
		if err != nil {
			return err
		}
		defer session.Close() //nolint:errcheck // one call
		return session.ApplyConfig(within(t), talos.ApplyRequest{Config: rendered.Bytes, Mode: talos.ApplyNoReboot})
	})
}

// find gives a node by name, or an error.
func find(ctx context.Context, client *kube.Client, name string) (kube.Node, error) {
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return kube.Node{}, err
	}
	for _, node := range nodes {
		if node.Name == name {
			return node, nil
		}
	}
	return kube.Node{}, fmt.Errorf("no node %s among %d", name, len(nodes))
}

func TestKubernetesOnSimulatedMachines(t *testing.T) {
	t.Parallel()
	w, farm := startFarm(t, "127.0.75.20", "127.0.75.29", 3, 1)
	client := w.client(t)
	nodes := map[string]kube.Node{}
	for _, machine := range farm.Nodes() {
		harness.Eventually(t, machine.Name()+" is a Ready node", func() error {
			node, err := find(within(t), client, machine.Name())
			if err == nil && node.Ready != kube.Yes {
				err = errors.New(node.ReadyReason)
			}
			nodes[machine.Name()] = node
			return err
		})
		node := nodes[machine.Name()]
		require.Equal(t, machine.BootID(), node.BootID)
		require.Equal(t, machine.UUID(), node.SystemUUID)
		require.Equal(t, machine.Role() == talossim.ControlPlane, node.ControlPlane)
		require.Equal(t, machine.Role() == talossim.Worker, node.Schedulable())
	}

	// A machine that is off, and one whose cable is out: the API goes on over the others.
	require.NoError(t, farm.Node("cp-1").PowerOff())
	require.NoError(t, client.Cordon(within(t), nodes["w-1"], "op-1"))
	farm.Node("cp-1").PowerOn()
	harness.Eventually(t, "cp-1 serves again", func() error {
		return w.client(t, farm.Node("cp-1").Address()).Ready(within(t))
	})
	farm.Node("cp-2").Partition()
	lifted, err := w.client(t, farm.Node("cp-2").Address(), farm.Node("cp-1").Address()).Uncordon(within(t), nodes["w-1"], "op-1")
	require.NoError(t, err)
	require.True(t, lifted)
	farm.Node("cp-2").Heal()

	// All control planes go and come back: the same Node objects, of another boot.
	for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
		require.NoError(t, farm.Node(name).PowerOff())
	}
	harness.Eventually(t, "the API is away", func() error {
		if err := client.Ready(within(t)); !errors.Is(err, kube.ErrUnavailable) {
			return fmt.Errorf("it answers: %w", err)
		}
		return nil
	})
	for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
		farm.Node(name).PowerOn()
	}
	for _, name := range []string{"cp-1", "cp-2", "cp-3", "w-1"} {
		harness.Eventually(t, name+" is Ready in its new boot", func() error {
			node, err := find(within(t), client, name)
			if err == nil && (node.Ready != kube.Yes || node.BootID != farm.Node(name).BootID()) {
				err = fmt.Errorf("%s in boot %s: %s", node.Ready, node.BootID, node.ReadyReason)
			}
			require.True(t, err != nil || node.UID == nodes[name].UID)
			return err
		})
	}
}

// TestARebootIsDrainedFor goes through what a reboot of a worker is, with Talos's and Kubernetes's own answers.
func TestARebootIsDrainedFor(t *testing.T) {
	t.Parallel()
	w, farm := startFarm(t, "127.0.75.30", "127.0.75.39", 1, 2)
	client := w.client(t)
	w.joinPool(t, "web", "w-1")
	w.joinPool(t, "web", "w-2")
	namespace := w.namespace(t, "web")
	w.deployment(t, namespace, "web", 2)
	w.budget(t, namespace, "web", 1, 2)

	node, err := find(within(t), client, "w-1")
	require.NoError(t, err)
	require.NoError(t, client.Cordon(within(t), node, "op-1"))
	w.drain(t, node, kube.EvictOptions{}, nil)
	w.available(t, namespace, 2)
	require.Empty(t, w.podsOn(t, namespace, "w-1"))

	talosClient := talos.NewClient(w.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = talosClient.Close() })
	before := node.BootID
	require.NoError(t, dialled(t, talosClient, talos.Target{Name: "w-1", Endpoint: farm.Node("w-1").Address()}, talos.RoleOperator, func(s *talos.Session) error {
		if err := s.Reboot(within(t), talos.RebootDefault); err != nil {
			t.Logf("the reboot cut off its own answer, and is seen below: %v", err)
		}
		return nil
	}))
	harness.Eventually(t, "w-1 is Ready in a new boot", func() error {
		node, err = find(within(t), client, "w-1")
		if err == nil && (node.BootID == before || node.Ready != kube.Yes) {
			err = fmt.Errorf("%s in boot %s", node.Ready, node.BootID)
		}
		return err
	})
	require.True(t, node.Unschedulable, "a boot doesn't lift the cordon")
	lifted, err := client.Uncordon(within(t), node, "op-1")
	require.NoError(t, err)
	require.True(t, lifted)
}
