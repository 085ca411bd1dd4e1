package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

func TestAKubeletRegistersItsNodeOnceABootAndKeepsWhatOthersWroteThere(t *testing.T) {
	api := fake.NewClientset()
	k := newKubelet(api, "w-1", nil)
	k.node.Labels["mine"] = "yes"
	require.NoError(t, k.register(t.Context(), "boot-1"))
	node, err := api.CoreV1().Nodes().Get(t.Context(), "w-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "boot-1", node.Status.NodeInfo.BootID)
	require.Equal(t, "yes", node.Labels["mine"])
	require.Equal(t, "boot-1", k.registered)

	node.Spec.Unschedulable = true
	_, err = api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, k.register(t.Context(), "boot-2"))
	node, err = api.CoreV1().Nodes().Get(t.Context(), "w-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "boot-2", node.Status.NodeInfo.BootID)
	require.True(t, node.Spec.Unschedulable, "a boot takes no cordon away")
}

func TestAKubeletSaysThatItsNodeIsReadyAndRenewsItsLease(t *testing.T) {
	api := fake.NewClientset()
	k := newKubelet(api, "w-1", nil)
	require.NoError(t, k.register(t.Context(), "boot-1"))
	k.beat(t.Context())
	node, err := api.CoreV1().Nodes().Get(t.Context(), "w-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, ready(node))
	lease, err := api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "w-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, leaseSeconds, *lease.Spec.LeaseDurationSeconds)

	node.Status.Conditions[0].Status = corev1.ConditionUnknown // as the controllers say of one that was silent
	_, err = api.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	k.beat(t.Context())
	node, err = api.CoreV1().Nodes().Get(t.Context(), "w-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, ready(node))
	next, err := api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "w-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, next.Spec.RenewTime.After(lease.Spec.RenewTime.Time))
}

func TestAKubeletRunsPodsAndLetsGoOfThoseThatWereDeletedUnlessTheyAreHeld(t *testing.T) {
	pod := func(name string, phase corev1.PodPhase, deleted bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-1"}, Spec: corev1.PodSpec{NodeName: "w-1"},
			Status: corev1.PodStatus{Phase: phase}}
		if deleted {
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.Now()), []string{"example.com/kept"}
		}
		return p
	}
	api := fake.NewClientset(pod("new", corev1.PodPending, false), pod("done", corev1.PodSucceeded, false), pod("going", corev1.PodRunning, true),
		pod("held", corev1.PodRunning, true))
	k := newKubelet(api, "w-1", nil)
	k.Hold("default", "held")
	k.sync(t.Context())
	phase := func(name string) corev1.PodPhase {
		t.Helper()
		p, err := api.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "gone"
		}
		require.NoError(t, err)
		return p.Status.Phase
	}
	require.Equal(t, corev1.PodRunning, phase("new"))
	p, err := api.CoreV1().Pods("default").Get(t.Context(), "new", metav1.GetOptions{})
	require.NoError(t, err)
	for _, condition := range p.Status.Conditions {
		require.Equal(t, corev1.ConditionTrue, condition.Status, condition.Type)
	}
	require.NotNil(t, p.Status.StartTime)
	require.Equal(t, corev1.PodSucceeded, phase("done"), "what has ended doesn't run again")
	require.EqualValues(t, "gone", phase("going"))
	require.Equal(t, corev1.PodRunning, phase("held"))
	k.Release("default", "held")
	k.sync(t.Context())
	require.EqualValues(t, "gone", phase("held"))
}

func TestAKubeletDoesNothingWhileItsMachineIsOff(t *testing.T) {
	api := fake.NewClientset()
	looked := make(chan struct{})
	n := 0
	k := newKubelet(api, "w-1", func() kubeletState {
		if n++; n <= 2 {
			looked <- struct{}{}
		}
		return kubeletState{}
	})
	k.start(t)
	<-looked
	<-looked // the first look is over
	k.Stop()
	require.Empty(t, api.Actions())
}
