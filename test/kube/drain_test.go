package kubetest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/test/kube/harness"
)

func stuck(t *testing.T, w *world) {
	namespace := w.namespace(t, "stuck")
	w.inPool(t, "stuck", 1)
	w.deployment(t, namespace, "stuck", 2)
	w.budget(t, namespace, "stuck", 0, 2)
	client, node := w.client(t), w.cordon(t, "stuck-1")

	for range 2 { // a second round changes nothing
		round, err := client.Evict(within(t), node, kube.EvictOptions{Force: true})
		require.NoError(t, err)
		require.Len(t, round.Left, 2, "force is for pods without a controller, not for budgets")
		require.Empty(t, round.Blocked)
		for _, pod := range round.Left {
			require.False(t, pod.Terminating)
			require.Equal(t, []kube.Budget{{Namespace: namespace, Name: "keep", Healthy: 2, Wanted: 2, Expected: 2}}, pod.Budgets)
			require.Equal(t, "is held by the budget stuck/keep (0 disruptions allowed, 2 of 2 pods are healthy and 2 must be)", pod.Why)
			require.Contains(t, round.Sentence(), namespace+"/"+pod.Name+" is held by the budget stuck/keep")
		}
	}
	require.Len(t, w.podsOn(t, namespace, "stuck-1"), 2)

	lifted, err := client.Uncordon(within(t), node, "op-1")
	require.NoError(t, err)
	require.True(t, lifted, "a drain that is given up leaves the node as it was")
}

func drained(t *testing.T, w *world) {
	namespace := w.namespace(t, "drained")
	w.inPool(t, "drained", 1)
	w.deployment(t, namespace, "drained", 3)
	w.budget(t, namespace, "drained", 1, 3)
	w.daemonSet(t, namespace, "drained")
	mirror := w.lonelyPod(t, namespace, "etcd-drained-1", "drained-1", func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "mirror", "kubernetes.io/config.source": "file"}
	})
	w.inPool(t, "drained", 2)
	w.inPool(t, "drained", 3)

	least := 3
	node := w.cordon(t, "drained-1")
	w.drain(t, node, kube.EvictOptions{}, func(round kube.Drain) {
		for _, pod := range round.Left {
			require.NotContains(t, pod.Name, "logs")
			require.NotEqual(t, mirror.Name, pod.Name)
		}
		ready := 0
		pods, err := w.api.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=drained"})
		require.NoError(t, err)
		for i := range pods.Items {
			if pods.Items[i].DeletionTimestamp == nil && isReady(&pods.Items[i]) {
				ready++
			}
		}
		least = min(least, ready)
	})
	require.GreaterOrEqual(t, least, 2, "the budget allows one pod to be away")
	var stay []string
	for _, pod := range w.podsOn(t, namespace, "drained-1") {
		stay = append(stay, pod.Labels["app"]+pod.Annotations[corev1.MirrorPodAnnotationKey])
	}
	require.ElementsMatch(t, []string{"logs", "mirror"}, stay)
	w.available(t, namespace, 3)
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// daemonSet starts one for a pool and waits until its pod is there.
func (w *world) daemonSet(t *testing.T, namespace, pool string) {
	t.Helper()
	template := podsOf(pool)
	template.Labels = map[string]string{"app": "logs"}
	w.newDaemonSet(t, namespace, "logs", template)
	harness.Eventually(t, "the DaemonSet's pod is ready", func() error {
		found, err := w.api.AppsV1().DaemonSets(namespace).Get(t.Context(), "logs", metav1.GetOptions{})
		if err == nil && found.Status.NumberReady == 0 {
			err = errors.New("none is")
		}
		return err
	})
}

// lonelyPod makes a pod without a controller on a node, and waits until it runs.
func (w *world) lonelyPod(t *testing.T, namespace, name, node string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	spec := podsOf("").Spec
	spec.NodeSelector, spec.NodeName, spec.AutomountServiceAccountToken = nil, node, ptr.To(false)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	change(pod)
	made, err := w.api.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	harness.Eventually(t, name+" runs", func() error {
		found, err := w.api.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && found.Status.Phase != corev1.PodRunning {
			err = errors.New(string(found.Status.Phase))
		}
		return err
	})
	return made
}

