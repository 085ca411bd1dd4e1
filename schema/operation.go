package schema

import "time"

// TalosOperation is a one-off action, signed, done once.
type TalosOperation struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Metadata   ObjectMeta    `json:"metadata"`
	Spec       OperationSpec `json:"spec"`
	Source     Source        `json:"-"`
	// Raw is the file as it was read: what is signed, and what never changes.
	Raw []byte `json:"-"`
}

// OperationKind is what an operation does.
type OperationKind string

// The kinds of operation.
const (
	OperationNode        OperationKind = "node"
	OperationEtcdBackup  OperationKind = "etcd-backup"
	OperationEtcdRestore OperationKind = "etcd-restore"
	OperationAdopt       OperationKind = "adopt"
	OperationBootstrap   OperationKind = "bootstrap"
	OperationResume      OperationKind = "resume"
	OperationCancel      OperationKind = "cancel"
)

// Body is the name of the field of spec that belongs to the kind, and empty for an unknown kind.
func (k OperationKind) Body() string {
	switch k {
	case OperationNode, OperationAdopt, OperationBootstrap, OperationResume, OperationCancel:
		return string(k)
	case OperationEtcdBackup:
		return "etcdBackup"
	case OperationEtcdRestore:
		return "etcdRestore"
	}
	return ""
}

// OperationSpec says what its signer saw and wants done. Exactly the body that belongs to kind is present.
type OperationSpec struct {
	// ClusterRef names the cluster, with its ID.
	ClusterRef ClusterRef `json:"clusterRef"`
	// Kind is node, etcd-backup, etcd-restore, adopt, bootstrap, resume or cancel.
	Kind OperationKind `json:"kind" is:"operationKind"`
	// CreatedAt is when the operation was written.
	CreatedAt time.Time `json:"createdAt"`
	// ExpiresAt is at most 7 days after createdAt, 24 h for kinds that need the override namespace.
	ExpiresAt time.Time `json:"expiresAt"`
	// Reason is shown beside the operation.
	Reason string `json:"reason,omitempty" is:"line"`
	// Node is an action on one machine, for kind: node.
	Node *NodeOperation `json:"node,omitempty"`
	// EtcdBackup asks for a snapshot, for kind: etcd-backup.
	EtcdBackup *EtcdBackupOperation `json:"etcdBackup,omitempty"`
	// EtcdRestore puts a snapshot in the place of a live etcd, for kind: etcd-restore.
	EtcdRestore *RestoreOperation `json:"etcdRestore,omitempty"`
	// Adopt lets Ichor change a machine that it did not configure, for kind: adopt.
	Adopt *MachineOperation `json:"adopt,omitempty"`
	// Bootstrap permits a bootstrap where there may be a past, for kind: bootstrap.
	Bootstrap *BootstrapOperation `json:"bootstrap,omitempty"`
	// Resume goes on with a paused operation, for kind: resume.
	Resume *ResumeOperation `json:"resume,omitempty"`
	// Cancel ends a pending or paused operation, for kind: cancel.
	Cancel *CancelOperation `json:"cancel,omitempty"`
}

// NeedsOverride says whether the operation needs the override namespace. A resume or cancel needs what the operation
// that it names needs, which it doesn't say by itself.
func (s OperationSpec) NeedsOverride() bool {
	switch s.Kind {
	case OperationEtcdRestore, OperationBootstrap:
		return true
	case OperationNode:
		return s.Node != nil && s.Node.Action == ActionRemove
	}
	return false
}

// Machine is the machine that the operation is about; nil where it is about something else.
func (s OperationSpec) Machine() *MachineRef {
	switch {
	case s.Node != nil:
		return &s.Node.MachineRef
	case s.Adopt != nil:
		return &s.Adopt.MachineRef
	case s.Bootstrap != nil:
		return &s.Bootstrap.MachineRef
	}
	return nil
}

// MachineRef names exactly one machine.
type MachineRef struct {
	// Name is the machine's metadata.name.
	Name string `json:"name" is:"label"`
	// UUID is the machine's spec.uuid.
	UUID string `json:"uuid" is:"uuid"`
}

