package talos

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// The calls of signed operations, as the fake node takes them.

func (n *fakeNode) Shutdown(_ context.Context, request *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	n.lastShutdown = request
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: "x"}}}, nil
}

func (n *fakeNode) ServiceRestart(_ context.Context, request *machineapi.ServiceRestartRequest) (*machineapi.ServiceRestartResponse, error) {
	if request.GetId() != "kubelet" {
		return nil, status.Errorf(codes.Unknown, "service %q doesn't support restart operation via API", request.GetId())
	}
	return &machineapi.ServiceRestartResponse{Messages: []*machineapi.ServiceRestart{{}}}, nil
}

func (n *fakeNode) EtcdDefragment(context.Context, *emptypb.Empty) (*machineapi.EtcdDefragmentResponse, error) {
	return &machineapi.EtcdDefragmentResponse{Messages: []*machineapi.EtcdDefragment{{}}}, nil
}

func (n *fakeNode) EtcdForfeitLeadership(context.Context, *machineapi.EtcdForfeitLeadershipRequest) (*machineapi.EtcdForfeitLeadershipResponse, error) {
	return &machineapi.EtcdForfeitLeadershipResponse{Messages: []*machineapi.EtcdForfeitLeadership{{}}}, nil
}

func (n *fakeNode) EtcdAlarmList(context.Context, *emptypb.Empty) (*machineapi.EtcdAlarmListResponse, error) {
	return &machineapi.EtcdAlarmListResponse{Messages: []*machineapi.EtcdAlarm{{MemberAlarms: []*machineapi.EtcdMemberAlarm{
		{MemberId: 7, Alarm: machineapi.EtcdMemberAlarm_NOSPACE}, {MemberId: 8, Alarm: machineapi.EtcdMemberAlarm_NONE},
	}}}}, nil
}

func TestASessionDoesWhatASignedOperationAsksFor(t *testing.T) {
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)
	require.NoError(t, session.Shutdown(soon(t), true))
	require.True(t, n.lastShutdown.GetForce())
	require.NoError(t, session.Shutdown(soon(t), false))
	require.False(t, n.lastShutdown.GetForce())
	require.NoError(t, session.RestartService(soon(t), "kubelet"))
	require.ErrorContains(t, session.RestartService(soon(t), "cri"), `service "cri" doesn't support restart operation via API`)
	require.NoError(t, session.Defragment(soon(t)))
	require.NoError(t, session.ForfeitLeadership(soon(t)))
	alarms, err := session.AlarmList(soon(t))
	require.NoError(t, err)
	require.Equal(t, []EtcdAlarm{{Member: 7, Kind: "NOSPACE"}}, alarms)
}

func TestAMachineInMaintenanceModeIsAskedForNothingOfASignedOperation(t *testing.T) {
	n := maintenanceNode(t)
	session := dialedMaintenance(t, n)
	for name, call := range map[string]func() error{
		"shutdown":       func() error { return session.Shutdown(soon(t), false) },
		"service":        func() error { return session.RestartService(soon(t), "kubelet") },
		"defragment":     func() error { return session.Defragment(soon(t)) },
		"forfeit":        func() error { return session.ForfeitLeadership(soon(t)) },
		"no deadline":    func() error { return dialed(t, configuredNode(t), RoleAdmin).Shutdown(context.Background(), false) },
		"no deadline, 2": func() error { return dialed(t, configuredNode(t), RoleAdmin).Defragment(context.Background()) },
	} {
		require.ErrorIs(t, call(), ErrNotSent, name)
	}
	require.Nil(t, n.lastShutdown)
}

func TestAlarmsAreReadOnlyWhereTheStatusShowsErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		errors []string
		want   []EtcdAlarm
	}{
		{"without errors nobody asks", nil, nil},
		{"with an error etcd is asked", []string{"memberID:7 alarm:NOSPACE "}, []EtcdAlarm{{Member: 7, Kind: "NOSPACE"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := configuredNode(t)
			n.etcdStatus = func(context.Context) (*machineapi.EtcdStatusResponse, error) {
				return &machineapi.EtcdStatusResponse{Messages: []*machineapi.EtcdStatus{{MemberStatus: &machineapi.EtcdMemberStatus{
					MemberId: 1, DbSize: 100, DbSizeInUse: 40, Errors: test.errors}}}}, nil
			}
			o := testClient(t).Observe(soon(t), n.target)
			require.Equal(t, test.want, o.Etcd.Alarms, o.Problem)
			require.EqualValues(t, []int64{100, 40}, []int64{o.Etcd.DBSize, o.Etcd.DBSizeInUse})
		})
	}
}

func TestTheStartOfAServiceIsTheEventWithWhichItBeganToRun(t *testing.T) {
	at := func(second int) *timestamppb.Timestamp { return timestamppb.New(time.Unix(int64(second), 0)) }
	event := func(second int, state, message string) *machineapi.ServiceEvent {
		return &machineapi.ServiceEvent{Ts: at(second), State: state, Msg: message}
	}
	for _, test := range []struct {
		name   string
		events []*machineapi.ServiceEvent
		want   int
	}{
		{"started once, healthy since", []*machineapi.ServiceEvent{event(1, "Preparing", ""), event(2, "Running", "Started task"), event(9, "Running", "Health check successful")}, 2},
		{"started again", []*machineapi.ServiceEvent{event(2, "Running", "Started task"), event(5, "Stopping", ""), event(6, "Finished", ""), event(7, "Running", "Started task")}, 7},
		{"it doesn't run", []*machineapi.ServiceEvent{event(2, "Running", "Started task"), event(5, "Stopping", "")}, 0},
		{"its start is no longer among the events", []*machineapi.ServiceEvent{event(2, "Running", "Health check failed"), event(5, "Running", "Health check successful")}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := startedAt(test.events)
			if test.want == 0 {
				require.True(t, got.IsZero(), got)
				return
			}
			require.Equal(t, time.Unix(int64(test.want), 0).UTC(), got)
		})
	}
}
