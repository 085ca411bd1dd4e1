package machined

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"ichor.maesh.dev/internal/talossim/member"
)

// etcdClient makes a client whose calls wait for the endpoints to be ready, as Talos's do: against a dead etcd they hang
// until their deadline.
func (m *Machine) etcdClient(endpoints ...string) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints,
		Context:   m.ctx,
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
				if u, err := url.Parse(target); err == nil && u.Host != "" {
					target = u.Host
				}
				return m.cfg.World.Network.Dial(ctx, m.cfg.Address, target)
			}),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("error building etcd client: %w", err)
	}
	return c, nil
}

// etcdLocalClient talks to the own member.
func (m *Machine) etcdLocalClient() (*clientv3.Client, error) {
	return m.etcdClient(member.ClientURL(m.cfg.Address))
}

// etcdClusterClient talks to any control plane that is known, in random order.
func (m *Machine) etcdClusterClient() (*clientv3.Client, error) {
	endpoints := m.etcdEndpoints()
	if len(endpoints) == 0 {
		return nil, errors.New("no controlplane endpoints discovered yet")
	}
	rand.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
	return m.etcdClient(endpoints...)
}

// etcdEndpoints are the client URLs of every control plane that an Endpoint resource names.
func (m *Machine) etcdEndpoints() []string {
	var urls []string
	for _, addr := range m.controlPlaneEndpoints() {
		urls = append(urls, member.ClientURL(addr))
	}
	return urls
}

// leaveCluster removes the own member, stops etcd and removes its data (Talos: internal/pkg/etcd/etcd.go, LeaveCluster).
func (m *Machine) leaveCluster(ctx context.Context) error {
	id, err := m.localMemberID(ctx)
	if err != nil {
		return err
	}
	if err := m.removeOwnMember(ctx, id); err != nil {
		return err
	}
	if err := m.services.stop(ctx, "etcd"); err != nil {
		return fmt.Errorf("failed to stop etcd: %w", err)
	}
	if err := m.volumes.removeAll(etcdDataPath); err != nil {
		return fmt.Errorf("failed to remove %s: %w", etcdDataPath, err)
	}
	return nil
}
