// Package kubeapi is the Kubernetes API of a simulated control plane: the part of it that client-go, a drain and a kubelet use,
// served over TLS on port 6443 and kept in the control plane's own etcd.
//
// What is real: the keys (/registry/minions/…), resource versions that are etcd's revisions, refused writes of what has changed
// meanwhile, watches that are etcd's own (a compacted revision is 410 Gone, one that lies ahead is waited for), the answers of an etcd
// without quorum, patches, selectors and checks of metadata by Kubernetes' own packages, evictions that keep to budgets, Node objects
// that outlive their machines, and objects that go and come back with etcd's data.
//
// What isn't: objects are kept as JSON, and only the metadata of one is checked; [resources] lists all that there are. Lists
// are never cut into pages, and fields have no managers. Who is in system:masters may do everything, a kubelet what a kubelet does to its
// own node, everybody else nothing. Of the controllers there is the one that calls silent nodes unknown, and a budget's status is counted
// when it is asked for: nothing schedules pods, and nobody replaces one that has gone.
package kubeapi
