package statefile

import "time"

// BackupState is what is remembered of one TalosEtcdBackup.
type BackupState struct {
	Ready Condition `json:"ready"`
	// Destination is where the snapshots are, without credentials.
	Destination string `json:"destination,omitempty"`
	// LastAttempt is when the last attempt was begun, whatever became of it.
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// LastSuccess is when the newest snapshot that was stored was begun.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	// LastReason and LastError are why the last attempt failed; empty when it didn't.
	LastReason string `json:"lastReason,omitempty"`
	LastError  string `json:"lastError,omitempty"`
	// Failures counts the attempts that failed.
	Failures int `json:"failures,omitempty"`
	// LastDuration is how long the last attempt that succeeded took, as time.Duration prints it.
	LastDuration string `json:"lastDuration,omitempty"`
	// Attempt is the one that is under way; it is written before anything is asked of a node.
	Attempt *BackupAttempt `json:"attempt,omitempty"`
	Request *BackupRequest `json:"request,omitempty"`
	// LastPrune is when the last pruning ended, PruneProblem what it could not do.
	LastPrune    time.Time `json:"lastPrune,omitzero"`
	PruneProblem string    `json:"pruneProblem,omitempty"`
	// LastDrillAttempt is when the last drill was begun, Drilling the snapshot that is being drilled, DrillProblem why the last drill
	// could not be made.
	LastDrillAttempt time.Time `json:"lastDrillAttempt,omitzero"`
	Drilling         string    `json:"drilling,omitempty"`
	DrillProblem     string    `json:"drillProblem,omitempty"`
	// Drill is the newest drill.
	Drill *BackupDrill `json:"drill,omitempty"`
	// Snapshots are those that are known, newest first, at most [MaxSnapshots].
	Snapshots []BackupSnapshot `json:"snapshots,omitempty"`
}

// MaxSnapshots is how many snapshots of a backup the state remembers.
const MaxSnapshots = 500

// BackupAttempt is an attempt to take a snapshot and store it.
type BackupAttempt struct {
	At     time.Time `json:"at"`
	Writer Writer    `json:"writer"`
	// Destination is where it goes.
	Destination string `json:"destination,omitempty"`
	// Request is the digest of the request that it is for.
	Request string `json:"request,omitempty"`
	// Snapshot is what will be stored. It is here before anything is.
	Snapshot *StoredSnapshot `json:"snapshot,omitempty"`
	// Problem is what went wrong while it was stored, after which nobody knows yet whether it is.
	Problem string `json:"problem,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// StoredSnapshot describes a snapshot's object, as the index beside it does.
type StoredSnapshot struct {
	Name              string    `json:"name"`
	Time              time.Time `json:"time"`
	SHA256            string    `json:"sha256"`
	SealedSize        int64     `json:"sealedSize"`
	Size              int64     `json:"size"`
	Revision          int64     `json:"revision"`
	Member            string    `json:"member,omitempty"`
	TalosVersion      string    `json:"talosVersion,omitempty"`
	KubernetesVersion string    `json:"kubernetesVersion,omitempty"`
}

// BackupRequest is a snapshot that was asked for. It is acted on once.
type BackupRequest struct {
	// Digest is of what asks for it.
	Digest  string    `json:"digest"`
	At      time.Time `json:"at"`
	Started time.Time `json:"started,omitzero"`
	Done    time.Time `json:"done,omitzero"`
	// Outcome is a sentence; empty until Done.
	Outcome string `json:"outcome,omitempty"`
}

// BackupDrill is what became of restoring a snapshot into a throw-away etcd.
type BackupDrill struct {
	Snapshot  string           `json:"snapshot"`
	At        time.Time        `json:"at"`
	Passed    bool             `json:"passed"`
	Problem   string           `json:"problem,omitempty"`
	Keys      int64            `json:"keys,omitempty"`
	Revision  int64            `json:"revision,omitempty"`
	Resources map[string]int64 `json:"resources,omitempty"`
}

// BackupSnapshot is a stored snapshot.
type BackupSnapshot struct {
	Name     string    `json:"name"`
	Time     time.Time `json:"time"`
	Size     int64     `json:"size"`
	Revision int64     `json:"revision"`
	// Drill is "passed", "failed" or empty.
	Drill string `json:"drill,omitempty"`
	// Missing: the bucket doesn't hold it any more as it was stored. Lost: the index doesn't list it any more, and nothing pruned it.
	Missing bool `json:"missing,omitempty"`
	Lost    bool `json:"lost,omitempty"`
	// Deleting says that it is being pruned, so that it is no loss.
	Deleting bool `json:"deleting,omitempty"`
}
