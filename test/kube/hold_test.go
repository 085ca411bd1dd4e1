package kubetest

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/test/kube/harness"
)

// uncounted has a budget over the pod of a Job, which has no scale.
func uncounted(t *testing.T, w *world) {
	namespace := w.namespace(t, "uncounted")
	w.inPool(t, "uncounted", 1)
	spec := podsOf("uncounted").Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	job, err := w.api.BatchV1().Jobs(namespace).Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"},
		Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: corev1.PodTemplateSpec{Spec: spec}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.lonelyPod(t, namespace, "once-1", "uncounted-1", func(pod *corev1.Pod) {
		pod.Labels = map[string]string{"app": "uncounted"}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
	})
	w.newBudget(t, namespace, "keep", "uncounted", 1)
	node := w.cordon(t, "uncounted-1")
	harness.Eventually(t, "the budget says why it holds", func() error {
		round, err := w.client(t).Evict(within(t), node, kube.EvictOptions{})
		require.NoError(t, err)
		require.Len(t, round.Left, 1)
		require.False(t, round.Left[0].Terminating)
		require.Contains(t, round.Sentence(), "uncounted/once-1 is held by the budget uncounted/keep, which isn't counted: ")
		if !strings.Contains(round.Sentence(), "does not implement the scale subresource") {
			return errors.New(round.Sentence())
		}
		return nil
	})
}

// failingWebhook has a webhook on evictions at which nobody answers, for the pods of one namespace.
func failingWebhook(t *testing.T, w *world) {
	guarded, free := w.namespace(t, "guarded"), w.namespace(t, "free")
	w.inPool(t, "guarded", 1)
	w.deployment(t, guarded, "guarded", 1)
	w.deployment(t, free, "guarded", 1)
	_, err := w.api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "guard.example.com"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "guard.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionv1.SideEffectClassNone),
			FailurePolicy: ptr.To(admissionv1.Fail), ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.75.9:1/")},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: guarded}},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}}}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	// The API server learns of a webhook by and by; a dry run evicts nothing.
	pod := w.podsOn(t, guarded, "guarded-1")[0]
	harness.Eventually(t, "the webhook is asked", func() error {
		err := w.api.PolicyV1().Evictions(guarded).Evict(t.Context(), &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: guarded, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}})
		if err == nil {
			return errors.New("it isn't")
		}
		require.ErrorContains(t, err, "failed calling webhook")
		return nil
	})

	round, err := w.client(t).Evict(within(t), w.cordon(t, "guarded-1"), kube.EvictOptions{})
	require.NoError(t, err)
	require.Len(t, round.Left, 2)
	for _, left := range round.Left {
		require.Equal(t, left.Namespace == free, left.Terminating, left)
	}
	require.Contains(t, round.Sentence(), guarded+"/"+pod.Name+" can't be evicted: Internal error occurred: failed calling webhook")
	require.Contains(t, round.Sentence(), "1 other pod on the way out")
}

// movedPod has a StatefulSet's pod made anew on another node between the list and the eviction.
func movedPod(t *testing.T, w *world) {
	namespace := w.namespace(t, "moved")
	w.inPool(t, "moved", 1)
	one := int32(1)
	_, err := w.api.AppsV1().StatefulSets(namespace).Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Replicas: &one, ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "moved"}}, Template: podsOf("moved"),
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	running := func(on string) {
		harness.Eventually(t, "db-0 runs on "+on, func() error {
			for _, pod := range w.podsOn(t, namespace, on) {
				if pod.DeletionTimestamp == nil && isReady(&pod) {
					return nil
				}
			}
			return errors.New("it doesn't")
		})
	}
	running("moved-1")
	w.inPool(t, "moved", 2)
	node := w.cordon(t, "moved-1")
	between := w.between(t, func(r *request) {
		if r.Method == "POST" {
			require.NoError(t, w.api.CoreV1().Pods(namespace).Delete(t.Context(), "db-0", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
			running("moved-2")
		}
	})
	round, err := w.client(t, between.address).Evict(within(t), node, kube.EvictOptions{})
	require.NoError(t, err)
	require.True(t, round.Done(), round.Sentence())
	require.Equal(t, 1, between.refused("POST", 409), "the API server refuses what was meant for the old one")
	pods := w.podsOn(t, namespace, "moved-2")
	require.Len(t, pods, 1)
	require.Nil(t, pods[0].DeletionTimestamp)
}
