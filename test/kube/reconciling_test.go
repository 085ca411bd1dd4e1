package kubetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/test/kube/harness"
)

// inventory is every object of the API, resource by resource, with its UID. What Kubernetes renews by itself all the time is left out, and pods
// of kube-system, which a restore replaces.
func (w *world) inventory(t *testing.T) map[string]string {
	t.Helper()
	certificate, key := w.secrets.Issue(t, "inventory", []string{"system:masters"})
	client, err := metadata.NewForConfig(&rest.Config{Host: "https://" + strings.TrimPrefix(w.servers[len(w.servers)-1], "https://"), QPS: -1, Timeout: time.Minute,
		TLSClientConfig: rest.TLSClientConfig{CAData: w.secrets.CA(), CertData: certificate, KeyData: key}})
	require.NoError(t, err)
	lists, err := w.api.Discovery().ServerPreferredResources()
	require.NoError(t, err)
	all := map[string]string{}
	for _, list := range lists {
		for _, one := range list.APIResources {
			if !slices.Contains(one.Verbs, "list") || slices.Contains([]string{"events", "leases", "componentstatuses"}, one.Name) {
				continue
			}
			group, err := schema.ParseGroupVersion(list.GroupVersion)
			require.NoError(t, err)
			found, err := client.Resource(group.WithResource(one.Name)).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err, one.Name)
			for _, object := range found.Items {
				if one.Name != "pods" || object.Namespace != metav1.NamespaceSystem {
					all[fmt.Sprintf("%s %s/%s", one.Name, object.Namespace, object.Name)] = string(object.UID)
				}
			}
		}
	}
	return all
}

