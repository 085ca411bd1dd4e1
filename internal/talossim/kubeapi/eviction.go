package kubeapi

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// evict deletes a pod if its budget allows it (Kubernetes: pkg/registry/core/pod/storage/eviction.go).
func (s *Server) evict(ctx context.Context, req *request, body []byte) (*metav1.Status, error) {
	eviction := &policyv1.Eviction{}
	kind := policyv1.SchemeGroupVersion.WithKind("Eviction")
	if _, _, err := s.codecs.UniversalDeserializer().Decode(body, &kind, eviction); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if eviction.Name != req.name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	opts := &metav1.DeleteOptions{}
	if eviction.DeleteOptions != nil {
		opts = eviction.DeleteOptions
	}
	found, _, err := s.load(ctx, req.resource, req.namespace, req.name)
	if err != nil {
		return nil, err
	}
	pod := found.(*corev1.Pod)
	if err := holds(req.resource, pod, opts.Preconditions); err != nil {
		return nil, err
	}
	if !unguarded(pod) {
		if err := s.spend(ctx, pod, len(opts.DryRun) > 0); err != nil {
			return nil, err
		}
	}
	if _, err := s.remove(ctx, req, opts); err != nil {
		return nil, err
	}
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}, nil
}

// unguarded says whether a pod serves nothing, so that no budget counts it.
func unguarded(pod *corev1.Pod) bool {
	return ended(pod) || pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil
}

// spend takes one disruption off the pod's budget, or says why there is none left. Two evictions at once can't spend the same one: the
// budget is swapped by its revision.
func (s *Server) spend(ctx context.Context, pod *corev1.Pod, dry bool) error {
	res := s.resource("poddisruptionbudgets")
	for range attempts {
		budgets, err := s.budgetsOf(ctx, pod)
		if err != nil || len(budgets) == 0 {
			return err
		}
		if len(budgets) > 1 {
			many := apierrors.NewGenericServerResponse(http.StatusInternalServerError, "", res.groupResource(), "", "", 0, false)
			many.ErrStatus = metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
				Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
			}
			return many
		}
		budget := budgets[0]
		if err := s.count(ctx, budget); err != nil {
			return err
		}
		if !ready(pod) && spared(budget) {
			return nil
		}
		if budget.Status.DisruptionsAllowed <= 0 {
			return exhausted(budget)
		}
		if dry {
			return nil
		}
		revision, err := revisionOf(budget.ResourceVersion)
		if err != nil {
			return err
		}
		if budget.Status.DisruptedPods == nil {
			budget.Status.DisruptedPods = map[string]metav1.Time{}
		}
		budget.Status.DisruptedPods[pod.Name] = metav1.NewTime(s.cfg.Clock.Now())
		_, err = s.put(ctx, res, budget, revision, false, apierrors.NewConflict(res.groupResource(), budget.Name, errStale))
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	return apierrors.NewTimeoutError("couldn't update PodDisruptionBudget due to conflicts", 10)
}

// spared says whether a pod that isn't healthy may go whatever is left of its budget.
func spared(budget *policyv1.PodDisruptionBudget) bool {
	if policy := budget.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy && budget.Status.DesiredHealthy > 0
}

// exhausted is Kubernetes' answer where a budget holds a pod.
func exhausted(budget *policyv1.PodDisruptionBudget) error {
	message := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", budget.Name)
	if budget.Status.CurrentHealthy <= budget.Status.DesiredHealthy {
		message = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", budget.Name, budget.Status.DesiredHealthy, budget.Status.CurrentHealthy)
	}
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: message})
	return err
}
