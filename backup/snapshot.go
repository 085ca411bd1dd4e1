package backup

import (
	"errors"
	"fmt"
	"time"
)

// Snapshot is an entry of the index: a snapshot that this cluster took and stored.
type Snapshot struct {
	// Name is the object's, below the destination's prefix.
	Name string `json:"name"`
	// Time is when its stream was begun.
	Time time.Time `json:"time"`
	// SHA256 (hex) and SealedSize are of the object as it is stored, Size of the plaintext.
	SHA256     string `json:"sha256"`
	SealedSize int64  `json:"sealedSize"`
	Size       int64  `json:"size"`
	// ETag is the store's name for the object's content. An entry from before it was kept has none.
	ETag string `json:"etag,omitempty"`
	// Revision is etcd's.
	Revision int64 `json:"revision"`
	// Member is the control plane that it was taken from.
	Member            string `json:"member,omitempty"`
	TalosVersion      string `json:"talosVersion,omitempty"`
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
	// Deleting says that retention has let it go, and its object may be gone.
	Deleting bool `json:"deleting,omitempty"`
	// Drill is the newest drill of it.
	Drill *DrillResult `json:"drill,omitempty"`

	// Missing says that the bucket doesn't hold it any more, or holds another object in its place; it is seen, never stored.
	Missing bool `json:"-"`
}

// errDiffers: an entry of the index is wrong although the digest in it is right.
var errDiffers = errors.New("the entry was not written by who stored it")

// Agrees says whether what was read of the snapshot is what the index says of it.
func (s *Snapshot) Agrees(size, revision int64) error {
	if size != s.Size || revision != s.Revision {
		return fmt.Errorf("the index says %d bytes at revision %d, and it holds %d bytes at revision %d: %w", s.Size, s.Revision, size, revision, errDiffers)
	}
	return nil
}

// DrillResult is what became of restoring a snapshot into an etcd data folder.
type DrillResult struct {
	At     time.Time `json:"at"`
	Passed bool      `json:"passed"`
	// Problem is why it failed.
	Problem string `json:"problem,omitempty"`
	// Revision, Keys and Resources (by Kubernetes type, as "apps/deployments") are what was found in it.
	Revision  int64            `json:"revision,omitempty"`
	Keys      int64            `json:"keys,omitempty"`
	Resources map[string]int64 `json:"resources,omitempty"`
}
