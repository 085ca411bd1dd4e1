package machined

import (
	"encoding/json"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isReady says whether a node's Ready condition is true.
func isReady(node *corev1.Node) bool {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	return i >= 0 && node.Status.Conditions[i].Status == corev1.ConditionTrue
}

// newNode is the node as the kubelet registers it.
func (k *kubelet) newNode(p config.Provider) *corev1.Node {
	name := k.m.hostname()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH},
	}}
	return k.withStatus(p, node, false)
}

// withStatus is the node with what the kubelet reports about it.
func (k *kubelet) withStatus(p config.Provider, node *corev1.Node, ready bool) *corev1.Node {
	m := k.m
	next := node.DeepCopy()
	image := p.Machine().Kubelet().Image()
	next.Status.NodeInfo = corev1.NodeSystemInfo{
		BootID: m.bootID, SystemUUID: m.cfg.UUID, MachineID: strings.ReplaceAll(m.cfg.UUID, "-", ""), OSImage: "Talos (" + Version + ")",
		KubeletVersion: image[strings.LastIndex(image, ":")+1:], OperatingSystem: "linux", Architecture: runtime.GOARCH,
	}
	next.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: m.cfg.Address.String()}, {Type: corev1.NodeHostName, Address: m.hostname()},
	}
	now := metav1.NewTime(m.pace.Clock.Now()).Rfc3339Copy()
	condition := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now,
		Reason: "KubeletReady", Message: "kubelet is posting ready status",
	}
	if !ready {
		condition.Status, condition.Reason = corev1.ConditionFalse, "KubeletNotReady"
		condition.Message = "container runtime status check may not have completed yet"
	}
	next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, func(c corev1.NodeCondition) bool {
		if c.Type == corev1.NodeReady && c.Status == condition.Status {
			condition.LastTransitionTime = c.LastTransitionTime
		}
		return c.Type == corev1.NodeReady
	})
	next.Status.Conditions = append(next.Status.Conditions, condition)
	return next
}

// wanted is the node with the labels, annotations and taints of the config, and without Talos's own cordon once the machine has booted.
// What Talos once put there and the config no longer names goes (Talos: controllers/k8s/node_apply.go).
func (k *kubelet) wanted(p config.Provider, node *corev1.Node) (next *corev1.Node, changed bool) {
	next = node.DeepCopy()
	labels := maps.Clone(map[string]string(p.Machine().NodeLabels()))
	taints := maps.Clone(map[string]string(p.Machine().NodeTaints()))
	if labels == nil {
		labels = map[string]string{}
	}
	if taints == nil {
		taints = map[string]string{}
	}
	if p.Machine().Type().IsControlPlane() {
		labels[constants.LabelNodeRoleControlPlane] = ""
		if !p.Cluster().ScheduleOnControlPlanes() {
			taints[constants.LabelNodeRoleControlPlane] = ":" + string(corev1.TaintEffectNoSchedule)
		}
	}
	next.Labels = merged(next.Labels, ownedNames(node, constants.AnnotationOwnedLabels), labels)
	next.Spec.Taints = mergedTaints(next.Spec.Taints, ownedNames(node, constants.AnnotationOwnedTaints), taints)
	next.Annotations = merged(next.Annotations, ownedNames(node, constants.AnnotationOwnedAnnotations), p.Machine().NodeAnnotations())
	keepNames(next, constants.AnnotationOwnedLabels, labels)
	keepNames(next, constants.AnnotationOwnedTaints, taints)
	keepNames(next, constants.AnnotationOwnedAnnotations, p.Machine().NodeAnnotations())
	if !k.booted && k.settled && next.Annotations[constants.AnnotationCordonedKey] == constants.AnnotationCordonedValue {
		next.Spec.Unschedulable = false
		delete(next.Annotations, constants.AnnotationCordonedKey)
	}
	return next, !maps.Equal(node.Labels, next.Labels) || !maps.Equal(node.Annotations, next.Annotations) ||
		!slices.Equal(node.Spec.Taints, next.Spec.Taints) || node.Spec.Unschedulable != next.Spec.Unschedulable
}

// merged is a map with what is wanted of it, without what Talos once put there, and with what others did.
func merged(has map[string]string, before []string, wants map[string]string) map[string]string {
	next := map[string]string{}
	maps.Copy(next, has)
	for _, name := range before {
		delete(next, name)
	}
	maps.Copy(next, wants)
	return next
}

func mergedTaints(has []corev1.Taint, before []string, wants map[string]string) []corev1.Taint {
	next := slices.DeleteFunc(slices.Clone(has), func(t corev1.Taint) bool {
		_, wanted := wants[t.Key]
		return wanted || slices.Contains(before, t.Key)
	})
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		value, effect, _ := strings.Cut(wants[name], ":")
		next = append(next, corev1.Taint{Key: name, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return next
}

func ownedNames(node *corev1.Node, annotation string) []string {
	var names []string
	_ = json.Unmarshal([]byte(node.Annotations[annotation]), &names) // none that can be read is none
	return names
}

func keepNames(node *corev1.Node, annotation string, owned map[string]string) {
	if len(owned) == 0 {
		delete(node.Annotations, annotation)
		return
	}
	data, _ := json.Marshal(slices.Sorted(maps.Keys(owned))) // strings
	node.Annotations[annotation] = string(data)
}
