package kube

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// cordoned is a node with a cordon of owner, or of somebody else's when owner is empty.
func cordoned(owner string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		if owner != "" {
			n.Annotations = map[string]string{cordonAnnotation: owner}
		}
	}
}

func marked(owner string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations = map[string]string{cordonAnnotation: owner} }
}

func TestCordon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before        func(*corev1.Node)
		patches       int
		by            string
		unschedulable bool
		refused       string
	}{
		{"a plain node is cordoned and marked", func(*corev1.Node) {}, 1, "op-1", true, ""},
		{"our own cordon is found", cordoned("op-1"), 0, "op-1", true, ""},
		{"somebody else's stays", cordoned(""), 0, "", true, "w1 was cordoned already, and not by Ichor: it stays cordoned until the one who did it lifts it (kubectl uncordon w1)"},
		{"another operation's stays", cordoned("op-0"), 0, "op-0", true, "w1 was cordoned already, by op-0: it stays cordoned until that is over"},
		{"a mark without a cordon means nothing", marked("op-0"), 1, "op-1", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := newFakeCluster(t)
			node := cluster.addNode("w1", "u1", c.before)
			err := one(t, cluster).Cordon(t.Context(), node, "op-1")
			if c.refused != "" {
				var foreign *CordonedError
				require.ErrorAs(t, err, &foreign)
				require.EqualError(t, err, c.refused)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, c.patches, cluster.sent("PATCH", "/w1"))
			after := cluster.node("w1")
			require.Equal(t, c.unschedulable, after.Spec.Unschedulable)
			require.Equal(t, c.by, after.Annotations[cordonAnnotation])
		})
	}
}

func TestUncordon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before        func(*corev1.Node)
		lifted        bool
		patches       int
		by            string
		unschedulable bool
	}{
		{"our own is lifted", cordoned("op-1"), true, 1, "", false},
		{"somebody else's stays", cordoned(""), false, 0, "", true},
		{"another operation's stays", cordoned("op-0"), false, 0, "op-0", true},
		{"one that was lifted by hand loses the mark", marked("op-1"), false, 1, "", false},
		{"a plain node is left", func(*corev1.Node) {}, false, 0, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := newFakeCluster(t)
			node := cluster.addNode("w1", "u1", c.before)
			lifted, err := one(t, cluster).Uncordon(t.Context(), node, "op-1")
			require.NoError(t, err)
			require.Equal(t, c.lifted, lifted)
			require.Equal(t, c.patches, cluster.sent("PATCH", "/w1"))
			after := cluster.node("w1")
			require.Equal(t, c.unschedulable, after.Spec.Unschedulable)
			require.Equal(t, c.by, after.Annotations[cordonAnnotation])
		})
	}
}

func TestAnotherNodeUnderTheNameIsLeftAlone(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	old := cluster.addNode("w1", "u1", cordoned("op-1"))
	cluster.addNode("w1", "u2", cordoned("op-1"))
	client := one(t, cluster)

	err := client.Cordon(t.Context(), old, "op-1")
	require.ErrorIs(t, err, ErrChanged)
	require.ErrorContains(t, err, "the Node w1 was made anew (its UID is u2 and was u1)")
	lifted, err := client.Uncordon(t.Context(), old, "op-1")
	require.ErrorIs(t, err, ErrChanged)
	require.False(t, lifted)
	_, err = client.Evict(t.Context(), old, EvictOptions{})
	require.ErrorIs(t, err, ErrChanged)
	require.Zero(t, cluster.sent("PATCH", ""))

	missing := old
	missing.Name = "w9"
	require.ErrorIs(t, client.Cordon(t.Context(), missing, "op-1"), ErrNotFound)
}

func TestANodeThatChangesMeanwhileIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1")
	var first atomic.Bool
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.Method == http.MethodPatch && first.CompareAndSwap(false, true) {
			// The kubelet writes its status just before.
			cluster.mu.Lock()
			cluster.nodes["w1"].ResourceVersion = cluster.next()
			cluster.mu.Unlock()
		}
		return false
	})
	require.NoError(t, servers.client(t).Cordon(t.Context(), node, "op-1"))
	require.Equal(t, 2, cluster.sent("PATCH", "/w1"))
	require.Equal(t, "op-1", cluster.node("w1").Annotations[cordonAnnotation])
}

