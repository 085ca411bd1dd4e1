package talos

import (
	"context"
	"runtime"
	"strings"
	"testing"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"

	"ichor.maesh.dev/internal/scrub"
)

// allocated is how many bytes run asks for; the node that a test talks to is in this process too, and counts.
func allocated(run func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// endless sends one resource again and again.
type endless struct {
	cosiv1alpha1.UnimplementedStateServer
	resource *cosiv1alpha1.Resource
}

func (e *endless) List(_ *cosiv1alpha1.ListRequest, stream grpc.ServerStreamingServer[cosiv1alpha1.ListResponse]) error {
	for {
		if err := stream.Send(&cosiv1alpha1.ListResponse{Resource: e.resource}); err != nil {
			return err
		}
	}
}

// What is small on the wire and large in memory is refused before it is decoded: a machine that was broken into must not take the agent of
// all clusters down.
func TestAReplyThatWouldGrowInMemoryIsRefused(t *testing.T) {
	const little = 200 << 20
	many := 4_000_000 // empty parts, of two bytes each
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)

	t.Run("millions of services", func(t *testing.T) {
		services := make([]*machineapi.ServiceInfo, many)
		for at, one := 0, (&machineapi.ServiceInfo{}); at < many; at++ {
			services[at] = one
		}
		n.serviceReply = &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{{Services: services}}}
		used := allocated(func() {
			_, err := session.Services(soon(t))
			require.ErrorContains(t, err, "it holds more than 50000 values")
		})
		t.Logf("%d MiB", used>>20)
		require.Less(t, used, uint64(little))
	})
	t.Run("millions of etcd members", func(t *testing.T) {
		members := make([]*machineapi.EtcdMember, many)
		for at, one := 0, (&machineapi.EtcdMember{}); at < many; at++ {
			members[at] = one
		}
		n.members = func(context.Context) (*machineapi.EtcdMemberListResponse, error) {
			return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{Members: members}}}, nil
		}
		_, err := session.Members(soon(t))
		require.ErrorContains(t, err, "it holds more than 50000 values")
		require.Equal(t, OutcomeUnknown, Classify(err), "nothing is proved by it")
	})
	t.Run("a config of millions of lists", func(t *testing.T) {
		for name, text := range map[string]string{
			"in brackets": "machine:\n  a: [" + strings.Repeat("[],", 1_200_000) + "\n",
			"by dashes":   "machine:\n" + strings.Repeat(strings.Repeat("- ", 9_000)+"a\n", 200),
		} {
			rendered := &rawConfig{text: []byte(text)}
			n.setConfigs(rendered, rendered)
			used := allocated(func() {
				_, _, err := session.Configs(soon(t))
				require.ErrorContains(t, err, "it holds a config with more than 300000 names and values", name)
			})
			t.Logf("%s: %d MiB", name, used>>20)
			require.Less(t, used, uint64(little), name)
		}
	})
	t.Run("a config of a cluster with many manifests in it is read", func(t *testing.T) {
		manifest := "    - name: a\n      contents: |\n" + strings.Repeat("        key: \"value\" # and - a - text: [x]\n", 50)
		text := "machine:\n  type: controlplane\ncluster:\n  inlineManifests:\n" + strings.Repeat(manifest, 400)
		_, err := configloader.NewFromBytes([]byte(text))
		require.NoError(t, err)
		require.Greater(t, len(text), 800_000)
		loaded := &rawConfig{text: []byte(text)}
		n.setConfigs(loaded, loaded)
		_, _, err = session.Configs(soon(t))
		require.NoError(t, err)
	})
}

