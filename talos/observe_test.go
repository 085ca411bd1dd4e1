package talos

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

func fixedClock(now time.Time) *clocktesting.FakePassiveClock {
	return clocktesting.NewFakePassiveClock(now)
}

func TestAConfiguredMachineIsSeenWhole(t *testing.T) {
	n := configuredNode(t)
	rendered := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	staged := render(t, testCluster(), testMachine("cp-1"), RenderOptions{StateAnnotation: "x"})
	n.setConfigs(rendered.Config, staged.Config)
	n.setEphemeral(block.VolumePhaseReady, true)
	hostname := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	hostname.TypedSpec().Hostname = "cp-1\x1b[31m"
	n.put(hostname)
	addresses := network.NewNodeAddress(network.NamespaceName, network.NodeAddressCurrentID)
	addresses.TypedSpec().Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.11/24")}
	n.put(addresses)
	kind := configres.NewMachineType()
	kind.SetMachineType(machine.TypeControlPlane)
	n.put(kind)
	node := k8s.NewNodeStatus(k8s.NamespaceName, "cp-1")
	node.TypedSpec().NodeReady = true
	n.put(node)
	member := cluster.NewMember(cluster.NamespaceName, "cp-2")
	member.TypedSpec().Hostname, member.TypedSpec().MachineType = "cp-2", machine.TypeControlPlane
	member.TypedSpec().Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.12")}
	n.put(member)

	now := time.Now()
	client := testClient(t)
	client.clock = fixedClock(now)
	o := client.Observe(soon(t), n.target)
	require.Empty(t, o.Problem)
	require.Equal(t, now, o.At)
	require.Equal(t, ModeConfigured, o.Mode)
	require.Empty(t, o.Fingerprint)
	require.Equal(t, testUUID, o.UUID)
	require.Equal(t, n.bootID, o.BootID)
	require.Equal(t, "running", o.Stage)
	require.True(t, o.Ready)
	require.Equal(t, "cp-1", o.Hostname)
	require.Equal(t, []string{"10.0.0.11"}, o.Addresses)
	require.Equal(t, "v1.13.6", o.TalosVersion)
	require.Equal(t, "controlplane", o.MachineType)
	require.Equal(t, rendered.Digest, o.ActiveDigest)
	require.Equal(t, staged.Digest, o.PersistentDigest)
	require.Equal(t, Yes, o.EphemeralMounted)
	require.Equal(t, Yes, o.NodeReady)
	require.Equal(t, No, o.Unschedulable)
	require.Equal(t, []DiscoveredMember{{Name: "cp-2", Addresses: []string{"10.0.0.12"}, MachineType: "controlplane"}}, o.Discovery)
	require.Equal(t, Yes, o.Etcd.Data)
	require.Equal(t, "Running", o.Etcd.Service)
	require.Equal(t, Yes, o.Etcd.ServiceHealthy)
	require.EqualValues(t, 1, o.Etcd.MemberID)
	require.Len(t, o.Etcd.Members, 2)
	require.Empty(t, o.Etcd.MembersProblem)
	require.Equal(t, Unknown, o.Services[1].Healthy, "a service without a check is neither healthy nor not")

	admin := map[string]bool{}
	for _, call := range n.seen() {
		if call.roles[0] == "os:admin" {
			admin[call.method] = true
		}
	}
	require.Equal(t, map[string]bool{"/machine.MachineService/Read": true, "/cosi.resource.State/Get": true}, admin, "os:admin is for config and boot ID only")
	for _, call := range n.seen() {
		require.Contains(t, []string{"os:reader", "os:admin"}, call.roles[0])
	}
}

