package kubeapi

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// born gives a new object what Kubernetes gives it.
func born(o object) {
	switch o := o.(type) {
	case *corev1.Pod:
		o.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort}
		if o.Spec.TerminationGracePeriodSeconds == nil {
			seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
			o.Spec.TerminationGracePeriodSeconds = &seconds
		}
		if o.Spec.RestartPolicy == "" {
			o.Spec.RestartPolicy = corev1.RestartPolicyAlways
		}
	case *corev1.Namespace:
		o.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		o.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	case *policyv1.PodDisruptionBudget:
		o.Status = policyv1.PodDisruptionBudgetStatus{}
	}
}

// markDeleted marks an object that isn't gone at once and says whether it is one: a pod whose kubelet has to end it, or anything that
// finalizers keep.
func (s *Server) markDeleted(o object, opts *metav1.DeleteOptions) (waits bool) {
	grace := int64(0)
	if pod, ok := o.(*corev1.Pod); ok {
		grace = podGrace(pod, opts)
	}
	if grace == 0 && len(o.GetFinalizers()) == 0 {
		return false
	}
	end := metav1.NewTime(s.cfg.Clock.Now().Add(time.Duration(grace) * time.Second)).Rfc3339Copy()
	// A second delete may only shorten the first.
	if first := o.GetDeletionTimestamp(); first == nil || end.Before(first) {
		o.SetDeletionTimestamp(&end)
		o.SetDeletionGracePeriodSeconds(&grace)
	}
	return true
}

// podGrace is how many seconds a pod is given: none where no kubelet runs anything of it.
func podGrace(pod *corev1.Pod, opts *metav1.DeleteOptions) int64 {
	if pod.Spec.NodeName == "" || ended(pod) {
		return 0
	}
	if opts.GracePeriodSeconds != nil {
		return max(*opts.GracePeriodSeconds, 0)
	}
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// ready says whether a pod counts as healthy.
func ready(pod *corev1.Pod) bool {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	return i >= 0 && pod.Status.Conditions[i].Status == corev1.ConditionTrue
}
