package schema

import "time"

// APIVersion is the only version of the kinds that this program reads.
const APIVersion = "ichor.maesh.dev/v1alpha1"

// The kinds of a fleet repository.
const (
	KindCluster   = "TalosCluster"
	KindMachine   = "TalosMachine"
	KindBackup    = "TalosEtcdBackup"
	KindOperation = "TalosOperation"
	KindPolicy    = "Policy"
	// KindPolicyTest holds the cases of a policy. Nothing but `ichor policy test` acts on it.
	KindPolicyTest = "PolicyTest"
)

// Annotations that Ichor reads on objects in Git.
const (
	// AnnotationPaused stops all acting on a cluster or machine; its value is the reason.
	AnnotationPaused = "ichor.maesh.dev/paused"
	// AnnotationAllowDelete, with the object's own name as its value, permits the removal of that object.
	AnnotationAllowDelete = "ichor.maesh.dev/allow-delete"
	// AnnotationDomain is where only the annotations named here are known: a misspelt one is refused, since a pause that
	// doesn't pause is worse than none.
	AnnotationDomain = "ichor.maesh.dev/"
)

// Role is what a machine is for. It never changes.
type Role string

// The roles of a machine.
const (
	RoleControlPlane Role = "controlplane"
	RoleWorker       Role = "worker"
)

// ObjectMeta names an object.
type ObjectMeta struct {
	// Name is an RFC 1123 label, unique per kind and cluster.
	Name string `json:"name" is:"label"`
	// Labels are the team's own, for its policies.
	Labels map[string]string `json:"labels,omitempty" keys:"labelKey" is:"labelValue"`
	// Annotations are the team's own, but for those in ichor.maesh.dev/, which Ichor reads.
	Annotations map[string]string `json:"annotations,omitempty" keys:"labelKey"`
}

// Position is a place in a file of the repository. Line and Column count from 1; 0 means "the file as a whole".
type Position struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// Source says where an object was read: its position, and the position of each of its fields by path
// ("spec.controlPlane.count", "spec.patches.all[0].file"). A scalar's position is that of its value; a mapping's or a
// list's is that of its key. What stands inside an inline patch or a disk selector has none of its own.
type Source struct {
	Position
	Fields map[string]Position
	// Texts say where each character of an expression stands, by the same paths.
	Texts map[string]Text
}

// At gives the position of a field by its path, or of the nearest field around it, or of the object.
func (s Source) At(path string) Position {
	for path != "" {
		if at, ok := s.Fields[path]; ok {
			return at
		}
		path = parentPath(path)
	}
	return s.Position
}

// TalosCluster is a cluster: what every machine of it shares.
type TalosCluster struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Metadata   ObjectMeta  `json:"metadata"`
	Spec       ClusterSpec `json:"spec"`
	Source     Source      `json:"-"`
}

// ClusterSpec is the desired state of a cluster.
type ClusterSpec struct {
	// ID is the first 16 hex digits of SHA-256("ichor.maesh.dev/cluster/v1" + bundle.cluster.id). `ichor init` writes it, the
	// agent checks it against the secrets bundle, and operations name it.
	ID string `json:"id" is:"clusterID"`
	// Endpoint is the URL of the Kubernetes API: a virtual IP, load balancer or DNS name.
	Endpoint string `json:"endpoint" is:"clusterEndpoint"`
	// TalosVersion is the version of Talos that the machines run, and the tag of the install image.
	TalosVersion string `json:"talosVersion" is:"version"`
	// KubernetesVersion is the version of Kubernetes that the machines run.
	KubernetesVersion string `json:"kubernetesVersion" is:"version"`
	// Contract is the Talos version whose config generation is used ("v1.13"). No upgrade moves it. Default v1.13.
	Contract string `json:"contract,omitempty" is:"contract"`
	// ControlPlane says how many control planes there are and what may run on them.
	ControlPlane ControlPlaneSpec `json:"controlPlane"`
	// Secrets names the Talos secrets bundle, sealed with age.
	Secrets FileRef `json:"secrets"`
	// Install says what is installed on which disk.
	Install InstallSpec `json:"install,omitempty"`
	// Network is the cluster's own network.
	Network NetworkSpec `json:"network,omitempty"`
	// Patches are Talos config patches for all machines and for each role.
	Patches PatchesSpec `json:"patches,omitempty"`
	// Rollout bounds how changes travel over the machines.
	Rollout RolloutSpec `json:"rollout,omitempty"`
}

// ControlPlaneSpec says how many control planes the cluster has and whether workloads may run there.
type ControlPlaneSpec struct {
	// Count is how many control planes the cluster has: 1, 3 or 5.
	Count int `json:"count" is:"controlPlanes"`
	// Schedulable says whether workloads may run on control planes. Default true.
	Schedulable *bool `json:"schedulable,omitempty"`
}

