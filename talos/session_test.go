package talos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
)

func TestASessionReadsTheMachine(t *testing.T) {
	n := configuredNode(t)
	rendered := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	n.setConfigs(rendered.Config, rendered.Config)
	session := dialed(t, n, RoleAdmin)
	require.False(t, session.Maintenance())

	uuid, err := session.UUID(soon(t))
	require.NoError(t, err)
	require.Equal(t, testUUID, uuid, "in lower case, as it stands in Git")
	boot, err := session.BootID(soon(t))
	require.NoError(t, err)
	require.Equal(t, n.bootID, boot)
	stage, err := session.Stage(soon(t))
	require.NoError(t, err)
	require.Equal(t, Stage{Name: "running", Ready: true}, stage)
	active, persistent, err := session.ConfigDigests(soon(t))
	require.NoError(t, err)
	require.Equal(t, []string{rendered.Digest, rendered.Digest}, []string{active, persistent})
	members, err := session.Members(soon(t))
	require.NoError(t, err)
	require.Equal(t, []EtcdMember{{ID: 1, Name: "cp-1", PeerURLs: []string{"https://10.0.0.11:2380"}}, {ID: 2, PeerURLs: []string{"https://10.0.0.12:2380"}, Learner: true}}, members)
	for _, call := range n.seen() {
		require.Equal(t, []string{"os:admin"}, call.roles)
	}
	require.EqualValues(t, 1, n.accepted.Load(), "one connection")
}

func TestAConfigIsNeverSentInAModeThatReboots(t *testing.T) {
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)
	for _, mode := range []ApplyMode{"", "AUTO", "REBOOT", "0"} {
		err := session.ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: mode})
		require.ErrorIs(t, err, ErrNotSent)
	}
	require.ErrorIs(t, session.ApplyConfig(soon(t), ApplyRequest{Mode: ApplyTry}), ErrNotSent)
	require.Empty(t, n.seen())

	var got []*machineapi.ApplyConfigurationRequest
	n.apply = func(request *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
		got = append(got, request)
		return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{Mode: request.GetMode()}}}, nil
	}
	for _, mode := range []ApplyMode{ApplyNoReboot, ApplyStaged, ApplyTry} {
		require.NoError(t, session.ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: mode, TryFor: 2 * time.Minute}))
	}
	require.Equal(t, machineapi.ApplyConfigurationRequest_NO_REBOOT, got[0].GetMode())
	require.Equal(t, machineapi.ApplyConfigurationRequest_STAGED, got[1].GetMode())
	require.Equal(t, machineapi.ApplyConfigurationRequest_TRY, got[2].GetMode())
	require.Equal(t, 2*time.Minute, got[2].GetTryModeTimeout().AsDuration())
	require.False(t, got[2].GetDryRun())
}

func TestAMachineThatChoseAnotherModeIsNotBelieved(t *testing.T) {
	n := configuredNode(t)
	n.apply = func(*machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
		return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{Mode: machineapi.ApplyConfigurationRequest_REBOOT, ModeDetails: "canary-details"}}}, nil
	}
	err := dialed(t, n, RoleAdmin).ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: ApplyNoReboot})
	require.ErrorContains(t, err, "REBOOT")
	require.NotContains(t, err.Error(), "canary")
	require.Equal(t, OutcomeUnknown, Classify(err))
}

func TestMaintenanceTakesAFirstConfigAndNothingElse(t *testing.T) {
	n := maintenanceNode(t)
	session := dialedMaintenance(t, n)
	for name, call := range map[string]func() error{
		"bootstrap": func() error { return session.Bootstrap(soon(t)) },
		"reset":     func() error { return session.Reset(soon(t), ResetRequest{Partitions: []string{"STATE"}}) },
		"reboot":    func() error { return session.Reboot(soon(t), RebootDefault) },
		"remove":    func() error { return session.RemoveMember(soon(t), 1) },
		"upload":    func() error { return session.UploadSnapshot(soon(t), strings.NewReader("x")) },
		"recover":   func() error { return session.RecoverEtcd(soon(t)) },
		"leave":     func() error { return session.LeaveEtcd(soon(t)) },
		"stage": func() error {
			return session.ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: ApplyStaged})
		},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, call(), ErrNotSent) })
	}
	require.Empty(t, n.seen())
	data, err := session.EtcdData(soon(t))
	require.NoError(t, err)
	require.Equal(t, Unknown, data)
	active, persistent, err := session.Configs(soon(t))
	require.NoError(t, err)
	require.Nil(t, active)
	require.Nil(t, persistent)
	require.NoError(t, session.ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: ApplyNoReboot}))
}