func TestAMachineInMaintenanceIsSeenWithItsDisks(t *testing.T) {
	n := maintenanceNode(t)
	for name, size := range map[string]uint64{"sda": 10 << 30, "nvme0n1": 20 << 30} {
		disk := block.NewDisk(block.NamespaceName, name)
		disk.TypedSpec().DevPath, disk.TypedSpec().Size, disk.TypedSpec().Model = "/dev/"+name, size, "Disk\x07"
		n.put(disk)
	}
	partition := block.NewDiscoveredVolume(block.NamespaceName, "sda1")
	partition.TypedSpec().DevPath, partition.TypedSpec().Parent, partition.TypedSpec().ParentDevPath = "/dev/sda1", "sda", "/dev/sda"
	partition.TypedSpec().PartitionLabel, partition.TypedSpec().Name = "EPHEMERAL", "xfs"
	n.put(partition)
	whole := block.NewDiscoveredVolume(block.NamespaceName, "nvme0n1")
	whole.TypedSpec().DevPath = "/dev/nvme0n1"
	n.put(whole)

	o := testClient(t).Observe(soon(t), n.target)
	require.Empty(t, o.Problem)
	require.Equal(t, ModeMaintenance, o.Mode)
	require.Len(t, o.Fingerprint, 44)
	require.Equal(t, testUUID, o.UUID)
	require.Empty(t, o.BootID)
	require.Nil(t, o.Active)
	require.Equal(t, "maintenance", o.Stage)
	require.Equal(t, Unknown, o.Etcd.Data, "maintenance says nothing about data")
	require.Equal(t, []Disk{
		{Path: "/dev/nvme0n1", Size: 20 << 30, Model: "Disk"},
		{Path: "/dev/sda", Size: 10 << 30, Model: "Disk", Contents: []string{"partition EPHEMERAL xfs"}},
	}, o.Disks)
	for _, call := range n.seen() {
		require.Empty(t, call.roles, "no certificate is shown to a machine that nothing authenticates")
	}
}

func TestADeadEtcdCostsItsDeadlineAndNoMore(t *testing.T) {
	n := configuredNode(t)
	hang := func(ctx context.Context) error { <-ctx.Done(); return status.FromContextError(ctx.Err()).Err() }
	n.members = func(ctx context.Context) (*machineapi.EtcdMemberListResponse, error) { return nil, hang(ctx) }
	n.etcdStatus = func(ctx context.Context) (*machineapi.EtcdStatusResponse, error) { return nil, hang(ctx) }
	client := testClient(t)
	client.limits.etcd = 200 * time.Millisecond
	o := client.Observe(soon(t), n.target)
	require.Empty(t, o.Problem, "that etcd does not answer is a fact about etcd")
	require.Nil(t, o.Etcd.Members)
	require.Contains(t, o.Etcd.MembersProblem, "no answer in time")
	require.Zero(t, o.Etcd.MemberID)
	require.Equal(t, "Running", o.Etcd.Service)
	require.Equal(t, n.bootID, o.BootID)
	accepted := n.accepted.Load()
	client.Observe(soon(t), n.target)
	require.Equal(t, accepted, n.accepted.Load(), "the connection is not blamed for a dead etcd")
}

func TestAMachineThatNeverAnswersCostsTheLimit(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.40.4:0")
	require.NoError(t, err)
	defer listener.Close()
	client := testClient(t)
	client.limits.dial, client.limits.all = 150*time.Millisecond, 400*time.Millisecond
	begun := time.Now()
	o := client.Observe(context.Background(), Target{Name: "w-1", Endpoint: listener.Addr().String()})
	require.Less(t, time.Since(begun), soonLimit)
	require.Equal(t, "w-1 can't be reached at "+listener.Addr().String()+": no answer in time", o.Problem)
	require.LessOrEqual(t, defaultLimits.all, 15*time.Second)
	require.LessOrEqual(t, defaultLimits.etcd, 10*time.Second)
}

func TestConnectionsAreKeptBetweenLooksAndMadeAnewWhenTheyBroke(t *testing.T) {
	n := configuredNode(t)
	client := testClient(t)
	for range 5 {
		require.Empty(t, client.Observe(soon(t), n.target).Problem)
	}
	require.EqualValues(t, 2, n.accepted.Load(), "one for os:reader, one for os:admin")
	n.restart()
	o := client.Observe(soon(t), n.target)
	require.Empty(t, o.Problem, "a connection that died between two looks is no problem of the machine")
	require.Equal(t, n.bootID, o.BootID)
	require.EqualValues(t, 4, n.accepted.Load())
}

