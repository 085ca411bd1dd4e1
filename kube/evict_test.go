package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var now = metav1.Now()

// pod is a pod of a ReplicaSet on w1, with the label app=web.
func pod(namespace, name, uid string, change ...func(*corev1.Pod)) corev1.Pod {
	controller := true
	made := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), Labels: map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", Controller: &controller}}},
		Spec:   corev1.PodSpec{NodeName: "w1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, one := range change {
		one(&made)
	}
	return made
}

func unmanaged(p *corev1.Pod) { p.OwnerReferences = nil }
func ofDaemonSet(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = "DaemonSet", name }
}
func mirror(p *corev1.Pod) {
	p.OwnerReferences = nil
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
}
func terminating(p *corev1.Pod) { p.DeletionTimestamp = &now }

// tooMany is the answer to an eviction for which a budget has no disruption left.
func tooMany(retryAfter int) *apierrors.StatusError {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retryAfter)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 2 healthy pods and has 2 currently"})
	return err
}

func budget(name string, labels map[string]string) policyv1.PodDisruptionBudget {
	return policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
		Status:     policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 2, DesiredHealthy: 2, ExpectedPods: 3},
	}
}

// draining is a cluster with a cordoned node w1 and these pods.
func draining(t *testing.T, pods ...corev1.Pod) (*fakeCluster, Node) {
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1", cordoned("op-1"))
	cluster.pods = pods
	return cluster, node
}

func TestARoundAsksEachPodOnceAndLeavesWhatStays(t *testing.T) {
	t.Parallel()
	cluster, node := draining(t,
		pod("default", "web-0", "p0", func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "scratch"}} }),
		pod("default", "going", "p1", terminating),
		pod("kube-system", "proxy", "p2", ofDaemonSet("kube-proxy")),
		pod("kube-system", "etcd", "p3", mirror),
		pod("default", "elsewhere", "p4", func(p *corev1.Pod) { p.Spec.NodeName = "w2" }),
	)
	cluster.pods[0].Spec.Volumes[0].EmptyDir = &corev1.EmptyDirVolumeSource{}
	cluster.daemonSets = []string{"kube-proxy"}
	client := one(t, cluster)

	round, err := client.Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.Equal(t, Drain{Left: []Pod{{Namespace: "default", Name: "web-0", Terminating: true}, {Namespace: "default", Name: "going", Terminating: true}}}, round)
	require.False(t, round.Done())
	require.Equal(t, "2 pods on the way out: default/web-0, default/going", round.Sentence())

	_, err = client.Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, cluster.sent("POST", "/eviction"), "what goes already isn't asked again")

	cluster.mu.Lock()
	cluster.pods = cluster.pods[2:]
	cluster.mu.Unlock()
	round, err = client.Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.True(t, round.Done(), round.Sentence())
}

func TestABudgetThatHoldsAPodIsNamedWithItsNumbers(t *testing.T) {
	t.Parallel()
	cluster, node := draining(t, pod("default", "web-0", "p0"), pod("default", "free", "p1"))
	cluster.budgets = []policyv1.PodDisruptionBudget{budget("web", map[string]string{"app": "web"}), budget("other", map[string]string{"app": "other"})}
	cluster.eviction = func(pod *corev1.Pod) *apierrors.StatusError {
		if pod.Name == "web-0" {
			return tooMany(10) // which the library would wait for by itself
		}
		return nil
	}
	round, err := one(t, cluster).Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.Equal(t, Pod{Namespace: "default", Name: "web-0", Budgets: []Budget{{Namespace: "default", Name: "web", Healthy: 2, Wanted: 2, Expected: 3}},
		Why: "is held by the budget default/web (0 disruptions allowed, 2 of 3 pods are healthy and 2 must be)"}, round.Left[0])
	require.Equal(t, "default/web-0 is held by the budget default/web (0 disruptions allowed, 2 of 3 pods are healthy and 2 must be); 1 other pod on the way out", round.Sentence())
	require.Equal(t, 2, cluster.sent("POST", "/eviction"))
}

