package machined

import (
	"context"
	"errors"
	"fmt"
	"time"

	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// localMemberID waits for at most three minutes for the EtcdMember resource, which exists only while etcd is healthy.
func (m *Machine) localMemberID(ctx context.Context) (uint64, error) {
	ctx, cancel := m.pace.Within(ctx, 3*time.Minute)
	defer cancel()
	var text string
	if !m.pace.Poll(ctx, time.Second, func() bool {
		r, ok := get(ctx, m.st, etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID))
		if ok {
			text = r.TypedSpec().MemberID
		}
		return ok
	}) {
		return 0, fmt.Errorf("failed to get local member ID: %w", context.Cause(ctx))
	}
	return etcdres.ParseMemberID(text)
}

// removeOwnMember retries for five minutes while the cluster isn't healthy enough, and where the answer was lost: an etcd that is told to
// remove itself ends a second later, which on a busy host may be before it has answered.
func (m *Machine) removeOwnMember(ctx context.Context, id uint64) error {
	ctx, cancel := m.pace.Within(ctx, 5*time.Minute)
	defer cancel()
	var last error
	m.pace.ask(ctx, 10*time.Second, func() bool {
		c, err := m.etcdClusterClient()
		if err != nil {
			last = err
			return true
		}
		defer c.Close() //nolint:errcheck // the call's own error counts
		_, last = c.MemberRemove(ctx, id)
		if last != nil {
			last = fmt.Errorf("failed to remove member %d: %w", id, last)
		}
		if errors.Is(last, rpctypes.ErrMemberNotFound) {
			last = nil
		}
		return !errors.Is(last, rpctypes.ErrUnhealthy) && !errors.Is(last, rpctypes.ErrStopped) && status.Code(last) != codes.Unavailable
	})
	return last
}
