package machined

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// evictAgain is Talos's pause after an eviction that a budget refuses, and cordonTimeout how long it tries to cordon
// (Talos: pkg/kubernetes/kubernetes.go).
const (
	evictAgain    = 5 * time.Second
	cordonTimeout = time.Minute
)

// pods runs the pods that are bound to the node: one that is there is ready, one that is to go is gone after its grace period at the
// farm's pace. Static pods have their mirrors.
func (k *kubelet) pods(ctx context.Context, c *kubeClient, p config.Provider, node *corev1.Node) error {
	list, err := c.CoreV1().Pods("").List(ctx, podsOf(node.Name))
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for i := range list.Items {
		pod := &list.Items[i]
		there[pod.Namespace+"/"+pod.Name] = true
		if err := k.pod(ctx, c, pod); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	if !p.Machine().Type().IsControlPlane() || !k.m.etcd.isHealthy() {
		return nil
	}
	for _, name := range staticPodNames() {
		mirror := k.mirror(name, node)
		if there[mirror.Namespace+"/"+mirror.Name] {
			continue
		}
		if _, err := c.CoreV1().Pods(mirror.Namespace).Create(ctx, mirror, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

func podsOf(node string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
}

func (k *kubelet) pod(ctx context.Context, c *kubeClient, pod *corev1.Pod) error {
	now := k.m.pace.Clock.Now()
	if pod.DeletionTimestamp != nil {
		since, known := k.ending[pod.UID]
		if !known {
			k.ending[pod.UID], since = now, now
		}
		if now.Sub(since) < k.m.pace.Of(time.Duration(*pod.DeletionGracePeriodSeconds)*time.Second) {
			return nil
		}
		none := int64(0)
		err := c.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &none, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if err == nil || apierrors.IsNotFound(err) {
			delete(k.ending, pod.UID)
		}
		return err
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || podReady(pod) {
		return nil
	}
	next := pod.DeepCopy()
	at := metav1.NewTime(now).Rfc3339Copy()
	next.Status.Phase, next.Status.HostIP, next.Status.PodIP = corev1.PodRunning, k.m.cfg.Address.String(), k.m.cfg.Address.String()
	if next.Status.StartTime == nil {
		next.Status.StartTime = &at
	}
	next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	next.Status.Conditions = append(next.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at})
	_, err := c.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

func podReady(pod *corev1.Pod) bool {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	return i >= 0 && pod.Status.Conditions[i].Status == corev1.ConditionTrue
}

// mirror is what Kubernetes shows of a static pod.
func (k *kubelet) mirror(name string, node *corev1.Node) *corev1.Pod {
	image, version := k.m.component(name)
	controller := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-" + node.Name, Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{"component": name, "tier": "control-plane", "k8s-app": name},
			Annotations: map[string]string{
				corev1.MirrorPodAnnotationKey: version, "kubernetes.io/config.source": "file", constants.AnnotationStaticPodConfigVersion: version,
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &controller}},
		},
		Spec: corev1.PodSpec{NodeName: node.Name, HostNetwork: true, Containers: []corev1.Container{{Name: name, Image: image}}},
	}
}

// cordon marks the node as unschedulable in Talos's name, unless somebody has cordoned it already.
func (k *kubelet) cordon(ctx context.Context) error {
	ctx, cancel := k.m.pace.Within(ctx, cordonTimeout)
	defer cancel()
	err := errNoAPI
	done := k.m.pace.ask(ctx, settlePeriod, func() bool {
		err = k.ask(ctx, func(c *kubeClient) error {
			node, err := c.CoreV1().Nodes().Get(ctx, k.m.hostname(), metav1.GetOptions{})
			if err != nil || node.Spec.Unschedulable {
				return err
			}
			node.Spec.Unschedulable = true
			if node.Annotations == nil {
				node.Annotations = map[string]string{}
			}
			node.Annotations[constants.AnnotationCordonedKey] = constants.AnnotationCordonedValue
			_, err = c.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
			return err
		})
		return err == nil || apierrors.IsNotFound(err)
	})
	if done {
		return nil
	}
	return err
}

// evictAll evicts the node's pods and waits until they are gone. Mirrors, pods of DaemonSets and those that nobody manages stay.
func (k *kubelet) evictAll(ctx context.Context) error {
	var pods []corev1.Pod
	if err := k.ask(ctx, func(c *kubeClient) error {
		list, err := c.CoreV1().Pods("").List(ctx, podsOf(k.m.hostname()))
		if err == nil {
			pods = list.Items
		}
		return err
	}); err != nil {
		return err
	}
	for _, pod := range pods {
		owner := metav1.GetControllerOf(&pod)
		if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror || owner == nil || owner.Kind == "DaemonSet" {
			continue
		}
		if err := k.evict(ctx, pod.Namespace, pod.Name, pod.UID); err != nil {
			return err
		}
	}
	return nil
}

func (k *kubelet) evict(ctx context.Context, namespace, name string, uid types.UID) error {
	err := errNoAPI
	gone := k.m.pace.ask(ctx, evictAgain, func() bool {
		err = k.ask(ctx, func(c *kubeClient) error {
			return c.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		})
		return err == nil || !apierrors.IsTooManyRequests(err)
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case !gone || err != nil:
		return fmt.Errorf("evicting pod %s/%s: %w", namespace, name, errors.Join(err, context.Cause(ctx)))
	}
	if !k.m.pace.ask(ctx, settlePeriod, func() bool {
		var there bool
		err := k.ask(ctx, func(c *kubeClient) error {
			pod, err := c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			there = err == nil && pod.UID == uid
			return err
		})
		return !there && (err == nil || apierrors.IsNotFound(err))
	}) {
		return fmt.Errorf("waiting for pod %s/%s to go: %w", namespace, name, context.Cause(ctx))
	}
	return nil
}
