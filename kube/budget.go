package kube

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// severalBudgets is in the API server's refusal to evict a pod that several budgets cover (k8s.io/kubernetes,
// pkg/registry/core/pod/storage/eviction.go). It is an internal error there.
const severalBudgets = "more than one PodDisruptionBudget"

// heldBack says whether an eviction was refused for a budget: none is left, its numbers aren't counted yet, or several
// cover the pod. Any other "too many requests" is of a server that has too much to do.
func heldBack(err error) bool {
	if apierrors.IsTooManyRequests(err) {
		return apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause)
	}
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), severalBudgets)
}

// heldBy is the reason for a pod that budgets hold.
func heldBy(budgets []Budget) string {
	var names []string
	for _, budget := range budgets {
		names = append(names, budget.String())
	}
	switch len(names) {
	case 0:
		return "is held by a disruption budget that is gone by now"
	case 1:
		return "is held by " + names[0]
	}
	return "can't be evicted because several budgets cover it, which Kubernetes refuses: " + strings.Join(names, " and ")
}

// budgetsOf reads the budgets of each namespace once a round.
type budgetsOf struct {
	client *Client
	known  map[string][]policyv1.PodDisruptionBudget
}

// over gives the budgets that cover a pod.
func (b *budgetsOf) over(ctx context.Context, pod *corev1.Pod) ([]Budget, error) {
	all, read := b.known[pod.Namespace]
	if !read {
		var err error
		all, err = pages(ctx, b.client, func(ctx context.Context, options metav1.ListOptions) ([]policyv1.PodDisruptionBudget, string, error) {
			page, err := b.client.api.PolicyV1().PodDisruptionBudgets(pod.Namespace).List(ctx, options)
			if err != nil {
				return nil, "", err
			}
			return page.Items, page.Continue, nil
		}, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		b.known[pod.Namespace] = all
	}
	var over []Budget
	for i := range all {
		if budget := &all[i]; covers(budget, pod) {
			over = append(over, Budget{
				Namespace: clean(budget.Namespace), Name: clean(budget.Name),
				Allowed: budget.Status.DisruptionsAllowed, Healthy: budget.Status.CurrentHealthy,
				Wanted: budget.Status.DesiredHealthy, Expected: budget.Status.ExpectedPods,
				Problem: problemOf(budget),
			})
		}
	}
	return over, nil
}

// problemOf gives why the disruption controller has no count for a budget: then it allows nothing, and its numbers say nothing.
func problemOf(budget *policyv1.PodDisruptionBudget) string {
	condition := meta.FindStatusCondition(budget.Status.Conditions, policyv1.DisruptionAllowedCondition)
	switch {
	case condition != nil && condition.Reason == policyv1.SyncFailedReason:
		return clean(condition.Message)
	case budget.Status.ObservedGeneration < budget.Generation:
		return "it was changed, and Kubernetes has yet to look at it"
	}
	return ""
}

// covers says whether a budget is over a pod: one without a selector is over none, one with an empty selector over all.
func covers(budget *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(pod.Labels))
}
