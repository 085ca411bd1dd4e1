package backup

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// passphraseInfo is the info string of the passphrase's derivation. Changing it would orphan every snapshot.
const passphraseInfo = "ichor.maesh.dev/etcd-backup/v1"

// Passphrase opens the snapshots of one cluster. It never prints itself.
type Passphrase struct{ text string }

// NewPassphrase derives the passphrase of a cluster's snapshots: the hex digits of HKDF-SHA256 with the bundle's cluster.secret as
// secret and its cluster.id as salt, both as the bytes of the strings in the bundle, 32 bytes long.
func NewPassphrase(clusterID, clusterSecret string) (Passphrase, error) {
	if clusterID == "" || clusterSecret == "" {
		return Passphrase{}, errors.New("the secrets bundle lacks cluster.id or cluster.secret, from which the passphrase of its snapshots is computed; " +
			"import the bundle of the running cluster with `ichor secrets import`")
	}
	key, err := hkdf.Key(sha256.New, []byte(clusterSecret), []byte(clusterID), passphraseInfo, sha256.Size)
	if err != nil {
		return Passphrase{}, fmt.Errorf("computing the passphrase of the snapshots: %w", err)
	}
	return Passphrase{hex.EncodeToString(key)}, nil
}

// Secret is the passphrase itself, for age and for who must keep it out of texts.
func (p Passphrase) Secret() string { return p.text }

// String hides the passphrase.
func (Passphrase) String() string { return "(passphrase)" }

// GoString hides the passphrase.
func (Passphrase) GoString() string { return "backup.Passphrase(hidden)" }