func TestAMachineThatLeftMaintenanceIsSeenAsConfigured(t *testing.T) {
	n := maintenanceNode(t)
	client := testClient(t)
	require.Equal(t, ModeMaintenance, client.Observe(soon(t), n.target).Mode)
	n.tls = configuredNode(t).tls
	n.setStage("booting", false)
	n.restart()
	o := client.Observe(soon(t), n.target)
	require.Equal(t, ModeConfigured, o.Mode)
	require.Equal(t, "booting", o.Stage)
}

func TestWhatCannotBeReadIsUnknownAndSaid(t *testing.T) {
	n := configuredNode(t)
	n.serviceReply = &machineapi.ServiceListResponse{}
	n.bootID = "???"
	n.members = func(context.Context) (*machineapi.EtcdMemberListResponse, error) {
		return nil, status.Error(codes.Unknown, "etcdserver: no leader "+testBundle().secrets.Cluster.Secret)
	}
	o := testClient(t).Observe(soon(t), n.target)
	require.Equal(t, ModeConfigured, o.Mode)
	require.Equal(t, testUUID, o.UUID, "the rest is read")
	require.Empty(t, o.BootID)
	require.Nil(t, o.Services)
	require.Contains(t, o.Problem, "cp-1: reading its services: the node sent 0 messages")
	require.Contains(t, o.Problem, "cp-1: reading its boot ID")
	require.Contains(t, o.Etcd.MembersProblem, "etcdserver: no leader")
	requireNoSecret(t, o.Etcd.MembersProblem)
}

func TestALookThatIsStoppedEndsAtOnce(t *testing.T) {
	n := configuredNode(t)
	stopped := make(chan struct{})
	n.members = func(ctx context.Context) (*machineapi.EtcdMemberListResponse, error) {
		close(stopped)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-stopped; cancel() }()
	begun := time.Now()
	testClient(t).Observe(ctx, n.target)
	require.Less(t, time.Since(begun), soonLimit, "it waits for no limit")
}

func TestWhatIsReadAcrossTwoBootsIsNotPutTogether(t *testing.T) {
	n := configuredNode(t)
	restarted := make(chan struct{})
	n.members = func(context.Context) (*machineapi.EtcdMemberListResponse, error) {
		go func() { n.restart(); close(restarted) }()
		<-restarted
		return nil, status.Error(codes.Unknown, "too late to matter")
	}
	client := testClient(t)
	o := client.Observe(soon(t), n.target)
	require.Equal(t, ModeUnknown, o.Mode)
	require.Empty(t, o.BootID)
	require.Empty(t, o.UUID)
	require.Equal(t, "it went away while it was looked at: cp-1: reading its stage: the connection broke", o.Problem)
	<-restarted
	n.members = nil
	require.Empty(t, client.Observe(soon(t), n.target).Problem)
}

func TestAnUnreadableConfigIsNotQuoted(t *testing.T) {
	n := configuredNode(t)
	n.setConfigs(render(t, testCluster(), testMachine("cp-1"), RenderOptions{}).Config, &rawConfig{text: []byte("machine:\n  futureField: canary-value\n")})
	o := testClient(t).Observe(soon(t), n.target)
	require.NotEmpty(t, o.ActiveDigest)
	require.Empty(t, o.PersistentDigest)
	require.Contains(t, o.Problem, "a config that this program can't read")
	require.False(t, strings.Contains(o.Problem, "canary"))
}

func BenchmarkObserveOverKeptConnections(b *testing.B) {
	n := configuredNode(b)
	n.setConfigs(render(b, testCluster(), testMachine("cp-1"), RenderOptions{}).Config, render(b, testCluster(), testMachine("cp-1"), RenderOptions{}).Config)
	client := NewClient(testBundle(), ClientOptions{})
	defer client.Close()
	b.ReportAllocs()
	for b.Loop() {
		client.Observe(context.Background(), n.target)
	}
}
