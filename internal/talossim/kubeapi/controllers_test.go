package kubeapi_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestASilentNodeBecomesUnknownAndItsPodsUnready(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	b := newBench(t, "127.0.76.31", clk)
	nodes, leases := b.CoreV1().Nodes(), b.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for _, name := range []string{"w-1", "w-2"} {
		node := b.node(name, nil)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
		b.pod("on-"+name, name, nil)
		_, err = leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	ready := func(ctx context.Context, name string) corev1.ConditionStatus {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		return node.Status.Conditions[0].Status
	}
	started := clk.Now()
	b.eventually("w-1 is unknown", func(ctx context.Context) error {
		lease, err := leases.Get(ctx, "w-2", metav1.GetOptions{})
		require.NoError(t, err)
		renewed := metav1.NewMicroTime(clk.Now())
		lease.Spec.RenewTime = &renewed
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		require.NoError(t, err)
		if clk.HasWaiters() {
			clk.Step(5 * time.Second)
		}
		if ready(ctx, "w-1") != corev1.ConditionUnknown {
			return errNotYet
		}
		return nil
	})
	require.GreaterOrEqual(t, clk.Since(started), 40*time.Second)
	require.Equal(t, corev1.ConditionTrue, ready(t.Context(), "w-2"))
	b.eventually("its pod isn't ready", func(ctx context.Context) error {
		pod, err := b.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, "on-w-1", metav1.GetOptions{})
		require.NoError(t, err)
		if pod.Status.Conditions[0].Status != corev1.ConditionFalse {
			return errNotYet
		}
		return nil
	})
	pod, err := b.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "on-w-2", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.ConditionTrue, pod.Status.Conditions[0].Status)
}
