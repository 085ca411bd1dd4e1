package revision

import (
	"errors"
	"fmt"
)

// Step is how far a restored etcd begins above the highest revision that is known. What is known may be old: an etcd that takes a thousand
// writes a second takes eleven days for as many.
const Step = 1_000_000_000

// ceiling is above every revision that an etcd comes to, and far enough below the largest number that the next restores have room.
const ceiling = 1 << 62

// Known are the revisions that are known; zero where one is not.
type Known struct {
	// Snapshot is the snapshot's own. It is always known.
	Snapshot int64
	// NewestListed is the newest listed snapshot's.
	NewestListed int64
	// LastRestore is what the last restore raised it to.
	LastRestore int64
	// APIServer is the resource version that the Kubernetes API gives, where it answers.
	APIServer int64
}

// Target is the revision at which the restored etcd is to begin: [Step] above the highest known, so that a restore winds nothing back
// that anyone has seen, and a second one doesn't wind back the first.
func Target(known Known) (int64, error) {
	if known.Snapshot < 1 {
		return 0, errors.New("the revision of the snapshot is not known, so none above it can be chosen")
	}
	highest := int64(0)
	for _, one := range []struct {
		of       string
		revision int64
	}{
		{"the snapshot", known.Snapshot}, {"the newest listed snapshot", known.NewestListed}, {"the last restore", known.LastRestore},
		{"the Kubernetes API", known.APIServer},
	} {
		if one.revision < 0 || one.revision > ceiling-Step {
			return 0, fmt.Errorf("%s gives the revision %d, which no etcd comes to", one.of, one.revision)
		}
		highest = max(highest, one.revision)
	}
	return highest + Step, nil
}
