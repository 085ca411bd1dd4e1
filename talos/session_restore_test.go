package talos

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

type uploadStream = grpc.ClientStreamingServer[common.Data, machineapi.EtcdRecoverResponse]

// received reads an upload to its end, and gives what came and how it ended.
func received(stream uploadStream) ([]byte, error) {
	var all []byte
	for {
		message, err := stream.Recv()
		if err != nil {
			return all, err
		}
		all = append(all, message.GetBytes()...)
	}
}

func taken(stream uploadStream) error {
	return stream.SendAndClose(&machineapi.EtcdRecoverResponse{Messages: []*machineapi.EtcdRecover{{}}})
}

func TestASnapshotIsUploadedByteByByte(t *testing.T) {
	for _, size := range []int{0, 1, uploadPiece - 1, uploadPiece, uploadPiece + 1, 3*uploadPiece + 17} {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		n := configuredNode(t)
		var got []byte
		n.upload = func(stream uploadStream) (err error) {
			if got, err = received(stream); !errors.Is(err, io.EOF) {
				return err
			}
			return taken(stream)
		}
		require.NoError(t, dialed(t, n, RoleAdmin).UploadSnapshot(soon(t), bytes.NewReader(content)))
		require.True(t, bytes.Equal(content, got))
	}
}

func TestAnUploadThatCouldNotBeReadToItsEndIsNeverWholeForTheMachine(t *testing.T) {
	n := configuredNode(t)
	ended := make(chan error, 1)
	n.upload = func(stream uploadStream) error {
		_, err := received(stream)
		ended <- err
		return err
	}
	broken := errors.New("the disk is broken")
	err := dialed(t, n, RoleAdmin).UploadSnapshot(soon(t), io.MultiReader(bytes.NewReader(make([]byte, 2*uploadPiece)), failingReader{broken}))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "reading it here")
	require.Equal(t, codes.Canceled, status.Code(<-ended), "the machine sees it broken off, not ended")
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

func TestAMachineThatRefusesAnUploadSaysWhy(t *testing.T) {
	n := configuredNode(t)
	n.upload = func(uploadStream) error {
		return status.Error(codes.FailedPrecondition, "etcd service is not ready for recovery yet")
	}
	// More than fits into what is on its way, so that sending is what fails.
	err := dialed(t, n, RoleAdmin).UploadSnapshot(soon(t), io.LimitReader(rand.Reader, 8<<20))
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "not ready for recovery yet")
	require.Equal(t, OutcomeRefused, Classify(err))
}

func TestAnUploadThatHangsEndsAtItsDeadline(t *testing.T) {
	n := configuredNode(t)
	n.upload = func(stream uploadStream) error { // reads nothing
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	session := dialed(t, n, RoleAdmin)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := session.UploadSnapshot(ctx, io.LimitReader(rand.Reader, 1<<40))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, OutcomeUnknown, Classify(err))
}

func TestARecoveryChecksTheHashAndABootstrapRecoversNothing(t *testing.T) {
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)
	require.NoError(t, session.RecoverEtcd(soon(t)))
	require.True(t, n.lastBoot.GetRecoverEtcd())
	require.False(t, n.lastBoot.GetRecoverSkipHashCheck())
	require.NoError(t, session.Bootstrap(soon(t)))
	require.False(t, n.lastBoot.GetRecoverEtcd())
}

func TestLeavingEtcdMayTakeNineMinutesAndNoMore(t *testing.T) {
	n := configuredNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	session := dialed(t, n, RoleAdmin)
	require.NoError(t, session.LeaveEtcd(ctx))
	require.WithinRange(t, n.leaveBy, time.Now().Add(leaveLimit/2), time.Now().Add(leaveLimit+time.Second))
}

func TestTheMemberThatARestoreMakesIsKnownByItsID(t *testing.T) {
	// The IDs are what etcd 3.6 computes; a change of them would make every restored member a stranger.
	id, err := RestoredMemberID([]string{"https://10.0.0.11:2380"})
	require.NoError(t, err)
	require.NotZero(t, id)
	other, err := RestoredMemberID([]string{"https://10.0.0.12:2380"})
	require.NoError(t, err)
	require.NotEqual(t, id, other)
	require.True(t, EtcdMember{ID: id, PeerURLs: []string{"https://10.0.0.11:2380"}}.Restored())
	require.False(t, EtcdMember{ID: id, PeerURLs: []string{"https://10.0.0.12:2380"}}.Restored())
	require.False(t, EtcdMember{ID: id, PeerURLs: []string{"https://10.0.0.11:2380"}, Learner: true}.Restored())
	require.False(t, EtcdMember{ID: id}.Restored())
	require.False(t, EtcdMember{ID: id, PeerURLs: []string{"not a URL"}}.Restored())
	two, err := RestoredMemberID([]string{"https://10.0.0.11:2380", "https://[fd00::11]:2380"})
	require.NoError(t, err)
	swapped, err := RestoredMemberID([]string{"https://[fd00::11]:2380", "https://10.0.0.11:2380"})
	require.NoError(t, err)
	require.Equal(t, two, swapped, "their order says nothing")
}
