package kubeapi_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
)

func (b *bench) budget(name string, spec policyv1.PodDisruptionBudgetSpec) {
	b.Helper()
	spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	_, err := b.PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault).Create(b.Context(),
		&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	require.NoError(b, err)
}

func (b *bench) evict(name string) error {
	return b.PolicyV1().Evictions(metav1.NamespaceDefault).Evict(b.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}})
}

func TestABudgetHoldsItsPods(t *testing.T) {
	b := newBench(t, "127.0.76.21", clock.RealClock{})
	two := intstr.FromInt32(2)
	b.budget("web", policyv1.PodDisruptionBudgetSpec{MinAvailable: &two})
	web := map[string]string{"app": "web"}
	for _, name := range []string{"a", "b", "c"} {
		b.pod(name, "w-1", web)
	}
	require.NoError(t, b.evict("a"))
	pod, err := b.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotNil(t, pod.DeletionTimestamp, "an evicted pod is there until its kubelet has ended it")
	require.EqualValues(t, corev1.DefaultTerminationGracePeriodSeconds, *pod.DeletionGracePeriodSeconds)

	err = b.evict("b")
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	require.EqualError(t, err, "Cannot evict pod as it would violate the pod's disruption budget.")
	cause, ok := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	require.True(t, ok)
	require.Equal(t, "The disruption budget web needs 2 healthy pods and has 2 currently", cause.Message)
	budget, err := b.PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []int32{0, 2, 2, 3}, []int32{budget.Status.DisruptionsAllowed, budget.Status.DesiredHealthy, budget.Status.CurrentHealthy, budget.Status.ExpectedPods})

	none := int64(0)
	require.NoError(t, b.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: &none}))
	require.True(t, apierrors.IsNotFound(b.evict("a")))
	b.pod("d", "w-2", web)
	require.NoError(t, b.evict("b"), "another pod is healthy in its stead")
}

func TestTwoEvictionsAtOnceDontSpendTheSameDisruption(t *testing.T) {
	b := newBench(t, "127.0.76.22", clock.RealClock{})
	one := intstr.FromInt32(1)
	b.budget("web", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one})
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		b.pod(name, "w-1", map[string]string{"app": "web"})
	}
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { errs[i] = b.evict(name) })
	}
	wg.Wait()
	taken := 0
	for _, err := range errs {
		if err == nil {
			taken++
		} else {
			require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
		}
	}
	require.Equal(t, 1, taken)
}

func TestWhatNoBudgetCountsIsEvicted(t *testing.T) {
	b := newBench(t, "127.0.76.23", clock.RealClock{})
	all := intstr.FromString("100%")
	b.budget("web", policyv1.PodDisruptionBudgetSpec{MinAvailable: &all})
	web := map[string]string{"app": "web"}
	pods := b.CoreV1().Pods(metav1.NamespaceDefault)
	_, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pending", Labels: web}}, metav1.CreateOptions{})
	require.NoError(t, err)
	b.pod("running", "w-1", web)
	b.pod("other", "w-1", nil)
	require.NoError(t, b.evict("pending"))
	_, err = pods.Get(t.Context(), "pending", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "a pod that no kubelet runs is gone at once: %v", err)
	require.NoError(t, b.evict("other"))
	require.True(t, apierrors.IsTooManyRequests(b.evict("running")))
	b.budget("second", policyv1.PodDisruptionBudgetSpec{})
	err = b.evict("running")
	require.EqualError(t, err, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
}

func TestWhatHasFinalizersStaysUntilTheyAreGone(t *testing.T) {
	b := newBench(t, "127.0.76.24", clock.RealClock{})
	node, err := b.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w-1", Finalizers: []string{"example.com/keep"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, b.CoreV1().Nodes().Delete(t.Context(), "w-1", metav1.DeleteOptions{}))
	node, err = b.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotNil(t, node.DeletionTimestamp)
	node.Finalizers = nil
	_, err = b.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	b.eventually("the node is gone", func(ctx context.Context) error {
		if _, err := b.CoreV1().Nodes().Get(ctx, "w-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errNotYet
		}
		return nil
	})
}
