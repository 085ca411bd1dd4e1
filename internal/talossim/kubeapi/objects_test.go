package kubeapi_test

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/drain"
	"k8s.io/utils/clock"
)

func TestWhoHasNoCertificateOfTheClusterIsNobody(t *testing.T) {
	b := newBench(t, "127.0.76.1", clock.RealClock{})
	stranger, err := x509.NewSelfSignedCertificateAuthority(x509.ECDSA(true), x509.NotAfter(time.Now().Add(time.Hour)))
	require.NoError(t, err)
	foreign, err := x509.NewKeyPair(stranger, x509.CommonName("admin"), x509.Organization("system:masters"), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	require.NoError(t, err)
	for name, cfg := range map[string]*tls.Config{"none": b.tls(), "another cluster's": b.tls(*foreign.Certificate)} {
		t.Run(name, func(t *testing.T) {
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg}}
			defer c.CloseIdleConnections()
			for _, path := range []string{"/api/v1/nodes", "/livez", "/version"} {
				resp, err := c.Get(b.host() + path)
				require.NoError(t, err)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
				require.Contains(t, string(body), `"reason":"Unauthorized"`)
			}
		})
	}
}

func TestAKubeletMayWriteItsOwnNodeOnly(t *testing.T) {
	b := newBench(t, "127.0.76.2", clock.RealClock{})
	b.node("w-1", nil)
	b.node("w-2", nil)
	kubelet := b.client("system:node:w-1", "system:nodes")
	cordon := []byte(`{"spec":{"unschedulable":true}}`)
	_, err := kubelet.CoreV1().Nodes().Patch(t.Context(), "w-1", types.StrategicMergePatchType, cordon, metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = kubelet.CoreV1().Nodes().Patch(t.Context(), "w-2", types.StrategicMergePatchType, cordon, metav1.PatchOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.True(t, apierrors.IsForbidden(kubelet.CoreV1().Nodes().Delete(t.Context(), "w-1", metav1.DeleteOptions{})))
	_, err = kubelet.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	_, err = b.client("somebody", "developers").CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.EqualError(t, err, `nodes is forbidden: User "somebody" cannot list resource "nodes" in API group "" at the cluster scope`)
}

func TestAClientLearnsWhatThereIs(t *testing.T) {
	b := newBench(t, "127.0.76.3", clock.RealClock{})
	version, err := b.Discovery().ServerVersion()
	require.NoError(t, err)
	require.Equal(t, "v1.36.2", version.GitVersion)
	require.Equal(t, "1.36", version.Major+"."+version.Minor)
	_, lists, err := b.Discovery().ServerGroupsAndResources()
	require.NoError(t, err)
	var names []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			names = append(names, list.GroupVersion+" "+r.Name)
		}
	}
	require.Subset(t, names, []string{"v1 nodes", "v1 pods/eviction", "coordination.k8s.io/v1 leases", "policy/v1 poddisruptionbudgets", "apps/v1 daemonsets"})
	eviction, err := drain.CheckEvictionSupport(b)
	require.NoError(t, err)
	require.Equal(t, "policy/v1", eviction.String())
}

func TestAnObjectIsWhatEtcdHas(t *testing.T) {
	b := newBench(t, "127.0.76.4", clock.RealClock{})
	nodes := b.CoreV1().Nodes()
	node := b.node("w-1", map[string]string{"a": "1"})
	value, at := b.stored("/registry/minions/w-1")
	require.Equal(t, strconv.FormatInt(at, 10), revision(node))
	var kept corev1.Node
	require.NoError(t, json.Unmarshal([]byte(value), &kept))
	require.Equal(t, node.UID, kept.UID)
	require.Empty(t, kept.ResourceVersion)

	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w-1"}}, metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	_, err = nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "W 1"}}, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	_, err = nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w-2"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	_, err = nodes.Get(t.Context(), "w-2", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	same, err := nodes.Update(t.Context(), node.DeepCopy(), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, revision(node), revision(same), "what changes nothing isn't written")

	labelled := node.DeepCopy()
	labelled.Labels["a"] = "2"
	labelled.Status.NodeInfo.BootID = "not here"
	labelled, err = nodes.Update(t.Context(), labelled, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Empty(t, labelled.Status.NodeInfo.BootID, "an object's status is written by its own path")
	_, err = nodes.Update(t.Context(), node, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.ErrorContains(t, err, "the object has been modified")

	labelled.Status.NodeInfo.BootID, labelled.Spec.Unschedulable = "b", true
	reported, err := nodes.UpdateStatus(t.Context(), labelled, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "b", reported.Status.NodeInfo.BootID)
	require.False(t, reported.Spec.Unschedulable, "a status doesn't change the object")

	other := types.UID("another")
	err = nodes.Delete(t.Context(), "w-1", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.ErrorContains(t, err, "Precondition failed: UID in precondition: another")
	stale := revision(node)
	require.True(t, apierrors.IsConflict(nodes.Delete(t.Context(), "w-1", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &stale}})))
	require.NoError(t, nodes.Delete(t.Context(), "w-1", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &node.UID}}))
	value, _ = b.stored("/registry/minions/w-1")
	require.Empty(t, value)
}