// FileRef names a file relative to the file it stands in. It never leaves the repository.
type FileRef struct {
	// File is the path, relative to the file it stands in, with forward slashes.
	File string `json:"file" is:"path"`
}

// InstallSpec says what is installed where.
type InstallSpec struct {
	// Image is Talos's installer without a tag (from the image factory: with the schematic); the tag is talosVersion.
	Image string `json:"image,omitempty" is:"image"`
	// Disk is the device that Talos is installed on ("/dev/sda").
	Disk string `json:"disk,omitempty" is:"device"`
}

// NetworkSpec is the cluster's own network.
type NetworkSpec struct {
	// PodSubnets are the networks of the pods.
	PodSubnets []string `json:"podSubnets,omitempty" is:"cidr"`
	// ServiceSubnets are the networks of the services.
	ServiceSubnets []string `json:"serviceSubnets,omitempty" is:"cidr"`
	// DNSDomain is the domain of the cluster's services. Talos's default is cluster.local.
	DNSDomain string `json:"dnsDomain,omitempty" is:"dnsName"`
	// CNI is flannel (Talos's default) or none.
	CNI string `json:"cni,omitempty" is:"cni"`
}

// Patch is a Talos strategic-merge patch: a file of one or several documents, or one inline document.
type Patch struct {
	// File names the patch, relative to the file it stands in; it may be sealed with age.
	File string `json:"file,omitempty" is:"path"`
	// Inline is the patch itself.
	Inline map[string]any `json:"inline,omitempty"`
}

// PatchesSpec lists patches; they are applied in the order all, role, machine.
type PatchesSpec struct {
	// All are for every machine of the cluster.
	All []Patch `json:"all,omitempty"`
	// ControlPlane are for the control planes.
	ControlPlane []Patch `json:"controlPlane,omitempty"`
	// Worker are for the workers.
	Worker []Patch `json:"worker,omitempty"`
}

// RebootPolicy says when a reboot that a config change needs may happen.
type RebootPolicy string

// The reboot policies. RebootsAutomatic is the default.
const (
	RebootsAutomatic RebootPolicy = "automatic"
	RebootsWindow    RebootPolicy = "window"
	RebootsManual    RebootPolicy = "manual"
)

// RolloutSpec bounds how changes travel over the machines.
type RolloutSpec struct {
	// MaxUnavailableWorkers is a number ("2") or a percentage ("25%", rounded down, at least 1). Default 1. Control planes go
	// one by one.
	MaxUnavailableWorkers IntOrPercent `json:"maxUnavailableWorkers,omitempty"`
	// Reboots is automatic (the default), window or manual.
	Reboots RebootPolicy `json:"reboots,omitempty" is:"reboots"`
	// Windows are the times in which reboots may start, for reboots: window.
	Windows []Window `json:"windows,omitempty"`
	// Drain bounds the drain before a reboot.
	Drain DrainSpec `json:"drain,omitempty"`
}

// Window is a time in which reboots may start. A machine that was started is finished.
type Window struct {
	// Schedule is a five-field cron expression in UTC: when the window opens.
	Schedule string `json:"schedule" is:"cron"`
	// Duration is how long the window stays open ("4h").
	Duration Duration `json:"duration"`
}

// DrainSpec bounds a drain.
type DrainSpec struct {
	// Timeout is how long a drain may take. Default 10m.
	Timeout Duration `json:"timeout,omitempty"`
	// Force also evicts pods that no controller would make again.
	Force bool `json:"force,omitempty"`
}

// TalosMachine is one machine. A machine that is not approved is looked at and never touched.
type TalosMachine struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Metadata   ObjectMeta  `json:"metadata"`
	Spec       MachineSpec `json:"spec"`
	Source     Source      `json:"-"`
}

// MachineSpec is the desired state of a machine.
type MachineSpec struct {
	// ClusterRef names the cluster that the machine belongs to. It never changes.
	ClusterRef ClusterRef `json:"clusterRef"`
	// Role is controlplane or worker. It never changes.
	Role Role `json:"role" is:"role"`
	// Endpoint is the address of the Talos API; the port is 50000 unless given. It is always among the certificate's names.
	Endpoint string `json:"endpoint" is:"machineEndpoint"`
	// UUID is the SMBIOS UUID, in lower case once read. Another machine at the endpoint is refused.
	UUID string `json:"uuid" is:"uuid"`
	// Fingerprint is that of the maintenance certificate, as the console shows it (base64 of the SHA-256 of the
	// leaf's SubjectPublicKeyInfo). It changes at each boot. Optional.
	Fingerprint string `json:"fingerprint,omitempty" is:"fingerprint"`
	// Hostname is what the machine is called; when not given, what Talos reports.
	Hostname string `json:"hostname,omitempty" is:"dnsName"`
	// Approved lets Ichor touch the machine.
	Approved bool `json:"approved,omitempty"`
	// ApprovalDecision records who approved the machine, and when. A later time asks for a new first config.
	ApprovalDecision *ApprovalDecision `json:"approvalDecision,omitempty"`
	// Install replaces the cluster's install disk for this machine; the image stays.
	Install *MachineInstall `json:"install,omitempty"`
	// Labels are put on the Kubernetes node.
	Labels map[string]string `json:"labels,omitempty" keys:"labelKey" is:"labelValue"`
	// Taints are put on the Kubernetes node, each as key=value:Effect.
	Taints []string `json:"taints,omitempty" is:"taint"`
	// Patches are applied after those of the cluster and the role.
	Patches []Patch `json:"patches,omitempty"`
}