func TestWhyAPodStays(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	terminatingNamespace := apierrors.NewForbidden(pods, "web-0", fmt.Errorf("unable to create new content"))
	terminatingNamespace.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	uncounted := budget("odd", nil)
	uncounted.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: "jobs.batch does not implement the scale subresource"}}
	changed := budget("new", nil)
	changed.Generation = 2
	for _, c := range []struct {
		name    string
		refused *apierrors.StatusError
		budgets []policyv1.PodDisruptionBudget
		want    string
	}{
		{"several budgets", apierrors.NewInternalError(fmt.Errorf("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")), //nolint:staticcheck // Kubernetes's own text
			[]policyv1.PodDisruptionBudget{budget("a", nil), budget("b", map[string]string{"app": "web"})},
			"can't be evicted because several budgets cover it, which Kubernetes refuses: the budget default/a (0 disruptions allowed, 2 of 3 pods are healthy and 2 must be) and the budget default/b (0 disruptions allowed, 2 of 3 pods are healthy and 2 must be)"},
		{"a budget that is gone when it is asked for", tooMany(0), nil, "is held by a disruption budget that is gone by now"},
		{"its namespace goes", terminatingNamespace, nil, "can't be evicted because its namespace is being deleted; it goes with that"},
		{"a webhook says no", apierrors.NewForbidden(pods, "web-0", fmt.Errorf("admission webhook denied it:\x1b[31m never")), nil,
			`can't be evicted: pods "web-0" is forbidden: admission webhook denied it: never`},
		{"a webhook fails", apierrors.NewInternalError(fmt.Errorf("failed calling webhook \"guard\"")), nil,
			`can't be evicted: Internal error occurred: failed calling webhook "guard"`},
		{"a webhook says no as if the pod were another one", apierrors.NewConflict(pods, "web-0", fmt.Errorf("admission webhook \"guard\" denied the request: not now")), nil,
			`can't be evicted: Operation cannot be fulfilled on pods "web-0": admission webhook "guard" denied the request: not now`},
		{"a webhook says no as if the pod were gone", apierrors.NewNotFound(pods, "web-0"), nil, `can't be evicted: pods "web-0" not found`},
		{"a budget that can't be counted", tooMany(0), []policyv1.PodDisruptionBudget{uncounted},
			`is held by the budget default/odd, which isn't counted: jobs.batch does not implement the scale subresource`},
		{"a budget that was changed just now", tooMany(10), []policyv1.PodDisruptionBudget{changed},
			`is held by the budget default/new, which isn't counted: it was changed, and Kubernetes has yet to look at it`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster, node := draining(t, pod("default", "web-0", "p0"))
			cluster.budgets, cluster.eviction = c.budgets, func(*corev1.Pod) *apierrors.StatusError { return c.refused }
			round, err := one(t, cluster).Evict(t.Context(), node, EvictOptions{})
			require.NoError(t, err)
			require.Equal(t, "default/web-0 "+c.want, round.Sentence())
			require.False(t, round.Left[0].Terminating)
		})
	}
}

func TestAWebhookThatSaysNoToOnePodKeepsNoOtherFromGoing(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]*apierrors.StatusError{
		"too many requests":   apierrors.NewTooManyRequests("no", 0),
		"service unavailable": apierrors.NewServiceUnavailable("no"),
		"timeout":             apierrors.NewTimeoutError("no", 0),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused.ErrStatus.Message = `admission webhook "virt" denied the request: Eviction triggered evacuation of VMI` // as a webhook's answer reads
			cluster, node := draining(t, pod("default", "vm", "p0"), pod("default", "web-0", "p1"))
			cluster.eviction = func(pod *corev1.Pod) *apierrors.StatusError {
				if pod.Name == "vm" {
					return refused
				}
				return nil
			}
			round, err := one(t, cluster).Evict(t.Context(), node, EvictOptions{})
			require.NoError(t, err)
			require.Equal(t, `default/vm can't be evicted: admission webhook "virt" denied the request: Eviction triggered evacuation of VMI; 1 other pod on the way out`, round.Sentence())
		})
	}
}

func TestAServerWithTooMuchToDoIsNotABudget(t *testing.T) {
	t.Parallel()
	cluster, node := draining(t, pod("default", "web-0", "p0"))
	cluster.eviction = func(*corev1.Pod) *apierrors.StatusError {
		return apierrors.NewTooManyRequestsError("too many requests")
	}
	_, err := one(t, cluster).Evict(t.Context(), node, EvictOptions{})
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestAnEvictionWhoseAnswerWasLostIsFoundByTheNextRound(t *testing.T) {
	t.Parallel()
	cluster, node := draining(t, pod("default", "web-0", "p0"))
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method == http.MethodPost {
			lost(r, next)
		}
		return false
	}, nil)
	client := servers.client(t)
	_, err := client.Evict(t.Context(), node, EvictOptions{})
	require.ErrorIs(t, err, ErrUnavailable)
	round, err := client.Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.True(t, round.Left[0].Terminating)
	require.Equal(t, 1, cluster.sent("POST", "/eviction"))
}

func TestAPodThatLivesElsewhereUnderItsNameIsNotEvicted(t *testing.T) {
	t.Parallel()
	cluster, node := draining(t, pod("default", "db-0", "p0"))
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.Method == http.MethodPost {
			// Between the list and the eviction the StatefulSet made it anew on another node.
			cluster.mu.Lock()
			cluster.pods[0].UID, cluster.pods[0].Spec.NodeName = "p1", "w2"
			cluster.mu.Unlock()
		}
		return false
	})
	round, err := servers.client(t).Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.True(t, round.Done(), round.Sentence())
	require.Nil(t, cluster.pods[0].DeletionTimestamp)
}