func TestAResetNamesWhatItWipes(t *testing.T) {
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)
	for _, partitions := range [][]string{nil, {}, {""}, {"EPHEMERAL", "META"}, {"BOOT"}, {"u-data"}} {
		require.ErrorIs(t, session.Reset(soon(t), ResetRequest{Partitions: partitions, Reboot: true}), ErrNotSent)
	}
	require.Nil(t, n.lastReset)
	require.NoError(t, session.Reset(soon(t), ResetRequest{Partitions: []string{"STATE", "EPHEMERAL"}, Reboot: true}))
	require.Equal(t, machineapi.ResetRequest_SYSTEM_DISK, n.lastReset.GetMode())
	require.True(t, n.lastReset.GetReboot())
	require.False(t, n.lastReset.GetGraceful())
	require.Len(t, n.lastReset.GetSystemPartitionsToWipe(), 2)
	for _, partition := range n.lastReset.GetSystemPartitionsToWipe() {
		require.True(t, partition.GetWipe())
	}
	require.Empty(t, n.lastReset.GetUserDisksToWipe())

	require.ErrorIs(t, session.Reboot(soon(t), ""), ErrNotSent)
	require.ErrorIs(t, session.Reboot(soon(t), "FORCE"), ErrNotSent)
	require.Nil(t, n.lastReboot)
	require.NoError(t, session.Reboot(soon(t), RebootDefault))
	require.Equal(t, machineapi.RebootRequest_DEFAULT, n.lastReboot.GetMode())
	require.ErrorIs(t, session.RemoveMember(soon(t), 0), ErrNotSent)
	require.NoError(t, session.RemoveMember(soon(t), 0xabc))
	require.EqualValues(t, 0xabc, n.removed)
}

func TestWhatAnAnswerProves(t *testing.T) {
	for code, want := range map[codes.Code]Outcome{
		codes.FailedPrecondition: OutcomeRefused, codes.InvalidArgument: OutcomeRefused, codes.PermissionDenied: OutcomeRefused, codes.Unimplemented: OutcomeRefused,
		codes.AlreadyExists: OutcomeUnknown, codes.Unknown: OutcomeUnknown, codes.Unavailable: OutcomeUnknown, codes.DeadlineExceeded: OutcomeUnknown,
		codes.Canceled: OutcomeUnknown, codes.Internal: OutcomeUnknown, codes.NotFound: OutcomeUnknown, codes.ResourceExhausted: OutcomeUnknown, codes.Aborted: OutcomeUnknown,
	} {
		t.Run(code.String(), func(t *testing.T) {
			n := configuredNode(t)
			n.bootstrap = func() error { return status.Error(code, "no") }
			err := dialed(t, n, RoleAdmin).Bootstrap(soon(t))
			require.Error(t, err)
			require.Equal(t, want, Classify(err))
			require.Equal(t, want, Classify(fmt.Errorf("wrapped: %w", err)))
			require.Equal(t, code, status.Code(err))
		})
	}
	require.Equal(t, OutcomeOK, Classify(nil))
	require.Equal(t, OutcomeUnknown, Classify(errors.New("a broken pipe")))
	require.Equal(t, OutcomeUnknown, Classify(context.DeadlineExceeded))
}

func TestAnErrorInsideAMessageIsAnError(t *testing.T) {
	n := configuredNode(t)
	n.members = func(context.Context) (*machineapi.EtcdMemberListResponse, error) {
		return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{Metadata: &common.Metadata{
			Hostname: "x", Error: "rpc error", Status: &rpcstatus.Status{Code: int32(codes.FailedPrecondition), Message: "not now"},
		}}}}, nil
	}
	n.apply = func(request *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
		return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{Mode: request.GetMode(), Metadata: &common.Metadata{Error: "refused by a proxy"}}}}, nil
	}
	n.list = func(_ *machineapi.ListRequest, stream grpc.ServerStreamingServer[machineapi.FileInfo]) error {
		return stream.Send(&machineapi.FileInfo{Metadata: &common.Metadata{Error: "lstat /var/lib/etcd/member: no such file or directory"}})
	}
	session := dialed(t, n, RoleAdmin)
	_, err := session.Members(soon(t))
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	err = session.ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: ApplyTry})
	require.ErrorContains(t, err, "refused by a proxy")
	require.Equal(t, OutcomeUnknown, Classify(err))
}