// ClusterRef names the cluster that an object belongs to.
type ClusterRef struct {
	// Name is the cluster's metadata.name.
	Name string `json:"name" is:"label"`
	// ID is the cluster's spec.id. Operations give it, and only they.
	ID string `json:"id,omitempty" is:"clusterID"`
}

// ApprovalDecision records who approved a machine, and when.
type ApprovalDecision struct {
	// At is when the machine was approved, as in 2026-11-29T10:00:00Z.
	At time.Time `json:"at"`
	// By is who approved it.
	By string `json:"by,omitempty" is:"line"`
}

// MachineInstall replaces the cluster's install disk for one machine; the image stays.
type MachineInstall struct {
	// Disk is the device that Talos is installed on ("/dev/nvme0n1").
	Disk string `json:"disk,omitempty" is:"device"`
	// DiskSelector is Talos's own installDiskSelector, in the place of disk.
	DiskSelector map[string]any `json:"diskSelector,omitempty"`
	// Wipe permits an install on a disk that holds partitions or a filesystem.
	Wipe bool `json:"wipe,omitempty"`
}

// TalosEtcdBackup is the standing order to keep snapshots of a cluster's etcd.
type TalosEtcdBackup struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   ObjectMeta `json:"metadata"`
	Spec       BackupSpec `json:"spec"`
	Source     Source     `json:"-"`
}

// BackupSpec says when snapshots are taken, where they go and how long they stay.
type BackupSpec struct {
	// ClusterRef names the cluster whose etcd is kept.
	ClusterRef ClusterRef `json:"clusterRef"`
	// Schedule is a five-field cron expression in UTC. Default "0 * * * *", hourly.
	Schedule string `json:"schedule,omitempty" is:"cron"`
	// Suspend stops snapshots and pruning.
	Suspend bool `json:"suspend,omitempty"`
	// Destination is where snapshots go.
	Destination BackupDestination `json:"destination"`
	// Retention says how many snapshots are kept.
	Retention *Retention `json:"retention,omitempty"`
	// Drill is the schedule of restore drills. Off unless given.
	Drill *Drill `json:"drill,omitempty"`
}

// BackupDestination is where snapshots go.
type BackupDestination struct {
	// S3 is a bucket.
	S3 *S3Destination `json:"s3"`
}

// S3Destination is a bucket and a prefix in it.
type S3Destination struct {
	// Endpoint is the URL of the S3 server, without a path.
	Endpoint string `json:"endpoint" is:"s3Endpoint"`
	// Region is the bucket's region.
	Region string `json:"region,omitempty" is:"region"`
	// Bucket is the bucket's name.
	Bucket string `json:"bucket" is:"bucket"`
	// Prefix is put before each key, with a slash between. No two backups share one.
	Prefix string `json:"prefix,omitempty" is:"prefix"`
	// Credentials names a file sealed with age. Without it the agent's own credentials are used.
	Credentials *FileRef `json:"credentials,omitempty"`
	// CA names a file of certificates in PEM that the server's certificate is checked against.
	CA *FileRef `json:"ca,omitempty"`
	// Addressing is auto (the default), path or host.
	Addressing string `json:"addressing,omitempty" is:"addressing"`
}

// Retention says how many snapshots are kept.
type Retention struct {
	// KeepLast is how many of the newest are kept. Default 24.
	KeepLast *int `json:"keepLast,omitempty" is:"kept"`
	// KeepDaily is for how many days one a day is kept. Default 0.
	KeepDaily int `json:"keepDaily,omitempty" is:"kept"`
	// KeepWeekly is for how many weeks one a week is kept. Default 0.
	KeepWeekly int `json:"keepWeekly,omitempty" is:"kept"`
}

// Drill is the schedule of restore drills.
type Drill struct {
	// Schedule is a five-field cron expression in UTC.
	Schedule string `json:"schedule" is:"cron"`
}
