package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/drain"
)

// EvictOptions are how far a drain may go.
type EvictOptions struct {
	// Force lets pods go that have no controller which would make them anew elsewhere (spec.rollout.drain.force). Budgets
	// hold all the same.
	Force bool
}

// Evict is one round of a drain, and may be repeated at will: it looks at what is on the node, asks for the eviction of
// each pod that has to go and isn't going yet, and says what is left. It waits for nothing. DaemonSets' pods and mirror
// pods stay; what is in an emptyDir is lost with its pod, as it is in any eviction. Nothing is evicted from a node that
// isn't cordoned, because its pods would come back, nor while a pod is there that can't be.
//
// An error is about the API; then the Drain is what was known so far.
func (c *Client) Evict(ctx context.Context, node Node, options EvictOptions) (Drain, error) {
	doing := "draining " + node.Name
	object, err := c.node(ctx, node.Name)
	if err != nil {
		return Drain{}, failure(doing, err)
	}
	if string(object.UID) != node.UID {
		return Drain{}, failure(doing, replaced(object, node.UID))
	}
	if !object.Spec.Unschedulable {
		return Drain{Blocked: []string{clean(object.Name) + " isn't cordoned (any more), so that what is evicted could come back to it at once"}}, nil
	}
	leaving, blocked, err := c.leaving(ctx, object.Name, options.Force)
	if err != nil {
		return Drain{}, failure(doing, err)
	}
	round := Drain{Blocked: blocked}
	budgets := budgetsOf{client: c, known: map[string][]policyv1.PodDisruptionBudget{}}
	for i := range leaving {
		pod := &leaving[i]
		if pod.DeletionTimestamp != nil || len(blocked) > 0 {
			round.Left = append(round.Left, leftOver(pod))
			continue
		}
		left, gone, err := c.evict(ctx, pod, &budgets)
		if err != nil {
			return round, failure(doing, err)
		}
		if !gone {
			round.Left = append(round.Left, left)
		}
	}
	if len(round.Left) == 0 && len(blocked) == 0 {
		if round.Volumes, err = c.attached(ctx, object.Name); err != nil {
			return round, failure("reading the volumes attached to "+node.Name, err)
		}
	}
	return round, nil
}

// leaving gives the pods that a drain moves off the node, and sentences on those that it must not touch.
func (c *Client) leaving(ctx context.Context, node string, force bool) (pods []corev1.Pod, blocked []string, err error) {
	list, failures := c.listed(ctx, node, force)
	if len(failures) == 0 {
		return list.Pods(), nil, nil
	}
	if list == nil || force {
		return nil, nil, unread(list, failures)
	}
	// Some are refused. The library names them in one text for all; what force would add is who they are.
	forced, failures := c.listed(ctx, node, true)
	if len(failures) > 0 {
		return nil, nil, unread(forced, failures)
	}
	allowed := map[string]bool{}
	for _, pod := range list.Pods() {
		allowed[string(pod.UID)] = true
	}
	for _, pod := range forced.Pods() {
		if allowed[string(pod.UID)] {
			pods = append(pods, pod)
			continue
		}
		if pod.DeletionTimestamp != nil {
			// It goes already, by whoever's hand.
			pods = append(pods, pod)
			continue
		}
		blocked = append(blocked, alone(&pod))
	}
	return pods, blocked, nil
}

// unread is the error of a list that could not be made. With force the library refuses a pod for one reason only, that its
// DaemonSet can't be read, and gives that as a text.
func unread(list *drain.PodDeleteList, failures []error) error {
	err := errors.Join(failures...)
	if list == nil {
		return err
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, clean(err.Error()))
}

// alone says why a pod is left to a person.
func alone(pod *corev1.Pod) string {
	name := clean(pod.Namespace) + "/" + clean(pod.Name)
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return fmt.Sprintf("%s belongs to the %s %s, which is gone, so that nothing would make it anew; delete it, or set spec.rollout.drain.force", name, clean(owner.Kind), clean(owner.Name))
	}
	return name + " has no controller that would make it anew elsewhere; delete it, or set spec.rollout.drain.force"
}

// listed asks kubectl's drain which pods of the node have to go. The whole of it has one deadline.
func (c *Client) listed(ctx context.Context, node string, force bool) (*drain.PodDeleteList, []error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	helper := &drain.Helper{
		Ctx:                 ctx,
		Client:              c.api,
		Force:               force,
		GracePeriodSeconds:  -1, // the pods' own
		IgnoreAllDaemonSets: true,
		DeleteEmptyDirData:  true,
		ChunkSize:           pageSize,
		Out:                 io.Discard,
		ErrOut:              io.Discard,
	}
	return helper.GetPodsForDeletion(node)
}

// leftOver is a pod that isn't asked to go in this round.
func leftOver(pod *corev1.Pod) Pod {
	left := Pod{Namespace: clean(pod.Namespace), Name: clean(pod.Name), Terminating: pod.DeletionTimestamp != nil}
	if left.Terminating && len(pod.Finalizers) > 0 {
		left.Why = "was deleted and stays until its finalizers are taken off (" + clean(strings.Join(pod.Finalizers, ", ")) + ")"
	}
	return left
}

// evict asks the API server to let one pod go, and says what came of it. The request names the pod's UID: another pod under
// its name, as StatefulSets make them, may live elsewhere by now.
func (c *Client) evict(ctx context.Context, pod *corev1.Pod, budgets *budgetsOf) (left Pod, gone bool, err error) {
	left = leftOver(pod)
	err = c.askEviction(ctx, pod)
	switch {
	case err == nil:
		left.Terminating = true
		return left, false, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// So it is said of a pod that is gone, and of another one under its name; but a webhook may answer so too, and a pod that
		// changes all the time is refused so.
		refused := clean(err.Error())
		if gone, err = c.gone(ctx, pod); gone || err != nil {
			return left, gone, err
		}
		left.Why = "can't be evicted: " + refused
		return left, false, nil
	case apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		left.Why = "can't be evicted because its namespace is being deleted; it goes with that"
		return left, false, nil
	}
	if !heldBack(err) {
		if away(err) && !denied(err) {
			return left, false, err
		}
		// An admission webhook that says no, or that fails: it is about this pod, and the next round asks again.
		left.Why = "can't be evicted: " + clean(err.Error())
		return left, false, nil
	}
	left.Budgets, err = budgets.over(ctx, pod)
	if err != nil {
		return left, false, err
	}
	left.Why = heldBy(left.Budgets)
	return left, false, nil
}

// gone says whether a pod is on its node no more: none of its name is there, or another one.
func (c *Client) gone(ctx context.Context, pod *corev1.Pod) (bool, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	found, err := c.api.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && found.UID != pod.UID, err
}

func (c *Client) askEviction(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := c.call(ctx)
	defer cancel()
	return c.api.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
}

// denied says whether an admission webhook refused an eviction, whatever code it gave: KubeVirt's says "too many requests" of each pod of a
// virtual machine until that has moved, and no other pod would be asked to go meanwhile.
func denied(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && strings.HasPrefix(status.Status().Message, "admission webhook ") && strings.Contains(status.Status().Message, " denied the request")
}

// away says whether an eviction failed for a reason that has nothing to do with its pod.
func away(err error) bool {
	var known *unreachableError
	return errors.As(err, &known) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err)
}