func TestANodeTakesItsLeaseWithIt(t *testing.T) {
	b := newBench(t, "127.0.76.5", clock.RealClock{})
	node := b.node("w-1", nil)
	leases := b.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: "w-1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "w-1", UID: node.UID}},
	}}
	lease, err := leases.Create(t.Context(), lease, metav1.CreateOptions{})
	require.NoError(t, err)
	lease.ResourceVersion = ""
	_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
	require.ErrorContains(t, err, "must be specified for an update")
	_, err = leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "w-2"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, b.CoreV1().Nodes().Delete(t.Context(), "w-1", metav1.DeleteOptions{}))
	list, err := leases.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	require.Equal(t, "w-2", list.Items[0].Name)
	_, err = b.CoordinationV1().Leases("nowhere").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "w-2"}}, metav1.CreateOptions{})
	require.EqualError(t, err, `namespaces "nowhere" not found`)
}

func TestPatchesOfThreeKindsAreTaken(t *testing.T) {
	b := newBench(t, "127.0.76.6", clock.RealClock{})
	node := b.node("w-1", map[string]string{"a": "1"})
	node.Finalizers = []string{"example.com/kept"}
	_, err := b.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	for _, c := range []struct {
		name  string
		kind  types.PatchType
		patch string
		want  func(*corev1.Node) bool
	}{
		{"a strategic merge adds to a list", types.StrategicMergePatchType, `{"metadata":{"finalizers":["example.com/new"]}}`, func(n *corev1.Node) bool { return len(n.Finalizers) == 2 }},
		{"a merge replaces a list", types.MergePatchType, `{"metadata":{"finalizers":[],"labels":{"a":null}}}`, func(n *corev1.Node) bool { return len(n.Finalizers) == 0 && n.Labels["a"] == "" }},
		{"a JSON patch is done step by step", types.JSONPatchType, `[{"op":"add","path":"/spec/unschedulable","value":true}]`, func(n *corev1.Node) bool { return n.Spec.Unschedulable }},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := b.CoreV1().Nodes().Patch(t.Context(), "w-1", c.kind, []byte(c.patch), metav1.PatchOptions{})
			require.NoError(t, err)
			require.True(t, c.want(got), "%v", got)
		})
	}
	for _, c := range []struct {
		name  string
		kind  types.PatchType
		patch string
		is    func(error) bool
	}{
		{"a patch that names an old revision is refused", types.MergePatchType, `{"metadata":{"resourceVersion":"1"}}`, apierrors.IsConflict},
		{"a step that finds something else is refused", types.JSONPatchType, `[{"op":"test","path":"/metadata/name","value":"w-9"}]`, apierrors.IsInvalid},
		{"what isn't JSON is refused", types.MergePatchType, `{`, apierrors.IsBadRequest},
		{"apply isn't known", types.ApplyYAMLPatchType, `{}`, apierrors.IsUnsupportedMediaType},
	} {
		t.Run(c.name, func(t *testing.T) {
			force := true
			_, err := b.CoreV1().Nodes().Patch(t.Context(), "w-1", c.kind, []byte(c.patch), metav1.PatchOptions{FieldManager: "t", Force: &force})
			require.True(t, c.is(err), "%v", err)
		})
	}
}

func TestListsAreSelected(t *testing.T) {
	b := newBench(t, "127.0.76.7", clock.RealClock{})
	b.pod("a", "w-1", map[string]string{"app": "web"})
	b.pod("b", "w-2", map[string]string{"app": "web"})
	b.pod("c", "w-1", nil)
	for query, want := range map[metav1.ListOptions]int{
		{}:                                      3,
		{LabelSelector: "app=web"}:              2,
		{FieldSelector: "spec.nodeName=w-1"}:    2,
		{FieldSelector: "metadata.name=b"}:      1,
		{FieldSelector: "status.phase=Running"}: 3,
		{LabelSelector: "app", FieldSelector: "spec.nodeName!=w-1"}: 1,
	} {
		list, err := b.CoreV1().Pods("").List(t.Context(), query)
		require.NoError(t, err)
		require.Len(t, list.Items, want, "%v", query)
	}
	_, err := b.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.x=1"})
	require.True(t, apierrors.IsBadRequest(err), "%v", err)
	list, err := b.CoreV1().Pods("elsewhere").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items)
	attachments, err := b.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, attachments.Items)
}

func TestAnAPIWithoutItsEtcdSaysSo(t *testing.T) {
	b := newBench(t, "127.0.76.8", clock.RealClock{})
	ready := func(ctx context.Context) string {
		body, _ := b.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return string(body)
	}
	require.Equal(t, "ok", ready(t.Context()))
	b.node("w-1", nil)
	b.member.Kill()
	_, err := b.CoreV1().Nodes().Get(t.Context(), "w-1", metav1.GetOptions{})
	require.True(t, apierrors.IsTimeout(err) || apierrors.IsInternalError(err), "%v", err)
	require.Contains(t, ready(t.Context()), "[-]etcd failed")
	body, err := b.Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(t.Context())
	require.NoError(t, err)
	require.Equal(t, "ok", string(body))
}
