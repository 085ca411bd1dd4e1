package kubeapi

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// object is any Kubernetes object.
type object interface {
	runtime.Object
	metav1.Object
}

// resource is one kind that the API serves.
type resource struct {
	group, version string
	kind, plural   string
	short          []string
	namespaced     bool
	// prefix is where etcd has the objects, as in Kubernetes.
	prefix string
	empty  func() object
	// status says that there is a status subresource, which the object itself doesn't change.
	status bool
	// blind says that an update without a resource version is taken.
	blind bool
	// fields are what a field selector may name beside metadata.
	fields func(object) fields.Set
}

const registry = "/registry/"

// resources are all the kinds that the API serves.
func resources() []*resource {
	return []*resource{
		{
			version: "v1", kind: "Node", plural: "nodes", short: []string{"no"}, prefix: registry + "minions/", status: true, blind: true,
			empty: func() object { return &corev1.Node{} },
		},
		{
			version: "v1", kind: "Namespace", plural: "namespaces", short: []string{"ns"}, prefix: registry + "namespaces/", blind: true,
			empty: func() object { return &corev1.Namespace{} },
		},
		{
			version: "v1", kind: "Pod", plural: "pods", short: []string{"po"}, namespaced: true, prefix: registry + "pods/", status: true, blind: true,
			empty: func() object { return &corev1.Pod{} },
			fields: func(o object) fields.Set {
				pod := o.(*corev1.Pod)
				return fields.Set{"spec.nodeName": pod.Spec.NodeName, "status.phase": string(pod.Status.Phase)}
			},
		},
		{
			group: coordinationv1.GroupName, version: "v1", kind: "Lease", plural: "leases", namespaced: true, prefix: registry + "leases/",
			empty: func() object { return &coordinationv1.Lease{} },
		},
		{
			group: policyv1.GroupName, version: "v1", kind: "PodDisruptionBudget", plural: "poddisruptionbudgets", short: []string{"pdb"},
			namespaced: true, prefix: registry + "poddisruptionbudgets/", status: true,
			empty: func() object { return &policyv1.PodDisruptionBudget{} },
		},
		{
			group: appsv1.GroupName, version: "v1", kind: "DaemonSet", plural: "daemonsets", short: []string{"ds"}, namespaced: true,
			prefix: registry + "daemonsets/", status: true, blind: true, empty: func() object { return &appsv1.DaemonSet{} },
		},
		{
			group: appsv1.GroupName, version: "v1", kind: "ReplicaSet", plural: "replicasets", short: []string{"rs"}, namespaced: true,
			prefix: registry + "replicasets/", status: true, blind: true, empty: func() object { return &appsv1.ReplicaSet{} },
		},
		{
			group: storagev1.GroupName, version: "v1", kind: "VolumeAttachment", plural: "volumeattachments", prefix: registry + "volumeattachments/",
			empty: func() object { return &storagev1.VolumeAttachment{} },
		},
	}
}

func (r *resource) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: r.group, Version: r.version}
}

func (r *resource) groupVersionKind() schema.GroupVersionKind {
	return r.groupVersion().WithKind(r.kind)
}

func (r *resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.group, Resource: r.plural}
}

func (r *resource) singular() string { return strings.ToLower(r.kind) }

// key is where etcd has an object.
func (r *resource) key(namespace, name string) string {
	if r.namespaced {
		return r.prefix + namespace + "/" + name
	}
	return r.prefix + name
}

// under is where etcd has the objects of a namespace, of all when none is given.
func (r *resource) under(namespace string) string {
	if r.namespaced && namespace != "" {
		return r.prefix + namespace + "/"
	}
	return r.prefix
}

// matches says whether an object is one that the selectors ask for.
func (r *resource) matches(o object, s selectors) bool {
	if !s.labels.Matches(labelSet(o)) {
		return false
	}
	if s.fields.Empty() {
		return true
	}
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	if r.fields != nil {
		for name, value := range r.fields(o) {
			set[name] = value
		}
	}
	return s.fields.Matches(set)
}

// knowsField says whether a field selector may name a field.
func (r *resource) knowsField(name string) bool {
	if name == "metadata.name" || name == "metadata.namespace" {
		return true
	}
	if r.fields == nil {
		return false
	}
	_, ok := r.fields(r.empty())[name]
	return ok
}

// newScheme knows every kind that a client may send.
func newScheme() (*runtime.Scheme, serializer.CodecFactory, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, policyv1.AddToScheme, appsv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, serializer.CodecFactory{}, err
		}
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	return s, serializer.NewCodecFactory(s), nil
}
