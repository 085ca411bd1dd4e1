// Package recovery brings a cluster back whose etcd is lost: from a snapshot, the secrets bundle and the machines, with no agent, no
// Kubernetes and no state.
//
// What is done next is a pure function (decide) of the restore's marker, of what the machines show and of the time. The marker is a sealed
// object beside the snapshots: whoever runs the recovery swaps it before each call that can't be taken back, so that a run that was broken
// off is gone on with by the next one, and of two at a time one stops. Where the cluster's state can be reached, its lock keeps agents from
// doing more than look.
//
// One machine recovers, and never another one until it was wiped. docs/recovery.md says it for the person who runs it.
package recovery
