package kube

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatANodeSays(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	heartbeat, renewed := time.Unix(1000, 0), time.Unix(2000, 0)
	condition := func(status corev1.ConditionStatus) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
				{Type: corev1.NodeReady, Status: status, Reason: "Kubelet\x1b[2J", Message: "says so", LastHeartbeatTime: metav1.NewTime(heartbeat)},
			}
		}
	}
	cluster.addNode("w1", "u1", condition(corev1.ConditionTrue))
	cluster.addNode("w2", "u2", condition(corev1.ConditionFalse))
	cluster.addNode("w3", "u3", condition(corev1.ConditionUnknown))
	cluster.addNode("cp", "u0", func(n *corev1.Node) {
		n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
		n.Annotations = map[string]string{cordonAnnotation: "sha256:1"}
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{
			{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
			{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule},
		}
		n.Status.NodeInfo = corev1.NodeSystemInfo{BootID: "b0", SystemUUID: "s0", KubeletVersion: "v1.36.3"}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.11"}, {Type: corev1.NodeHostName, Address: "cp"}}
	})
	micro := metav1.NewMicroTime(renewed)
	cluster.leases = []coordinationv1.Lease{
		{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &micro}},
		{ObjectMeta: metav1.ObjectMeta{Name: "w2"}},
	}

	nodes, err := one(t, cluster).Nodes(t.Context())
	require.NoError(t, err)
	require.Equal(t, Node{
		Name: "cp", UID: "u0", ResourceVersion: nodes[0].ResourceVersion, Unschedulable: true, CordonedBy: "sha256:1", BootID: "b0", SystemUUID: "s0",
		Addresses: []string{"10.0.0.11", "cp"}, ControlPlane: true, Taints: []string{"node-role.kubernetes.io/control-plane:NoSchedule"}, KubeletVersion: "v1.36.3",
	}, nodes[0])
	for i, want := range []struct {
		ready     Fact
		heartbeat time.Time
	}{{Yes, renewed}, {No, heartbeat}, {Unknown, heartbeat}} {
		got := nodes[i+1]
		require.Equal(t, want.ready, got.Ready, got.Name)
		require.True(t, want.heartbeat.Equal(got.Heartbeat), "%s: %s", got.Name, got.Heartbeat)
		require.Equal(t, "Kubelet: says so", got.ReadyReason, "a reason loses what would act on a terminal")
	}
}

func TestWhetherAnOrdinaryPodMayBePlaced(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		node Node
		want bool
	}{
		{"a plain node", Node{}, true},
		{"a cordoned one", Node{Unschedulable: true}, false},
		{"a control plane that keeps workloads away", Node{Taints: []string{"node-role.kubernetes.io/control-plane:NoSchedule"}}, false},
		{"one that throws workloads out", Node{Taints: []string{"a=b:NoExecute"}}, false},
		{"one that would rather have none", Node{Taints: []string{"a=b:PreferNoSchedule"}}, true},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.node.Schedulable()) })
	}
}

func TestTheRevisionThatEtcdHasReached(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	client := one(t, cluster)
	cluster.revision = "2000000123"
	revision, err := client.Revision(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2000000123, revision)
	for _, odd := range []string{"", "0", "-3", "x"} {
		cluster.mu.Lock()
		cluster.revision = odd
		cluster.mu.Unlock()
		_, err := client.Revision(t.Context())
		require.Error(t, err, odd)
	}
}

func TestWhatAClientNeeds(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	certificate := func() (tls.Certificate, error) { return tls.Certificate{}, nil }
	for _, c := range []struct {
		name    string
		options Options
		want    string
	}{
		{"no server", Options{CA: authority.pem, Certificate: certificate}, "no address of a Kubernetes API server is known"},
		{"a server that is none", Options{Servers: []string{"http://10.0.0.1"}, CA: authority.pem, Certificate: certificate}, `"http://10.0.0.1" is no address of a Kubernetes API server`},
		{"no certificate", Options{Servers: []string{"10.0.0.1"}, CA: authority.pem}, "needs a certificate"},
		{"no authority", Options{Servers: []string{"10.0.0.1"}, CA: []byte("x"), Certificate: certificate}, "the certificate of the Kubernetes authority can't be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.options)
			require.ErrorContains(t, err, c.want)
		})
	}
}
