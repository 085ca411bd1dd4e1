package signedcommit

import (
	"bytes"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/stretchr/testify/require"
)

// FuzzOpenPGPSignature changes signatures in every way, both what stands in the armour and the armour: whatever passes, it is over the bytes
// that were signed and by the key that signed them, and bytes that nobody signed pass with none.
func FuzzOpenPGPSignature(f *testing.F) {
	entity, err := openpgp.NewEntity("alice", "", "alice@example.com", &packet.Config{Time: func() time.Time { return noon.Add(-time.Hour) }, Algorithm: packet.PubKeyAlgoEdDSA})
	require.NoError(f, err)
	alice := person{entity, ""}
	var keys bytes.Buffer
	require.NoError(f, entity.Serialize(&keys))
	ring := &Keyring{keys: openpgp.EntityList{entity}}
	seal := func(data string) []byte {
		var signature bytes.Buffer
		require.NoError(f, openpgp.DetachSign(&signature, entity, bytes.NewReader([]byte(data)), at(noon)))
		return signature.Bytes()
	}
	good := seal(payload)
	f.Add(good, []byte("-----BEGIN PGP SIGNATURE-----\n\nAAAA\n-----END PGP SIGNATURE-----\n"))
	f.Add(append(bytes.Clone(good), good...), []byte("-----BEGIN PGP SIGNATURE-----\nVersion: x\n\n=AAAA\n-----END PGP SIGNATURE-----\n"))
	f.Add(seal("other bytes"), []byte(""))
	f.Add(good[:len(good)-1], []byte("-----BEGIN PGP SIGNATURE-----\n-----END PGP SIGNATURE-----\n"))
	f.Add([]byte{0xc2, 0xff, 0xff, 0xff, 0xff, 0xff}, []byte("\n\n"))
	f.Fuzz(func(t *testing.T, raw, armour []byte) {
		for _, signature := range [][]byte{[]byte(armoured(t, openpgp.SignatureType, func(b *bytes.Buffer) error { b.Write(raw); return nil })), armour} {
			if who, err := ring.Verify([]byte(payload), signature, noon); err == nil {
				require.Equal(t, keyOf(alice.entity), who)
			} else {
				require.NotContains(t, err.Error(), "\x1b")
			}
			_, err := ring.Verify([]byte("tree bbbb\nauthor A <a@x> 1 +0000\n\nAnother change\n"), signature, noon)
			require.Error(t, err)
		}
	})
}

// FuzzKeyring reads anything as a keyring: it is refused, or each of its keys has a fingerprint and a name that acts on no terminal.
func FuzzKeyring(f *testing.F) {
	entity, err := openpgp.NewEntity("alice \x1b[2J", "", "alice@example.com", at(noon))
	require.NoError(f, err)
	var raw bytes.Buffer
	require.NoError(f, entity.Serialize(&raw))
	f.Add(raw.Bytes(), "")
	f.Add(raw.Bytes()[:40], "# who may\n")
	f.Add([]byte{0x99, 0x00}, keyBegin)
	f.Add([]byte(nil), "PGP PRIVATE KEY")
	f.Fuzz(func(t *testing.T, raw []byte, around string) {
		text := around + armoured(t, openpgp.PublicKeyType, func(b *bytes.Buffer) error { b.Write(raw); return nil }) + around
		ring, err := ParseKeyring("keyring", []byte(text))
		if err != nil {
			require.NotContains(t, err.Error(), "\x1b")
			return
		}
		require.NotEmpty(t, ring.Keys())
		for _, key := range ring.Keys() {
			require.NotEmpty(t, key.Fingerprint)
			require.NotContains(t, key.String(), "\x1b")
		}
	})
}
