package kubeapi

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// disruptedFor is how long an eviction counts before its pod is seen going
// (Kubernetes: pkg/controller/disruption/disruption.go, DeletionTimeout).
const disruptedFor = 2 * time.Minute

// present fills in what is counted when it is asked for.
func (s *Server) present(ctx context.Context, o object) error {
	if budget, ok := o.(*policyv1.PodDisruptionBudget); ok {
		return s.count(ctx, budget)
	}
	return nil
}

// budgetsOf returns the budgets that guard a pod.
func (s *Server) budgetsOf(ctx context.Context, pod *corev1.Pod) ([]*policyv1.PodDisruptionBudget, error) {
	all, _, err := s.all(ctx, s.resource("poddisruptionbudgets"), pod.Namespace, 0)
	if err != nil {
		return nil, err
	}
	var budgets []*policyv1.PodDisruptionBudget
	for _, o := range all {
		budget := o.(*policyv1.PodDisruptionBudget)
		selector, err := selectorOf(budget)
		if err != nil {
			return nil, err
		}
		if selector.Matches(labels.Set(pod.Labels)) {
			budgets = append(budgets, budget)
		}
	}
	return budgets, nil
}

func selectorOf(budget *policyv1.PodDisruptionBudget) (labels.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("the selector of budget %s: %w", budget.Name, err))
	}
	return selector, nil
}

// count makes a budget's status that of its pods now.
func (s *Server) count(ctx context.Context, budget *policyv1.PodDisruptionBudget) error {
	selector, err := selectorOf(budget)
	if err != nil {
		return err
	}
	all, _, err := s.all(ctx, s.resource("pods"), budget.Namespace, 0)
	if err != nil {
		return err
	}
	var pods []*corev1.Pod
	for _, o := range all {
		if pod := o.(*corev1.Pod); selector.Matches(labels.Set(pod.Labels)) && !ended(pod) {
			pods = append(pods, pod)
		}
	}
	expected, err := s.expected(ctx, budget.Namespace, pods)
	if err != nil {
		return err
	}
	desired, err := desiredHealthy(budget.Spec, expected)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("budget %s: %w", budget.Name, err))
	}
	now := s.cfg.Clock.Now()
	healthy, disrupted := 0, map[string]metav1.Time{}
	for _, pod := range pods {
		since, going := budget.Status.DisruptedPods[pod.Name]
		if going = going && now.Sub(since.Time) < disruptedFor && pod.DeletionTimestamp == nil; going {
			disrupted[pod.Name] = since
		}
		if ready(pod) && pod.DeletionTimestamp == nil && !going {
			healthy++
		}
	}
	if budget.Spec.MinAvailable != nil && budget.Spec.MinAvailable.Type == intstr.Int {
		expected = len(pods)
	}
	budget.Status.ObservedGeneration = budget.Generation
	budget.Status.ExpectedPods, budget.Status.DesiredHealthy, budget.Status.CurrentHealthy = int32(expected), int32(desired), int32(healthy) //nolint:gosec // small
	budget.Status.DisruptionsAllowed = int32(max(healthy-desired, 0))                                                                        //nolint:gosec // small
	if expected == 0 {
		budget.Status.DisruptionsAllowed = 0
	}
	budget.Status.DisruptedPods = disrupted
	return nil
}

// expected is how many pods those who made these want to have; one that nobody made counts for itself.
func (s *Server) expected(ctx context.Context, namespace string, pods []*corev1.Pod) (int, error) {
	seen := map[types.UID]bool{}
	total := 0
	for _, pod := range pods {
		owner := metav1.GetControllerOf(pod)
		if owner == nil || owner.Kind != "ReplicaSet" {
			total++
			continue
		}
		if seen[owner.UID] {
			continue
		}
		seen[owner.UID] = true
		o, _, err := s.load(ctx, s.resource("replicasets"), namespace, owner.Name)
		switch {
		case apierrors.IsNotFound(err):
			total++
		case err != nil:
			return 0, err
		default:
			if replicas := o.(*appsv1.ReplicaSet).Spec.Replicas; replicas != nil {
				total += int(*replicas)
			} else {
				total++
			}
		}
	}
	return total, nil
}

// desiredHealthy is how many pods have to stay healthy.
func desiredHealthy(spec policyv1.PodDisruptionBudgetSpec, expected int) (int, error) {
	switch {
	case spec.MaxUnavailable != nil:
		most, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, expected, true)
		return max(expected-most, 0), err
	case spec.MinAvailable == nil:
		return 0, nil
	case spec.MinAvailable.Type == intstr.Int:
		return spec.MinAvailable.IntValue(), nil
	}
	least, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, expected, true)
	return least, err
}
