package machined

import (
	"context"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"ichor.maesh.dev/internal/talossim/member"
)

// withLocal runs a call against the own member; against a dead one it hangs until the caller's deadline.
func (a *api) withLocal(what string, f func(*clientv3.Client) error) error {
	if err := a.m.controlPlaneOnly(what); err != nil {
		return err
	}
	c, err := a.m.etcdLocalClient()
	if err != nil {
		return fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer c.Close() //nolint:errcheck // the call's own error counts
	return f(c)
}

// withCluster runs a call against any control plane that is known.
func (a *api) withCluster(what string, f func(*clientv3.Client) error) error {
	if err := a.m.controlPlaneOnly(what); err != nil {
		return err
	}
	c, err := a.m.etcdClusterClient()
	if err != nil {
		return fmt.Errorf("failed to create etcd client: %w", err)
	}
	defer c.Close() //nolint:errcheck // the call's own error counts
	return f(c)
}

// EtcdMemberList needs a quorum in either form: it is a linearizable read.
func (a *api) EtcdMemberList(ctx context.Context, in *machine.EtcdMemberListRequest) (*machine.EtcdMemberListResponse, error) {
	list := func(c *clientv3.Client) (*machine.EtcdMemberListResponse, error) {
		resp, err := c.MemberList(clientv3.WithRequireLeader(ctx))
		if err != nil {
			return nil, err
		}
		members := &machine.EtcdMembers{}
		for _, mb := range resp.Members {
			members.LegacyMembers = append(members.LegacyMembers, mb.Name)
			members.Members = append(members.Members, &machine.EtcdMember{
				Id: mb.ID, Hostname: mb.Name, PeerUrls: mb.PeerURLs, ClientUrls: mb.ClientURLs, IsLearner: mb.IsLearner,
			})
		}
		return &machine.EtcdMemberListResponse{Messages: []*machine.EtcdMembers{members}}, nil
	}
	if err := a.m.controlPlaneOnly("member list"); err != nil {
		return nil, err
	}
	c, err := a.m.etcdLocalClient()
	if !in.GetQueryLocal() {
		c, err = a.m.etcdClusterClient()
	}
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // the call's own error counts
	return list(c)
}

func (a *api) EtcdRemoveMemberByID(ctx context.Context, in *machine.EtcdRemoveMemberByIDRequest) (*machine.EtcdRemoveMemberByIDResponse, error) {
	err := a.withCluster("etcd remove member", func(c *clientv3.Client) error {
		_, err := c.MemberRemove(clientv3.WithRequireLeader(ctx), in.GetMemberId())
		if err == nil {
			return nil
		}
		err = fmt.Errorf("failed to remove member %d: %w", in.GetMemberId(), err)
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			return status.Error(codes.NotFound, err.Error())
		}
		return fmt.Errorf("failed to remove member: %w", err)
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdRemoveMemberByIDResponse{Messages: []*machine.EtcdRemoveMemberByID{{}}}, nil
}

func (a *api) EtcdLeaveCluster(ctx context.Context, _ *machine.EtcdLeaveClusterRequest) (*machine.EtcdLeaveClusterResponse, error) {
	if err := a.m.controlPlaneOnly("etcd leave"); err != nil {
		return nil, err
	}
	if !a.m.cfg.Faults.dropped(ctx) {
		if err := a.m.leaveCluster(ctx); err != nil {
			return nil, fmt.Errorf("failed to leave cluster: %w", err)
		}
	}
	return &machine.EtcdLeaveClusterResponse{Messages: []*machine.EtcdLeaveCluster{{}}}, nil
}

func (a *api) EtcdForfeitLeadership(ctx context.Context, _ *machine.EtcdForfeitLeadershipRequest) (*machine.EtcdForfeitLeadershipResponse, error) {
	var name string
	err := a.withCluster("etcd forfeit leadership", func(c *clientv3.Client) error {
		id, err := a.m.localMemberID(ctx)
		if err != nil {
			return err
		}
		if name, err = forfeit(clientv3.WithRequireLeader(ctx), c, a.m, id); err != nil {
			return fmt.Errorf("failed to forfeit leadership: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdForfeitLeadershipResponse{Messages: []*machine.EtcdForfeitLeadership{{Member: name}}}, nil
}

// forfeit moves the leadership to the first other member of the list, whatever state that one is in.
func forfeit(ctx context.Context, c *clientv3.Client, m *Machine, id uint64) (string, error) {
	list, err := c.MemberList(ctx)
	if err != nil {
		return "", fmt.Errorf("failed to list etcd members: %w", err)
	}
	if len(list.Members) == 1 {
		return "", errors.New("cannot forfeit leadership, only one member")
	}
	var own, other *etcdserverpb.Member
	for _, mb := range list.Members {
		switch {
		case mb.ID == id:
			own = mb
		case other == nil:
			other = mb
		}
	}
	if own == nil {
		return "", fmt.Errorf("failed to find %q in list of etcd members", fmt.Sprintf("%016x", id))
	}
	local, err := m.etcdLocalClient()
	if err != nil {
		return "", err
	}
	defer local.Close() //nolint:errcheck // the call's own error counts
	st, err := local.Status(ctx, member.ClientURL(m.cfg.Address))
	if err != nil {
		return "", err
	}
	if st.Leader != id || other == nil {
		return "", nil
	}
	if _, err := local.MoveLeader(ctx, other.ID); err != nil {
		if errors.Is(err, rpctypes.ErrNotLeader) {
			return "", nil
		}
		return "", err
	}
	return other.Name, nil
}

func alarms(list []*etcdserverpb.AlarmMember) []*machine.EtcdMemberAlarm {
	var out []*machine.EtcdMemberAlarm
	for _, al := range list {
		kind := machine.EtcdMemberAlarm_NONE
		switch al.Alarm {
		case etcdserverpb.AlarmType_NOSPACE:
			kind = machine.EtcdMemberAlarm_NOSPACE
		case etcdserverpb.AlarmType_CORRUPT:
			kind = machine.EtcdMemberAlarm_CORRUPT
		case etcdserverpb.AlarmType_NONE:
		}
		out = append(out, &machine.EtcdMemberAlarm{MemberId: al.MemberID, Alarm: kind})
	}
	return out
}

func (a *api) EtcdAlarmList(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdAlarmListResponse, error) {
	reply := &machine.EtcdAlarm{}
	err := a.withLocal("etcd alarm list", func(c *clientv3.Client) error {
		resp, err := c.AlarmList(ctx)
		if err != nil {
			return fmt.Errorf("failed to list etcd alarms: %w", err)
		}
		reply.MemberAlarms = alarms(resp.Alarms)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdAlarmListResponse{Messages: []*machine.EtcdAlarm{reply}}, nil
}

func (a *api) EtcdAlarmDisarm(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdAlarmDisarmResponse, error) {
	reply := &machine.EtcdAlarmDisarm{}
	err := a.withLocal("etcd alarm disarm", func(c *clientv3.Client) error {
		resp, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		if err != nil {
			return fmt.Errorf("failed to disarm etcd alarm: %w", err)
		}
		reply.MemberAlarms = alarms(resp.Alarms)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdAlarmDisarmResponse{Messages: []*machine.EtcdAlarmDisarm{reply}}, nil
}

func (a *api) EtcdDefragment(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdDefragmentResponse, error) {
	err := a.withLocal("etcd defragment", func(c *clientv3.Client) error {
		if _, err := c.Defragment(ctx, member.ClientURL(a.m.cfg.Address)); err != nil {
			return fmt.Errorf("failed to defragment etcd: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdDefragmentResponse{Messages: []*machine.EtcdDefragment{{}}}, nil
}

// EtcdStatus is the own member's and needs no quorum.
func (a *api) EtcdStatus(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdStatusResponse, error) {
	st := &machine.EtcdMemberStatus{}
	err := a.withLocal("etcd status", func(c *clientv3.Client) error {
		resp, err := c.Status(ctx, member.ClientURL(a.m.cfg.Address))
		if err != nil {
			return fmt.Errorf("failed to query etcd status: %w", err)
		}
		st.StorageVersion, st.ProtocolVersion, st.MemberId = resp.StorageVersion, resp.Version, resp.Header.MemberId
		st.DbSize, st.DbSizeInUse, st.Leader = resp.DbSize, resp.DbSizeInUse, resp.Leader
		st.RaftIndex, st.RaftTerm, st.RaftAppliedIndex = resp.RaftIndex, resp.RaftTerm, resp.RaftAppliedIndex
		st.Errors, st.IsLearner = resp.Errors, resp.IsLearner
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdStatusResponse{Messages: []*machine.EtcdStatus{{MemberStatus: st}}}, nil
}