func TestAReplyOfSeveralMachinesIsRefused(t *testing.T) {
	n := configuredNode(t)
	n.members = func(context.Context) (*machineapi.EtcdMemberListResponse, error) {
		return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{}, {}}}, nil
	}
	session := dialed(t, n, RoleAdmin)
	_, err := session.Members(soon(t))
	require.ErrorContains(t, err, "2 messages")
	n.members = func(context.Context) (*machineapi.EtcdMemberListResponse, error) {
		return &machineapi.EtcdMemberListResponse{}, nil
	}
	_, err = session.Members(soon(t))
	require.ErrorContains(t, err, "0 messages")
}

func TestTalosWordsThatMayQuoteAConfigDoNotLeave(t *testing.T) {
	n := configuredNode(t)
	secret := testBundle().secrets.Cluster.Secret
	n.apply = func(*machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
		return nil, status.Error(codes.InvalidArgument, "this config change can't be applied in immediate mode\ndiff:\n--- a\n+++ b\n-  content: canary-content\n+  x: "+secret)
	}
	err := dialed(t, n, RoleAdmin).ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: ApplyNoReboot})
	require.ErrorContains(t, err, "can't be applied in immediate mode")
	require.NotContains(t, err.Error(), "canary")
	requireNoSecret(t, err.Error())
	require.Equal(t, OutcomeRefused, Classify(err))

	// Letters that are longer when they are made small move nothing.
	n.apply = func(*machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
		return nil, status.Error(codes.InvalidArgument, strings.Repeat("\u0130", 60)+" Diff:\n-  content: canary-content")
	}
	err = dialed(t, n, RoleAdmin).ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: ApplyNoReboot})
	require.NotContains(t, err.Error(), "canary")

	n.apply = func(*machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
		return nil, status.Error(codes.Unknown, "\x1b[2Jtoken "+secret+strings.Repeat("x", 10_000))
	}
	err = dialed(t, n, RoleAdmin).ApplyConfig(soon(t), ApplyRequest{Config: []byte("x"), Mode: ApplyNoReboot})
	requireNoSecret(t, err.Error())
	require.NotContains(t, err.Error(), "\x1b")
	require.Less(t, len(err.Error()), 500)
}

func TestAHangingCallEndsAtItsDeadline(t *testing.T) {
	n := configuredNode(t)
	n.members = func(ctx context.Context) (*machineapi.EtcdMemberListResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	session := dialed(t, n, RoleAdmin)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := session.Members(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, OutcomeUnknown, Classify(err))
}

func TestALyingNodeIsReadWithinBounds(t *testing.T) {
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)
	n.bootID = strings.Repeat("a", 100_000)
	_, err := session.BootID(soon(t))
	require.ErrorContains(t, err, "longer than")
	n.bootID = "not a boot ID; rm -rf"
	_, err = session.BootID(soon(t))
	require.ErrorContains(t, err, "is not one")
	n.members = func(context.Context) (*machineapi.EtcdMemberListResponse, error) {
		return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{Members: []*machineapi.EtcdMember{{Hostname: strings.Repeat("x", 9<<20)}}}}}, nil
	}
	_, err = session.Members(soon(t))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestEndlessFileNamesEndTheLook(t *testing.T) {
	n := configuredNode(t)
	ended := make(chan struct{})
	n.list = func(_ *machineapi.ListRequest, stream grpc.ServerStreamingServer[machineapi.FileInfo]) error {
		defer close(ended)
		for {
			if err := stream.Send(&machineapi.FileInfo{Name: "x"}); err != nil {
				return err
			}
		}
	}
	data, err := dialed(t, n, RoleReader).EtcdData(soon(t))
	require.NoError(t, err)
	require.Equal(t, Yes, data)
	select {
	case <-ended:
	case <-time.After(3 * time.Minute):
		t.Fatal("the stream was left open")
	}
}