func TestSomebodyElseWhoIsFasterKeepsTheCordon(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1")
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.Method == http.MethodPatch {
			cluster.mu.Lock()
			cluster.nodes["w1"].Spec.Unschedulable = true
			cluster.nodes["w1"].ResourceVersion = cluster.next()
			cluster.mu.Unlock()
		}
		return false
	})
	var foreign *CordonedError
	require.ErrorAs(t, servers.client(t).Cordon(t.Context(), node, "op-1"), &foreign)
	require.Empty(t, cluster.node("w1").Annotations)
}

func TestACordonWhoseAnswerWasLostIsFoundAndNotSentAgain(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1")
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPatch {
			lost(r, next)
		}
		return false
	}, nil)
	require.NoError(t, servers.client(t).Cordon(t.Context(), node, "op-1"))
	require.Equal(t, 1, cluster.sent("PATCH", "/w1"))
	require.True(t, cluster.node("w1").Spec.Unschedulable)
}

func TestACordonThatNeverArrivedIsSentAgainAfterALook(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1")
	var swallowed atomic.Int32
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.Method == http.MethodPatch {
			swallowed.Add(1)
			hangUp()
		}
		return false
	}, nil)
	require.NoError(t, servers.client(t).Cordon(t.Context(), node, "op-1"))
	require.EqualValues(t, 1, swallowed.Load(), "the look showed that it isn't there, and the next server took it")
	require.Equal(t, 1, cluster.sent("PATCH", "/w1"))
}

func TestAnUncordonWhoseAnswerWasLostSaysThatItLifted(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1", cordoned("op-1"))
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPatch {
			lost(r, next)
		}
		return false
	}, nil)
	lifted, err := servers.client(t).Uncordon(t.Context(), node, "op-1")
	require.NoError(t, err)
	require.True(t, lifted)
	require.Equal(t, 1, cluster.sent("PATCH", "/w1"))
	require.False(t, cluster.node("w1").Spec.Unschedulable)
}

func TestDeleteNode(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.addNode("w1", "u1")
	cluster.addNode("w2", "u2")
	client := one(t, cluster)

	require.NoError(t, client.DeleteNode(t.Context(), "w1", "u1"))
	require.Nil(t, cluster.node("w1"))
	require.NoError(t, client.DeleteNode(t.Context(), "w1", "u1"), "one that isn't there is done")

	err := client.DeleteNode(t.Context(), "w2", "u1")
	require.ErrorIs(t, err, ErrChanged)
	require.ErrorContains(t, err, "deleting the Node w2: it is not what was looked at: the Node w2 was made anew (its UID is u2 and was u1)")
	require.Error(t, client.DeleteNode(t.Context(), "w2", ""), "without a UID nothing is deleted")
	require.NotNil(t, cluster.node("w2"))
	require.Equal(t, 1, cluster.sent("DELETE", ""))
}

func TestADeletionWhoseAnswerWasLostIsFoundDone(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.addNode("w1", "u1")
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodDelete {
			lost(r, next)
		}
		return false
	}, nil)
	require.NoError(t, servers.client(t).DeleteNode(t.Context(), "w1", "u1"))
	require.Equal(t, 1, cluster.sent("DELETE", "/w1"))
}

func TestADeletedNodeThatStaysSaysWhoseFinalizersHoldIt(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.addNode("w1", "u1", func(n *corev1.Node) {
		n.DeletionTimestamp = &now
		n.Finalizers = []string{"example.com/cloud"}
	})
	err := one(t, cluster).DeleteNode(t.Context(), "w1", "u1")
	require.ErrorContains(t, err, "finalizers on it take them off (example.com/cloud)")
	require.Zero(t, cluster.sent("DELETE", ""))
}