// The actions of an operation of kind node.
const (
	ActionReboot         = "reboot"
	ActionShutdown       = "shutdown"
	ActionRestartService = "restart-service"
	ActionEtcdDefrag     = "etcd-defrag"
	ActionEtcdForfeit    = "etcd-forfeit-leadership"
	ActionRemove         = "remove"
)

// NodeOperation is an action on one machine.
type NodeOperation struct {
	// MachineRef names the machine.
	MachineRef MachineRef `json:"machineRef"`
	// Action is reboot, shutdown, restart-service, etcd-defrag, etcd-forfeit-leadership or remove.
	Action string `json:"action" is:"nodeAction"`
	// Service is kubelet, containerd or cri, for restart-service.
	Service string `json:"service,omitempty" is:"service"`
	// AllowLeader permits etcd-defrag on the leader of several members.
	AllowLeader bool `json:"allowLeader,omitempty"`
	// Confirm is the machine's name, for remove.
	Confirm string `json:"confirm,omitempty" is:"label"`
	// Gone states, for remove, that the machine is off for good: only its member and its Node are removed.
	Gone bool `json:"gone,omitempty"`
	// Then is what the machine does at the end of a remove: powerOff (the default) or reboot.
	Then string `json:"then,omitempty" is:"then"`
}

// EtcdBackupOperation asks for one snapshot now.
type EtcdBackupOperation struct {
	// BackupRef names the TalosEtcdBackup.
	BackupRef NameRef `json:"backupRef"`
}

// NameRef names an object of the same cluster.
type NameRef struct {
	// Name is the object's metadata.name.
	Name string `json:"name" is:"label"`
}

// RestoreOperation puts a snapshot in the place of a live etcd.
type RestoreOperation struct {
	// BackupRef names the TalosEtcdBackup whose destination holds the snapshot.
	BackupRef NameRef `json:"backupRef"`
	// Snapshot is the snapshot, and the digest that its signer saw.
	Snapshot SnapshotRef `json:"snapshot"`
	// Confirm is the cluster's name.
	Confirm string `json:"confirm" is:"label"`
	// ControlPlanes are the control planes that the signer saw: their UUIDs by name.
	ControlPlanes map[string]string `json:"controlPlanes" keys:"label" is:"uuid"`
	// Without are control planes that are off for good: their UUIDs by name.
	Without map[string]string `json:"without,omitempty" keys:"label" is:"uuid"`
	// LocalDataLoss is "accepted" where local volumes on control planes are lost.
	LocalDataLoss string `json:"localDataLoss,omitempty" is:"accepted"`
	// RevisionBump makes the snapshot revision-safe before it is uploaded. Default true.
	RevisionBump *bool `json:"revisionBump,omitempty"`
	// AcceptUnlisted permits a snapshot that the index doesn't list.
	AcceptUnlisted bool `json:"acceptUnlisted,omitempty"`
}

// SnapshotRef names a stored snapshot and the SHA-256 of its ciphertext.
type SnapshotRef struct {
	// Name is the snapshot's name ("etcd-20261129T100000Z.snapshot.age").
	Name string `json:"name" is:"snapshot"`
	// SHA256 is of the stored object as it is, sealed.
	SHA256 string `json:"sha256" is:"sha256"`
}

// MachineOperation names the machine that is adopted.
type MachineOperation struct {
	// MachineRef names the machine.
	MachineRef MachineRef `json:"machineRef"`
}

// BootstrapOperation permits a bootstrap where there may be a past.
type BootstrapOperation struct {
	// MachineRef names the control plane whose etcd is started.
	MachineRef MachineRef `json:"machineRef"`
	// Confirm is the cluster's name.
	Confirm string `json:"confirm" is:"label"`
}

// ResumeOperation goes on with a paused operation.
type ResumeOperation struct {
	// Operation is the paused operation's name.
	Operation string `json:"operation" is:"label"`
	// Digest is the SHA-256 of the paused operation's file.
	Digest string `json:"digest" is:"sha256"`
	// Pause counts the operation's pauses from 1.
	Pause int `json:"pause" is:"positive"`
}

// CancelOperation ends a pending or paused operation.
type CancelOperation struct {
	// Operation is the operation's name.
	Operation string `json:"operation" is:"label"`
	// Digest is the SHA-256 of the operation's file.
	Digest string `json:"digest" is:"sha256"`
}
