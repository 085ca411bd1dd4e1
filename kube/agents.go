package kube

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// agentDaemonSets are those of kube-system whose pods write a node's forwarding from what they watch: kube-proxy, and the network plugins
// that watch Services and Nodes.
func agentDaemonSets() []string { return []string{"cilium", "kube-flannel", "kube-proxy"} }

// Agent is a pod of one of [agentDaemonSets] on a node. Its texts come from the cluster and are cleaned.
type Agent struct {
	// DaemonSet made the pod and makes it anew when it goes.
	DaemonSet string
	// Name and UID name the pod: what is done to it is done to that, or not at all.
	Name, UID string
	// Node is where it runs; empty while it is placed nowhere.
	Node string
	// Created is when it was made, by the clock of the API server that made it.
	Created time.Time
	Ready   bool
	// Going says that it was deleted and is there still.
	Going bool
}

// Agents gives the pods of the DaemonSets that keep nodes' forwarding, by DaemonSet, node and name. Those that are not in the cluster have none.
func (c *Client) Agents(ctx context.Context) ([]Agent, error) {
	pods, err := pages(ctx, c, func(ctx context.Context, options metav1.ListOptions) ([]corev1.Pod, string, error) {
		page, err := c.api.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, options)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, metav1.ListOptions{})
	if err != nil {
		return nil, failure("reading the pods of "+metav1.NamespaceSystem, err)
	}
	var agents []Agent
	for i := range pods {
		owner := metav1.GetControllerOf(&pods[i])
		if owner != nil && owner.Kind == "DaemonSet" && slices.Contains(agentDaemonSets(), owner.Name) {
			agents = append(agents, agentOf(&pods[i], owner.Name))
		}
	}
	slices.SortFunc(agents, func(a, b Agent) int {
		return strings.Compare(a.DaemonSet+"\x00"+a.Node+"\x00"+a.Name, b.DaemonSet+"\x00"+b.Node+"\x00"+b.Name)
	})
	return agents, nil
}

func agentOf(pod *corev1.Pod, daemonSet string) Agent {
	agent := Agent{DaemonSet: daemonSet, Name: clean(pod.Name), UID: clean(string(pod.UID)), Node: clean(pod.Spec.NodeName),
		Created: pod.CreationTimestamp.Time, Going: pod.DeletionTimestamp != nil}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			agent.Ready = condition.Status == corev1.ConditionTrue && !agent.Going
		}
	}
	return agent
}

// DeleteAgent deletes a pod that its DaemonSet makes anew, in its own grace period, and returns when the API server has taken that. It waits for
// nothing. One that isn't there, goes already, or has given way to another of its name is done. After [ErrUnavailable] it may have been taken;
// deleting it again does no harm.
func (c *Client) DeleteAgent(ctx context.Context, agent Agent) error {
	doing := "deleting the pod " + metav1.NamespaceSystem + "/" + agent.Name
	if agent.UID == "" {
		return errors.New(doing + ": its UID isn't known")
	}
	ctx, cancel := c.call(ctx)
	defer cancel()
	err := c.api.CoreV1().Pods(metav1.NamespaceSystem).Delete(ctx, agent.Name, *metav1.NewPreconditionDeleteOptions(agent.UID))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return failure(doing, err)
}
