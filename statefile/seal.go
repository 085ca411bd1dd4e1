package statefile

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
)

// sealInfo is the info string of the key's derivation. Changing it would make every sealed record a forged one.
const sealInfo = "ichor.maesh.dev/state-mac/v1"

// sealPrefix starts a seal in a record and names how it was computed.
const sealPrefix = "hmac-sha256:"

// Sealer computes and checks the seals of one cluster's records. Its key is derived from the cluster's secrets bundle, from
// parts that only control planes' configs hold. A nil *Sealer checks nothing and can't seal.
type Sealer struct {
	key []byte
}

// NewSealer derives the key: HKDF-SHA256 with the bundle's secretbox encryption secret, else its aescbc one, as secret, the
// bundle's cluster ID as salt, all as the bytes of the strings in the bundle.
func NewSealer(clusterID, secretboxSecret, aescbcSecret string) (*Sealer, error) {
	secret := secretboxSecret
	if secret == "" {
		secret = aescbcSecret
	}
	if clusterID == "" || secret == "" {
		return nil, errors.New("the secrets bundle has no cluster ID or no encryption secret (secretbox or aescbc), so the state can't be sealed; " +
			"import the bundle of the running cluster with `ichor secrets import`")
	}
	key, err := hkdf.Key(sha256.New, []byte(secret), []byte(clusterID), sealInfo, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("deriving the key that seals the state: %w", err)
	}
	return &Sealer{key: key}, nil
}

// Seal computes the seal of a record: HMAC-SHA256 over the lines "ichor.maesh.dev/record/v1", key, generation (decimal) and
// nonce, each ended by a newline, and then the content's bytes.
func (s *Sealer) Seal(key string, generation uint64, nonce string, content []byte) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(recordFormat + "\n" + key + "\n" + strconv.FormatUint(generation, 10) + "\n" + nonce + "\n"))
	mac.Write(content)
	return sealPrefix + hex.EncodeToString(mac.Sum(nil))
}

// Check says whether seal is the one of this record.
func (s *Sealer) Check(seal, key string, generation uint64, nonce string, content []byte) bool {
	return hmac.Equal([]byte(seal), []byte(s.Seal(key, generation, nonce, content)))
}
