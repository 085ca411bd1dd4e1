package kubetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/test/kube/harness"
)

// agentDaemonSet makes one in kube-system for a pool of nodes; an empty pool is every node.
func (w *world) agentDaemonSet(t *testing.T, name, pool string) {
	t.Helper()
	template := podsOf(pool)
	template.Labels = map[string]string{"app": name}
	template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if pool == "" {
		template.Spec.NodeSelector = nil
	}
	w.newDaemonSet(t, metav1.NamespaceSystem, name, template)
}

// agentOn waits until a DaemonSet has one pod on a node, ready and another than the one with that UID, and gives it.
func agentOn(t *testing.T, client *kube.Client, daemonSet, node, not string) kube.Agent {
	t.Helper()
	var found kube.Agent
	harness.Eventually(t, daemonSet+" runs on "+node, func() error {
		all, err := client.Agents(within(t))
		if err != nil {
			return err
		}
		var here []kube.Agent
		for _, agent := range all {
			if agent.DaemonSet == daemonSet && agent.Node == node {
				here = append(here, agent)
			}
		}
		if len(here) != 1 || !here[0].Ready || here[0].UID == not {
			return fmt.Errorf("%+v", here)
		}
		found = here[0]
		return nil
	})
	return found
}

// replacedAgents has Kubernetes's own DaemonSet controller make a deleted pod anew.
func replacedAgents(t *testing.T, w *world) {
	client := w.client(t)
	kubelet := w.inPool(t, "agents", 1)
	w.agentDaemonSet(t, "kube-proxy", "agents")
	w.agentDaemonSet(t, "another", "agents")
	old := agentOn(t, client, "kube-proxy", "agents-1", "")
	require.NotEmpty(t, old.UID)
	require.False(t, old.Created.IsZero())
	agents, err := client.Agents(within(t))
	require.NoError(t, err)
	for _, agent := range agents {
		require.Equal(t, "kube-proxy", agent.DaemonSet, "pods of other DaemonSets are nothing of Ichor's")
	}

	other := old
	other.UID = "0000"
	require.NoError(t, client.DeleteAgent(within(t), other))
	require.Equal(t, old.UID, agentOn(t, client, "kube-proxy", "agents-1", "").UID, "what is meant for another pod reaches none")

	kubelet.Hold(metav1.NamespaceSystem, old.Name)
	require.NoError(t, client.DeleteAgent(within(t), old))
	agents, err = client.Agents(within(t))
	require.NoError(t, err)
	require.Len(t, agents, 1)
	require.True(t, agents[0].Going && !agents[0].Ready, "it goes in its own time: %+v", agents[0])
	require.NoError(t, client.DeleteAgent(within(t), old), "twice does no harm")
	kubelet.Release(metav1.NamespaceSystem, old.Name)
	anew := agentOn(t, client, "kube-proxy", "agents-1", old.UID)
	require.NoError(t, client.DeleteAgent(within(t), old))
	require.Equal(t, anew.UID, agentOn(t, client, "kube-proxy", "agents-1", "").UID)
	require.False(t, anew.Created.Before(old.Created))
}
