package kubetest

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/test/kube/harness"
)

// TestAnotherAPIServerServesWhenOneIsGone has two API servers over one etcd, as two control planes do.
func TestAnotherAPIServerServesWhenOneIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.75.2")
	second := harness.StartAPIServer(t, w.secrets, "127.0.75.3", w.etcd)
	client := w.client(t, w.server.Address(), second.Address())
	node := w.plainNode(t, "w-1")

	// Frozen: connections are taken, and nothing answers on them.
	w.server.Freeze()
	require.NoError(t, client.Ready(within(t)))
	require.NoError(t, client.Cordon(within(t), node, "op-1"))
	w.server.Thaw()
	require.True(t, w.node(t, node.Name).Unschedulable)

	w.server.Kill()
	client = w.client(t, w.server.Address(), second.Address())
	lifted, err := client.Uncordon(within(t), node, "op-1")
	require.NoError(t, err)
	require.True(t, lifted)
	second.Kill()
	_, err = client.Nodes(within(t))
	require.ErrorIs(t, err, kube.ErrUnavailable)
	require.ErrorContains(t, err, w.server.Address()+" refuses connections")
	require.ErrorContains(t, err, second.Address()+" refuses connections")
	require.ErrorIs(t, client.DeleteNode(within(t), node.Name, node.UID), kube.ErrUnavailable)

	w.server.Start()
	require.Equal(t, node.UID, w.node(t, node.Name).UID)
	require.NoError(t, client.DeleteNode(within(t), node.Name, node.UID), "the same client finds it again")
}

// TestAnswersThatAreLost has the road break after the API server has done what it was asked for.
func TestAnswersThatAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.75.4")
	harness.StartControllers(t, w.secrets, w.server.URL())
	namespace := w.namespace(t, "lost")
	w.inPool(t, "lost", 1)
	w.deployment(t, namespace, "lost", 1)

	lost := map[string]*sync.Once{"PATCH": {}, "POST": {}, "DELETE": {}}
	between := w.between(t, func(r *request) {
		if once := lost[r.Method]; once != nil {
			once.Do(func() { r.Lose = true })
		}
	})
	client := w.client(t, between.address)
	require.NoError(t, client.Cordon(within(t), w.node(t, "lost-1"), "op-1"))
	require.Equal(t, 1, between.refused("PATCH", 200), "the patch was found done and not sent again")
	require.Zero(t, between.refused("PATCH", 409))

	node := w.node(t, "lost-1")
	_, err := client.Evict(within(t), node, kube.EvictOptions{})
	require.ErrorIs(t, err, kube.ErrUnavailable)
	w.drain(t, node, kube.EvictOptions{}, nil)
	require.Equal(t, 1, between.refused("POST", 201))

	require.NoError(t, client.DeleteNode(within(t), node.Name, node.UID))
	require.Equal(t, 1, between.refused("DELETE", 200))
}

func TestANodeThatStopsBeatingIsUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.75.5")
	harness.StartControllers(t, w.secrets, w.server.URL())
	kubelet := w.inPool(t, "beats", 1)
	require.Equal(t, kube.Yes, w.node(t, "beats-1").Ready)
	kubelet.Stop()
	last := w.node(t, "beats-1").Heartbeat
	require.False(t, last.IsZero())
	harness.Eventually(t, "Kubernetes notices", func() error {
		node := w.node(t, "beats-1")
		require.True(t, last.Equal(node.Heartbeat), "nobody renews the Lease any more")
		if node.Ready != kube.Unknown {
			return errors.New(node.ReadyReason)
		}
		require.Contains(t, node.ReadyReason, "NodeStatusUnknown")
		return nil
	})
}