// A resource may be small where its size was looked for, and large beside it.
func TestAnEndlessListIsCutOffByAllThatItHolds(t *testing.T) {
	for name, resource := range map[string]*cosiv1alpha1.Resource{
		"labels": {Metadata: &cosiv1alpha1.Metadata{Namespace: "network", Type: network.AddressStatusType, Id: "x", Version: "1", Phase: "running",
			Labels: map[string]string{"x": strings.Repeat("vendor ", 150_000)}}, Spec: &cosiv1alpha1.Spec{}},
		"nothing at all": {Metadata: &cosiv1alpha1.Metadata{Namespace: "network", Type: network.AddressStatusType, Id: "x", Version: "1", Phase: "running"}, Spec: &cosiv1alpha1.Spec{}},
	} {
		t.Run(name, func(t *testing.T) {
			n := configuredNode(t)
			n.server.Stop()
			n.states = &endless{resource: resource}
			n.restart()
			session := dialed(t, n, RoleReader)
			used := allocated(func() {
				_, err := list[*network.AddressStatus](soon(t), session.state, "network", network.AddressStatusType)
				require.ErrorContains(t, err, "the node lists more than")
			})
			t.Logf("%d MiB", used>>20)
			require.Less(t, used, uint64(200<<20))
		})
	}
}

// FuzzWhatANodeSays reads anything as a node's error. Nothing from where Talos may quote a config on is let through, in whatever letters.
func FuzzWhatANodeSays(f *testing.F) {
	for _, text := range []string{"can't be applied\ndiff:\n--- a\n", "İİİİİİİİ DIFF: x", "K\u212aK Config Diff x", "\x1b[2J\xff--- A", "", "+++ B"} {
		f.Add(text)
	}
	scrubber := scrub.New()
	f.Fuzz(func(t *testing.T, text string) {
		const canary = "canary"
		if strings.Contains(text, canary) {
			return
		}
		for _, mark := range []string{"diff:", "DIFF:", "config diff", "--- a", "+++ B"} {
			said := nodeText(scrubber, status.Error(codes.Unknown, text+mark+canary))
			require.NotContains(t, said, canary)
			require.NotContains(t, said, "\x1b")
			require.Less(t, len(said), 2000)
		}
	})
}

// FuzzReply decodes anything as the replies and resources that are read of a node: a resource is what was asked for, or an error, and what is
// decoded holds no more than was counted. Nothing panics.
func FuzzReply(f *testing.F) {
	codec := newBoundedCodec()
	for _, seed := range []any{
		&machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{{Services: []*machineapi.ServiceInfo{{Id: "etcd", Events: &machineapi.ServiceEvents{Events: []*machineapi.ServiceEvent{{State: "Running"}}}}}}}},
		&machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{Metadata: &common.Metadata{Error: "x"}, Members: []*machineapi.EtcdMember{{Id: 1}}}}},
		&cosiv1alpha1.GetResponse{Resource: &cosiv1alpha1.Resource{Metadata: &cosiv1alpha1.Metadata{Namespace: "network", Type: network.HostnameStatusType, Id: "hostname",
			Version: "1", Phase: "running", Created: nil}, Spec: &cosiv1alpha1.Spec{ProtoSpec: []byte("\x0a\x01x")}}},
	} {
		data, err := codec.Marshal(seed)
		require.NoError(f, err)
		f.Add(data.Materialize())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n := &fixedReply{data: data}
		client := machineapi.NewMachineServiceClient(n)
		session := &Session{scrubber: scrub.New(), machine: client, state: cosiv1alpha1.NewStateClient(n)}
		ctx := context.Background()
		_, _ = session.services(ctx)
		_, _ = session.members(ctx)
		_, _ = session.alarms(ctx)
		_ = session.etcdStatus(ctx, &EtcdObservation{})
		_, _ = session.stage(ctx)
		_, _ = session.uuid(ctx)
		if known, err := session.readConfig(ctx, "v1alpha1"); err == nil && known.provider != nil {
			require.NotEmpty(t, known.digest)
		}
		for _, read := range []func(context.Context) (func(*Observation), error){session.readVersion, session.readHostname, session.readAddresses, session.readType} {
			if apply, err := read(ctx); err == nil {
				apply(&Observation{})
			}
		}
	})
}

// fixedReply answers each call with the same bytes.
type fixedReply struct {
	grpc.ClientConnInterface
	data []byte
}

func (r *fixedReply) Invoke(_ context.Context, _ string, _, into any, _ ...grpc.CallOption) error {
	return newBoundedCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(r.data)}, into)
}