func TestDataIsAbsentOnlyWhereThatCanBeBelieved(t *testing.T) {
	const missing = "lstat /var/lib/etcd/member: no such file or directory"
	for _, test := range []struct {
		name    string
		stage   string
		phase   block.VolumePhase
		mounted bool
		answer  error
		want    Fact
		failed  bool
	}{
		{"running, mounted, no such file", "running", block.VolumePhaseReady, true, status.Error(codes.Unknown, missing), No, false},
		{"booting, mounted, no such file", "booting", block.VolumePhaseReady, true, status.Error(codes.Unknown, missing), No, false},
		{"running, mounted, a file", "running", block.VolumePhaseReady, true, nil, Yes, false},
		{"resetting, a file", "resetting", block.VolumePhaseClosed, false, nil, Yes, false},
		{"not mounted yet", "booting", block.VolumePhaseReady, false, status.Error(codes.Unknown, missing), Unknown, false},
		{"not located yet", "booting", block.VolumePhaseWaiting, true, status.Error(codes.Unknown, missing), Unknown, false},
		{"rebooting", "rebooting", block.VolumePhaseReady, true, status.Error(codes.Unknown, missing), Unknown, false},
		{"resetting", "resetting", block.VolumePhaseReady, true, status.Error(codes.Unknown, missing), Unknown, false},
		{"installing", "installing", block.VolumePhaseReady, true, status.Error(codes.Unknown, missing), Unknown, false},
		{"upgrading", "upgrading", block.VolumePhaseReady, true, status.Error(codes.Unknown, missing), Unknown, false},
		{"maintenance", "maintenance", block.VolumePhaseReady, true, status.Error(codes.Unknown, missing), Unknown, false},
		{"another error", "running", block.VolumePhaseReady, true, status.Error(codes.Unknown, "permission denied"), Unknown, true},
		{"another file is missing", "running", block.VolumePhaseReady, true, status.Error(codes.Unknown, "lstat /var: no such file or directory"), Unknown, true},
		{"the same words with another code", "running", block.VolumePhaseReady, true, status.Error(codes.Unavailable, missing), Unknown, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := configuredNode(t)
			n.setStage(test.stage, true)
			n.setEphemeral(test.phase, test.mounted)
			n.list = func(request *machineapi.ListRequest, stream grpc.ServerStreamingServer[machineapi.FileInfo]) error {
				if test.answer != nil {
					return test.answer
				}
				return stream.Send(&machineapi.FileInfo{Name: request.GetRoot()})
			}
			data, err := dialed(t, n, RoleReader).EtcdData(soon(t))
			require.Equal(t, test.failed, err != nil)
			require.Equal(t, test.want, data)
		})
	}
}

func TestAStageThatIsLeftMeanwhileIsNotBelieved(t *testing.T) {
	n := configuredNode(t)
	n.setEphemeral(block.VolumePhaseReady, true)
	n.list = func(*machineapi.ListRequest, grpc.ServerStreamingServer[machineapi.FileInfo]) error {
		n.setStage("resetting", true)
		return status.Error(codes.Unknown, "lstat /var/lib/etcd/member: no such file or directory")
	}
	data, err := dialed(t, n, RoleReader).EtcdData(soon(t))
	require.NoError(t, err)
	require.Equal(t, Unknown, data)
}

// TestAWipeOfEphemeralTakesEtcdsOwnPartitionToo: from Talos 1.14 on etcd's data may have one, and would outlive the wipe that is to end it.
func TestAWipeOfEphemeralTakesEtcdsOwnPartitionToo(t *testing.T) {
	for name, test := range map[string]struct {
		kind     block.VolumeType
		location string
		asked    []string
		want     []string
	}{
		"a folder of EPHEMERAL goes with it":           {block.VolumeTypeDirectory, "", []string{"EPHEMERAL", "STATE"}, []string{"EPHEMERAL", "STATE"}},
		"a partition of its own is wiped first":        {block.VolumeTypePartition, "/dev/vda7", []string{"EPHEMERAL", "STATE"}, []string{"ETCD", "EPHEMERAL", "STATE"}},
		"a partition that isn't there isn't asked for": {block.VolumeTypePartition, "", []string{"EPHEMERAL"}, []string{"EPHEMERAL"}},
		"STATE alone leaves it":                        {block.VolumeTypePartition, "/dev/vda7", []string{"STATE"}, []string{"STATE"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := configuredNode(t)
			volume := block.NewVolumeStatus(block.NamespaceName, "ETCD")
			volume.TypedSpec().Type, volume.TypedSpec().Location = test.kind, test.location
			n.put(volume)
			require.NoError(t, dialed(t, n, RoleAdmin).Reset(soon(t), ResetRequest{Partitions: test.asked, Reboot: true}))
			var labels []string
			for _, partition := range n.lastReset.GetSystemPartitionsToWipe() {
				require.True(t, partition.GetWipe())
				labels = append(labels, partition.GetLabel())
			}
			require.Equal(t, test.want, labels)
		})
	}
}