func unmanaged(t *testing.T, w *world) {
	namespace := w.namespace(t, "unmanaged")
	w.inPool(t, "unmanaged", 1)
	w.deployment(t, namespace, "unmanaged", 1)
	w.lonelyPod(t, namespace, "lonely", "unmanaged-1", func(*corev1.Pod) {})
	client, node := w.client(t), w.cordon(t, "unmanaged-1")

	round, err := client.Evict(within(t), node, kube.EvictOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"unmanaged/lonely has no controller that would make it anew elsewhere; delete it, or set spec.rollout.drain.force"}, round.Blocked)
	for _, pod := range w.podsOn(t, namespace, node.Name) {
		require.Nil(t, pod.DeletionTimestamp, "nothing is evicted from a node that can't be drained: %s", pod.Name)
	}
	w.drain(t, node, kube.EvictOptions{Force: true}, nil)
	require.Empty(t, w.podsOn(t, namespace, node.Name))
}

func twoBudgets(t *testing.T, w *world) {
	namespace := w.namespace(t, "twice")
	w.inPool(t, "twice", 1)
	w.deployment(t, namespace, "twice", 1)
	w.budget(t, namespace, "twice", 1, 1)
	w.newBudget(t, namespace, "also", "twice", 1)
	node := w.cordon(t, "twice-1")
	round, err := w.client(t).Evict(within(t), node, kube.EvictOptions{})
	require.NoError(t, err)
	require.Len(t, round.Left, 1)
	require.Len(t, round.Left[0].Budgets, 2)
	require.Contains(t, round.Sentence(), "can't be evicted because several budgets cover it, which Kubernetes refuses: the budget twice/also (")
	require.Contains(t, round.Sentence(), " and the budget twice/keep (")
	require.Nil(t, w.podsOn(t, namespace, "twice-1")[0].DeletionTimestamp)
}

func slowPod(t *testing.T, w *world) {
	namespace := w.namespace(t, "slow")
	kubelet := w.inPool(t, "slow", 1)
	w.deployment(t, namespace, "slow", 1)
	pod := w.podsOn(t, namespace, "slow-1")[0]
	kubelet.Hold(namespace, pod.Name)
	client, node := w.client(t), w.cordon(t, "slow-1")
	for range 3 {
		round, err := client.Evict(within(t), node, kube.EvictOptions{})
		require.NoError(t, err)
		require.Equal(t, []kube.Pod{{Namespace: namespace, Name: pod.Name, Terminating: true}}, round.Left)
		require.Equal(t, "1 pod on the way out: slow/"+pod.Name, round.Sentence())
	}
	kubelet.Release(namespace, pod.Name)
	w.drain(t, node, kube.EvictOptions{}, nil)
}

func volumes(t *testing.T, w *world) {
	namespace := w.namespace(t, "volumes")
	w.inPool(t, "volumes", 1)
	for _, name := range []string{"data", "logs"} {
		w.volume(t, namespace, name)
		_, err := w.api.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "attach-" + name},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: "volumes-1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv-" + name)}}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	template := podsOf("volumes")
	template.Spec.Volumes = []corev1.Volume{{Name: "logs", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "logs"}}}}
	w.newDaemonSet(t, namespace, "logs", template)
	harness.Eventually(t, "the DaemonSet's pod is placed", func() error {
		if len(w.podsOn(t, namespace, "volumes-1")) == 0 {
			return errors.New("it isn't")
		}
		return nil
	})

	client, node := w.client(t), w.cordon(t, "volumes-1")
	round, err := client.Evict(within(t), node, kube.EvictOptions{})
	require.NoError(t, err)
	require.Equal(t, kube.Drain{Volumes: []string{"pv-data"}}, round, "what the DaemonSet's pod uses stays attached")
	require.NoError(t, w.api.StorageV1().VolumeAttachments().Delete(t.Context(), "attach-data", metav1.DeleteOptions{}))
	w.drain(t, node, kube.EvictOptions{}, nil)
}

// volume makes a claim and the volume that it is bound to.
func (w *world) volume(t *testing.T, namespace, name string) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim, err := w.api.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, StorageClassName: ptr.To(""), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: size}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = w.api.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: claim.Spec.AccessModes, ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: name, UID: claim.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: name}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = w.api.CoreV1().PersistentVolumeClaims(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":{"phase":"Bound"}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}
