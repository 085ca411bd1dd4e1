package signedcommit

import (
	"bytes"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/stretchr/testify/require"
)

// A signature that was made while the key was good is worth nothing once the key, or the part of it that signed, was taken back: whoever stole
// it writes any time.
func TestWhatWasSignedBeforeAKeyWasRevokedIsRefusedToo(t *testing.T) {
	for name, revoke := range map[string]func(*openpgp.Entity) error{
		"": func(*openpgp.Entity) error { return nil },
		"the signing subkey, as stolen": func(e *openpgp.Entity) error {
			return e.RevokeSubkey(&e.Subkeys[len(e.Subkeys)-1], packet.KeyCompromised, "stolen", at(noon.Add(time.Hour)))
		},
		"the signing subkey, as replaced": func(e *openpgp.Entity) error {
			return e.RevokeSubkey(&e.Subkeys[len(e.Subkeys)-1], packet.KeySuperseded, "another", at(noon.Add(time.Hour)))
		},
		"the whole key, as stolen": func(e *openpgp.Entity) error {
			return e.RevokeKey(packet.KeyCompromised, "stolen", at(noon.Add(time.Hour)))
		},
		"the whole key, as replaced": func(e *openpgp.Entity) error {
			return e.RevokeKey(packet.KeySuperseded, "another", at(noon.Add(time.Hour)))
		},
		"the whole key, as retired": func(e *openpgp.Entity) error { return e.RevokeKey(packet.KeyRetired, "left", at(noon.Add(time.Hour))) },
	} {
		t.Run(name, func(t *testing.T) {
			entity, err := openpgp.NewEntity("alice", "", "alice@example.com", at(noon.Add(-time.Hour)))
			require.NoError(t, err)
			require.NoError(t, entity.AddSigningSubkey(at(noon.Add(-time.Hour))))
			var raw bytes.Buffer
			require.NoError(t, openpgp.DetachSign(&raw, entity, bytes.NewReader([]byte(payload)), at(noon)))
			signature := []byte(armoured(t, openpgp.SignatureType, func(b *bytes.Buffer) error { b.Write(raw.Bytes()); return nil }))
			require.NoError(t, revoke(entity))
			alice := person{entity, armoured(t, openpgp.PublicKeyType, func(b *bytes.Buffer) error { return entity.Serialize(b) })}
			_, err = alice.keyring(t).Verify([]byte(payload), signature, noon.Add(2*time.Hour))
			if name == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "is revoked")
		})
	}
}
