package kube

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// made is a pod of kube-system as its owner made it on a node.
func made(kind, owner, node, uid string, change ...func(*corev1.Pod)) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: owner + "-" + uid, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(time.Unix(1000, 0)),
		OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: ptr.To(true)}}}, Spec: corev1.PodSpec{NodeName: node}}
	for _, one := range change {
		one(&pod)
	}
	return pod
}

func isReady(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func TestThePodsThatKeepANodesForwardingAreThoseOfThreeDaemonSets(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	elsewhere := made("DaemonSet", "kube-proxy", "w1", "u9")
	elsewhere.Namespace = "other"
	cluster.pods = []corev1.Pod{
		made("DaemonSet", "kube-proxy", "w2", "u2", isReady), made("DaemonSet", "kube-proxy", "w1", "u1", func(p *corev1.Pod) { p.Spec.NodeName += "\x1b[2J" }),
		made("DaemonSet", "cilium", "w1", "u3", isReady, func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }),
		made("DaemonSet", "node-exporter", "w1", "u4", isReady), made("ReplicaSet", "kube-proxy", "w1", "u5", isReady), elsewhere,
	}
	agents, err := one(t, cluster).Agents(t.Context())
	require.NoError(t, err)
	want := []Agent{
		{DaemonSet: "cilium", Name: "cilium-u3", UID: "u3", Node: "w1", Going: true},
		{DaemonSet: "kube-proxy", Name: "kube-proxy-u1", UID: "u1", Node: agents[1].Node},
		{DaemonSet: "kube-proxy", Name: "kube-proxy-u2", UID: "u2", Node: "w2", Ready: true},
	}
	for i := range agents {
		require.True(t, agents[i].Created.Equal(time.Unix(1000, 0)))
		agents[i].Created = time.Time{}
	}
	require.Equal(t, want, agents)
	require.NotContains(t, agents[1].Node, "\x1b", "what would act on a terminal is gone")
}

func TestAgentsOfManyNodesAreReadInPages(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	for n := range 2*pageSize + 1 {
		cluster.pods = append(cluster.pods, made("DaemonSet", "kube-proxy", fmt.Sprint("w", n), fmt.Sprint("u", n)))
	}
	agents, err := one(t, cluster).Agents(t.Context())
	require.NoError(t, err)
	require.Len(t, agents, 2*pageSize+1)
	require.Equal(t, 3, cluster.sent("GET", "/pods"))
}

func TestAPodIsDeletedByItsUIDAndNeverItsSuccessor(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.pods = []corev1.Pod{made("DaemonSet", "kube-proxy", "w1", "u1", isReady)}
	client := one(t, cluster)
	agents, err := client.Agents(t.Context())
	require.NoError(t, err)

	gone, other := agents[0], agents[0]
	gone.Name, other.UID = "kube-proxy-gone", "u2"
	require.NoError(t, client.DeleteAgent(t.Context(), gone))
	require.NoError(t, client.DeleteAgent(t.Context(), other))
	require.Nil(t, cluster.pods[0].DeletionTimestamp)
	require.ErrorContains(t, client.DeleteAgent(t.Context(), Agent{Name: "kube-proxy-u1"}), "its UID isn't known")

	require.NoError(t, client.DeleteAgent(t.Context(), agents[0]))
	require.NotNil(t, cluster.pods[0].DeletionTimestamp)
	agents, err = client.Agents(t.Context())
	require.NoError(t, err)
	require.True(t, agents[0].Going)
	require.False(t, agents[0].Ready, "what goes isn't ready any more")
}

func TestADeletionWhoseAnswerIsLostMayHaveBeenTaken(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.pods = []corev1.Pod{made("DaemonSet", "cilium", "w1", "u1", isReady)}
	client := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodDelete {
			lost(r, next)
		}
		return false
	}).client(t)
	agents, err := client.Agents(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, client.DeleteAgent(t.Context(), agents[0]), ErrUnavailable)
	require.Equal(t, 1, cluster.sent("DELETE", "/pods/cilium-u1"), "nothing is sent twice by itself")
	agents, err = client.Agents(t.Context())
	require.NoError(t, err)
	require.True(t, agents[0].Going)
}