func TestWhatNoWaitingSolvesStopsTheDrainBeforeItBegins(t *testing.T) {
	t.Parallel()
	cluster, node := draining(t, pod("default", "web-0", "p0"), pod("default", "lonely", "p1", unmanaged), pod("default", "orphan", "p2", ofDaemonSet("gone")),
		pod("default", "finished", "p3", unmanaged, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	client := one(t, cluster)
	round, err := client.Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{
		"default/lonely has no controller that would make it anew elsewhere; delete it, or set spec.rollout.drain.force",
		"default/orphan belongs to the DaemonSet gone, which is gone, so that nothing would make it anew; delete it, or set spec.rollout.drain.force",
	}, round.Blocked)
	require.Len(t, round.Left, 2)
	require.False(t, round.Done())
	require.Contains(t, round.Sentence(), "default/lonely has no controller")
	require.Zero(t, cluster.sent("POST", ""), "nothing is evicted from a node that can't be drained")

	round, err = client.Evict(t.Context(), node, EvictOptions{Force: true})
	require.NoError(t, err)
	require.Empty(t, round.Blocked)
	require.Len(t, round.Left, 4)
	require.Equal(t, 4, cluster.sent("POST", "/eviction"))
}

func TestAnUnmanagedPodThatGoesAlreadyBlocksNothing(t *testing.T) {
	t.Parallel()
	cluster, node := draining(t, pod("default", "lonely", "p1", unmanaged, terminating, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/wait"} }))
	round, err := one(t, cluster).Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.Empty(t, round.Blocked)
	require.Equal(t, "default/lonely was deleted and stays until its finalizers are taken off (example.com/wait)", round.Sentence())
}

func TestANodeThatIsNotCordonedIsNotDrained(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1")
	cluster.pods = []corev1.Pod{pod("default", "web-0", "p0")}
	round, err := one(t, cluster).Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.False(t, round.Done())
	require.Contains(t, round.Sentence(), "w1 isn't cordoned")
	require.Zero(t, cluster.sent("POST", ""))
}

func TestADrainWaitsForVolumesToBeDetached(t *testing.T) {
	t.Parallel()
	attachment := func(name, node, volume string) storagev1.VolumeAttachment {
		made := storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
		if volume != "" {
			made.Spec.Source.PersistentVolumeName = &volume
		}
		return made
	}
	cluster, node := draining(t, pod("kube-system", "logs", "p0", ofDaemonSet("logs"), func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "kept", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "kept"}}},
			{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: "none", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "missing"}}},
		}
	}))
	cluster.daemonSets = []string{"logs"}
	cluster.claims = map[string]string{"kube-system/kept": "pv-kept", "kube-system/logs-own": "pv-own"}
	cluster.attachments = []storagev1.VolumeAttachment{attachment("a1", "w1", "pv-data"), attachment("a2", "w2", "pv-other"), attachment("a3", "w1", "pv-kept"), attachment("a4", "w1", "pv-own")}
	client := one(t, cluster)

	round, err := client.Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.Equal(t, Drain{Volumes: []string{"pv-data"}}, round, "a DaemonSet's pod keeps what it uses")
	require.Equal(t, "1 volume still attached to the node: pv-data", round.Sentence())

	cluster.mu.Lock()
	cluster.attachments = cluster.attachments[1:]
	cluster.mu.Unlock()
	round, err = client.Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.True(t, round.Done(), round.Sentence())
}

func TestADaemonSetThatCannotBeReadBlocksNothing(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		cluster, node := draining(t, pod("kube-system", "proxy", "p0", ofDaemonSet("proxy")))
		client := serve(t, cluster, func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if !strings.Contains(r.URL.Path, "/daemonsets/") {
				return false
			}
			http.Error(w, "etcdserver: leader changed", http.StatusInternalServerError)
			return true
		}).client(t)
		_, err := client.Evict(t.Context(), node, EvictOptions{Force: force})
		require.ErrorIs(t, err, ErrUnavailable)
	}
}

func TestManyPodsAreReadInPages(t *testing.T) {
	t.Parallel()
	cluster, node := draining(t)
	for i := range 2*pageSize + 1 {
		cluster.pods = append(cluster.pods, pod("default", fmt.Sprintf("web-%03d", i), fmt.Sprintf("p%d", i), terminating))
	}
	round, err := one(t, cluster).Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	require.Len(t, round.Left, 2*pageSize+1)
	require.Equal(t, 3, cluster.sent("GET", "/api/v1/pods"))
	require.Equal(t, "501 pods on the way out: default/web-000, default/web-001, default/web-002, default/web-003, default/web-004, and 496 more", round.Sentence())
}