// oneOfEach makes objects of many kinds with a name, in a namespace of that name.
func (w *world) oneOfEach(t *testing.T, name string) {
	t.Helper()
	ctx, object := t.Context(), metav1.ObjectMeta{Name: name}
	w.namespace(t, name)
	core, labels := w.api.CoreV1(), map[string]string{"app": name}
	_, err := core.ConfigMaps(name).Create(ctx, &corev1.ConfigMap{ObjectMeta: object, Data: map[string]string{"a": name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.Secrets(name).Create(ctx, &corev1.Secret{ObjectMeta: object, StringData: map[string]string{"a": name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: object}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.Services(name).Create(ctx, &corev1.Service{ObjectMeta: object, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.PersistentVolumeClaims(name).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: object, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = w.api.RbacV1().Roles(name).Create(ctx, &rbacv1.Role{ObjectMeta: object, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	none := int32(0)
	_, err = w.api.AppsV1().Deployments(name).Create(ctx, &appsv1.Deployment{ObjectMeta: object, Spec: appsv1.DeploymentSpec{Replicas: &none,
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/none:1"}}}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// restoring is a restore of a farm's cluster from a file, driven as the agent drives it: where there is a holder, all others leave an etcd that
// works, and without one all are wiped that have data.
func (w *world) restoring(t *testing.T, farm *talossim.Farm, file, holder string, api recovery.Kubernetes) *recovery.Marker {
	t.Helper()
	client := talos.NewClient(w.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = client.Close() })
	spool, err := backup.OpenSpool(filepath.Join(t.TempDir(), "spool"))
	require.NoError(t, err)
	source, err := os.Open(file)
	require.NoError(t, err)
	defer source.Close() //nolint:errcheck // it was read
	ready, err := revision.Prepare(within(t), source, 1<<20, spool, func(own int64) (int64, error) {
		known := revision.Known{Snapshot: own}
		if holder != "" { // else the API doesn't say how far it has come
			if known.APIServer, err = w.client(t).Revision(within(t)); err != nil {
				return 0, err
			}
		}
		return revision.Target(known)
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = ready.Close() })
	store, err := statefile.OpenFolder(t.TempDir(), statefile.FolderOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	material := w.bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	require.NoError(t, err)
	m := &recovery.Marker{ID: recovery.NewID(), Cluster: recovery.Cluster{Name: "prod", ID: material.ClusterID}, Target: "cp-1", Holder: holder,
		Snapshot: recovery.Snapshot{Name: "file", Revision: ready.Before.Revision, Keys: ready.Before.Keys}}
	m.Snapshot.Raise(ready.After.Revision, 0)
	for _, node := range farm.Nodes() {
		machine := recovery.Machine{Name: node.Name(), Endpoint: node.Address(), UUID: node.UUID()}
		if node.Role() == talossim.ControlPlane {
			m.Machines, m.Wipe = append(m.Machines, machine), append(m.Wipe, node.Name())
		} else {
			m.Workers = append(m.Workers, machine)
		}
	}
	var mu sync.Mutex
	var said []string
	run := &recovery.Run{Nodes: recovery.TalosNodes(client), Marker: backup.NewMarker(store, sealer), Fence: recovery.NoFence{}, Kubernetes: api, Prepared: ready,
		Count: recovery.CountIn(spool), Clock: clock.RealClock{}, Clocks: statefile.SystemClocks(), Timing: recovery.DefaultTiming().Scaled(20), Scrubber: scrub.New(),
		Say: func(line string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, line)
		}}
	_, err = run.Marker.Read(within(t))
	require.NoError(t, err)
	require.NoError(t, run.Begin(within(t), m))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	ended, err := run.Go(ctx)
	require.NoError(t, err, strings.Join(said, "\n"))
	require.Empty(t, ended.Notes, strings.Join(said, "\n"))
	return ended
}

var everyRestore = flag.Bool("every-restore", false, "restore clusters of every size under Kubernetes's own servers, not only those that CI restores")

// TestARestoreBringsBackWhatWasThereAndWhatLivedThroughItReadsAnew restores clusters that run Kubernetes's own servers. The kubelets are played
// and run nothing, so what a real one had in its memory is not seen here; that they are restarted, heard of, and that the pods are made
// anew by their DaemonSets' own controller is.
func TestARestoreBringsBackWhatWasThereAndWhatLivedThroughItReadsAnew(t *testing.T) {
	t.Parallel()
	for _, one := range []restoredCluster{
		{name: "three and a worker: one is wiped", address: 100, controlPlanes: 3, workers: 1, holder: "cp-3", always: true},
		{name: "one and a worker: it is wiped", address: 110, controlPlanes: 1, workers: 1, always: true},
		{name: "three of which two lost their data", address: 120, controlPlanes: 3, lost: []string{"cp-2", "cp-3"}},
		{name: "five: one is wiped", address: 130, controlPlanes: 5, holder: "cp-4"},
		{name: "five of which three lost their data", address: 140, controlPlanes: 5, lost: []string{"cp-1", "cp-3", "cp-5"}},
	} {
		if one.always || *everyRestore {
			t.Run(one.name, one.restore)
		}
	}
}

// restoredCluster is a cluster that is wound back to a snapshot.
type restoredCluster struct {
	name string
	// address is the last number of the first machine's address.
	address                int
	controlPlanes, workers int
	// holder is the one that is wiped, of an etcd that works. lost are those without their data, where all are wiped that have some.
	holder string
	lost   []string
	always bool
}

func (c restoredCluster) restore(t *testing.T) {
	w, farm := startFarm(t, fmt.Sprintf("127.0.75.%d", c.address), fmt.Sprintf("127.0.75.%d", c.address+9), c.controlPlanes, c.workers)
	client := w.client(t)
	for _, name := range []string{"kube-proxy", "kube-flannel"} {
		w.agentDaemonSet(t, name, "")
	}
	pods := map[string]string{}
	for _, node := range farm.Nodes() {
		for _, name := range []string{"kube-proxy", "kube-flannel"} {
			pods[name+" "+node.Name()] = agentOn(t, client, name, node.Name(), "").UID
		}
	}
	w.oneOfEach(t, "before")
	quiet(t, w.api)
	before := w.inventory(t)
	for _, kind := range []string{"namespaces /", "configmaps before/", "secrets before/", "serviceaccounts before/", "services before/", "persistentvolumeclaims before/",
		"roles before/", "deployments before/"} {
		require.Contains(t, before, kind+"before")
	}
	talosClient := talos.NewClient(w.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = talosClient.Close() })
	taken := takeSnapshot(t, talosClient, talos.Target{Name: "cp-1", Endpoint: farm.Node("cp-1").Address(), ControlPlane: true})
	w.oneOfEach(t, "lateborn")
	_, err := w.api.CoreV1().ConfigMaps("before").Patch(t.Context(), "before", "application/merge-patch+json", []byte(`{"data":{"a":"changed"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, w.api.CoreV1().Secrets("before").Delete(t.Context(), "before", metav1.DeleteOptions{}))
	held := w.hold(t, "before", "later")
	if len(c.lost) > 0 {
		loseQuorum(t, farm, client, c.lost)
	}

	ended := w.restoring(t, farm, taken, c.holder, client)
	requireRestored(t, w, before)
	w.requireTold(t, "before", held)
	requireReadAnew(t, w, farm, ended, pods)
}

// loseQuorum takes the data of most control planes, so that nothing of the old etcd answers any more.
func loseQuorum(t *testing.T, farm *talossim.Farm, client *kube.Client, lost []string) {
	t.Helper()
	for _, name := range lost {
		require.NoError(t, farm.Node(name).PowerOff())
	}
	for _, name := range lost {
		require.NoError(t, farm.Node(name).LoseEtcdData())
		farm.Node(name).PowerOn()
	}
	harness.Eventually(t, "the API is away", func() error {
		if err := client.Ready(within(t)); !errors.Is(err, kube.ErrUnavailable) {
			return fmt.Errorf("it answers: %w", err)
		}
		return nil
	})
}

// requireReadAnew wants the kubelet of each machine that was neither wiped nor rebooted to be restarted once, and its pods of before replaced;
// those of the others began anew by that.
func requireReadAnew(t *testing.T, w *world, farm *talossim.Farm, ended *recovery.Marker, pods map[string]string) {
	t.Helper()
	survivors := map[string]bool{}
	for _, node := range farm.Nodes() {
		lived := len(node.Accepted("Reset")) == 0 && len(node.Accepted("Reboot")) == 0
		if restarts := len(node.Accepted("ServiceRestart")); lived {
			survivors[node.Name()] = true
			require.Equal(t, 1, restarts, "%s lived through it", node.Name())
		} else {
			require.Zero(t, restarts, "%s began anew", node.Name())
		}
	}
	require.NotEmpty(t, survivors)
	require.Len(t, ended.Survivors.Kubelets, len(survivors))
	require.Len(t, ended.Survivors.Pods, 2*len(survivors))
	for what, uid := range pods {
		daemonSet, node, _ := strings.Cut(what, " ")
		now := agentOn(t, w.client(t), daemonSet, node, "").UID
		require.Equal(t, !survivors[node], now == uid, "%s on %s", daemonSet, node)
	}
}

// quiet waits until the controllers have made what belongs to what was made.
func quiet(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	harness.Eventually(t, "the controllers have caught up", func() error {
		sets, err := api.AppsV1().ReplicaSets("before").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(sets.Items) != 1 {
			err = fmt.Errorf("%d ReplicaSets", len(sets.Items))
		}
		return err
	})
}

// requireRestored wants each object that was there before the snapshot, and none of what came after it.
func requireRestored(t *testing.T, w *world, before map[string]string) {
	t.Helper()
	now := w.inventory(t)
	for what, uid := range before {
		require.Equal(t, uid, now[what], what)
	}
	for what := range now {
		require.NotContains(t, what, "lateborn", "it came after the snapshot")
	}
	kept, err := w.api.CoreV1().ConfigMaps("before").Get(t.Context(), "before", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": "before"}, kept.Data, "and what was changed since is as it was")
	_, err = w.api.CoreV1().ConfigMaps("before").Get(t.Context(), "later", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
