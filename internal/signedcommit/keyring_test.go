package signedcommit

import (
	"bytes"
	"crypto"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

const payload = "tree aaaa\nauthor A <a@x> 1 +0000\n\nA change\n"

func at(t time.Time) *packet.Config {
	return &packet.Config{Time: func() time.Time { return t }, Algorithm: packet.PubKeyAlgoEdDSA}
}

// person is an OpenPGP key and the keyring that holds it.
type person struct {
	entity *openpgp.Entity
	armour string
}

func newPerson(t *testing.T, name string, change func(*packet.Config, *openpgp.Entity)) person {
	t.Helper()
	config := at(noon.Add(-time.Hour))
	if change != nil {
		change(config, nil)
	}
	entity, err := openpgp.NewEntity(name, "", name+"@example.com", config)
	require.NoError(t, err)
	if change != nil {
		change(config, entity)
	}
	return person{entity, armoured(t, openpgp.PublicKeyType, func(b *bytes.Buffer) error { return entity.Serialize(b) })}
}

func armoured(t testing.TB, kind string, write func(*bytes.Buffer) error) string {
	t.Helper()
	var raw, text bytes.Buffer
	require.NoError(t, write(&raw))
	w, err := armor.Encode(&text, kind, nil)
	require.NoError(t, err)
	_, err = w.Write(raw.Bytes())
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return text.String() + "\n"
}

func (p person) sign(t *testing.T, data string, change func(*packet.Signature)) []byte {
	t.Helper()
	signature := &packet.Signature{Version: 4, SigType: packet.SigTypeBinary, PubKeyAlgo: p.entity.PrimaryKey.PubKeyAlgo, Hash: crypto.SHA512,
		CreationTime: noon, IssuerKeyId: &p.entity.PrimaryKey.KeyId, IssuerFingerprint: p.entity.PrimaryKey.Fingerprint}
	if change != nil {
		change(signature)
	}
	hash, err := signature.PrepareSign(at(noon))
	require.NoError(t, err)
	hash.Write([]byte(data))
	require.NoError(t, signature.Sign(hash, p.entity.PrivateKey, at(noon)))
	return []byte(armoured(t, openpgp.SignatureType, func(b *bytes.Buffer) error { return signature.Serialize(b) }))
}

func (p person) keyring(t *testing.T) *Keyring {
	t.Helper()
	ring, err := ParseKeyring("keyring", []byte(p.armour))
	require.NoError(t, err)
	return ring
}

func TestAnOpenPGPSignatureIsItsSigners(t *testing.T) {
	alice, bob := newPerson(t, "alice", nil), newPerson(t, "bob", nil)
	both, err := ParseKeyring("keyring", []byte("# who may\n"+alice.armour+"\n"+bob.armour))
	require.NoError(t, err)
	require.Len(t, both.Keys(), 2)
	who, err := both.Verify([]byte(payload), bob.sign(t, payload, nil), noon)
	require.NoError(t, err)
	require.Equal(t, "bob <bob@example.com>", who.Name)
	require.Contains(t, who.String(), who.Fingerprint)
}

func TestWhatAnOpenPGPSignatureIsRefusedFor(t *testing.T) {
	alice, mallory := newPerson(t, "alice", nil), newPerson(t, "mallory", nil)
	good := alice.sign(t, payload, nil)
	raw := func(signatures ...[]byte) []byte {
		return []byte(armoured(t, openpgp.SignatureType, func(b *bytes.Buffer) error {
			for _, signature := range signatures {
				one, err := unarmour(signature)
				require.NoError(t, err)
				b.Write(one)
			}
			return nil
		}))
	}
	lifetime, short := uint32(60), newPerson(t, "short", func(c *packet.Config, _ *openpgp.Entity) { c.KeyLifetimeSecs = 7200 })
	revoked := newPerson(t, "revoked", func(c *packet.Config, e *openpgp.Entity) {
		if e != nil {
			require.NoError(t, e.RevokeKey(packet.KeyCompromised, "stolen", c))
		}
	})
	small := newPerson(t, "small", func(c *packet.Config, _ *openpgp.Entity) { c.Algorithm, c.RSABits = packet.PubKeyAlgoRSA, 1024 })
	for name, c := range map[string]struct {
		who       person
		signature []byte
		now       time.Time
		want      string
	}{
		"other bytes":                       {alice, alice.sign(t, payload+"\n", nil), noon, "is not of this commit"},
		"bytes that differ in line ends":    {alice, alice.sign(t, strings.ReplaceAll(payload, "\n", "\r\n"), nil), noon, "is not of this commit"},
		"a key that isn't there":            {alice, mallory.sign(t, payload, nil), noon, "the keyring doesn't hold it"},
		"a key that says it is another":     {alice, raw(renamed(t, mallory, alice)), noon, "is not of this commit"},
		"a text signature":                  {alice, alice.sign(t, payload, func(s *packet.Signature) { s.SigType = packet.SigTypeText }), noon, "not one over the bytes as they stand"},
		"SHA-1":                             {alice, raw(rehashed(t, good)), noon, "can be forged"},
		"two signatures, one good":          {alice, raw(mallory.sign(t, payload, nil), good), noon, "more than one signature"},
		"something behind the armour":       {alice, append(bytes.Clone(good), good...), noon, "isn't one armoured block"},
		"something before the armour":       {alice, append([]byte("x\n"), good...), noon, "isn't one armoured block"},
		"a signature that ended":            {alice, alice.sign(t, payload, func(s *packet.Signature) { s.SigLifetimeSecs = &lifetime }), noon.Add(time.Hour), "does not hold now"},
		"a signature of the future":         {alice, good, noon.Add(-time.Minute), "does not hold now"},
		"a key that expired":                {short, short.sign(t, payload, nil), noon.Add(2 * time.Hour), "has expired"},
		"a key that expired, put back":      {short, short.sign(t, payload, func(s *packet.Signature) { s.CreationTime = noon.Add(-30 * time.Minute) }), noon.Add(2 * time.Hour), "has expired"},
		"a revoked key":                     {revoked, revoked.sign(t, payload, nil), noon, "is revoked"},
		"an RSA key of 1024 bits":           {small, small.sign(t, payload, nil), noon, "1024 bits"},
		"an armour that holds no signature": {alice, []byte(armoured(t, openpgp.SignatureType, func(b *bytes.Buffer) error { return alice.entity.Serialize(b) })), noon, "holds something else"},
		"bytes that mean nothing":           {alice, []byte("-----BEGIN PGP SIGNATURE-----\n\nAAAA\n-----END PGP SIGNATURE-----\n"), noon, "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.who.keyring(t).Verify([]byte(payload), c.signature, c.now)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// renamed is a signature of one key that says that it is another's.
func renamed(t *testing.T, who, other person) []byte {
	t.Helper()
	bytesOf, err := unarmour(who.sign(t, payload, nil))
	require.NoError(t, err)
	id := func(p person) []byte { return p.entity.PrimaryKey.Fingerprint[12:] } // the key's ID is the end of its fingerprint
	require.Contains(t, string(bytesOf), string(id(who)))
	bytesOf = bytes.ReplaceAll(bytesOf, id(who), id(other))
	return []byte(armoured(t, openpgp.SignatureType, func(b *bytes.Buffer) error { b.Write(bytesOf); return nil }))
}

// rehashed is a signature that says that it rests on SHA-1: the library makes none.
func rehashed(t *testing.T, signature []byte) []byte {
	t.Helper()
	bytesOf, err := unarmour(signature)
	require.NoError(t, err)
	at := bytes.Index(bytesOf, []byte{4, byte(packet.SigTypeBinary), byte(packet.PubKeyAlgoEdDSA), 10}) // version, type, key, SHA-512
	require.Positive(t, at)
	bytesOf[at+3] = 2
	return []byte(armoured(t, openpgp.SignatureType, func(b *bytes.Buffer) error { b.Write(bytesOf); return nil }))
}

func TestAKeyringThatCantBeReadWholeIsRefused(t *testing.T) {
	alice := newPerson(t, "alice", nil)
	private := armoured(t, openpgp.PrivateKeyType, func(b *bytes.Buffer) error { return alice.entity.SerializePrivate(b, nil) })
	for name, c := range map[string]struct{ data, want string }{
		"nothing":        {"# nobody\n", "no armoured public key"},
		"a private key":  {alice.armour + private, "holds a private key"},
		"half a block":   {alice.armour[:len(alice.armour)-80], "ends inside"},
		"a broken block": {strings.Replace(alice.armour, "\n\n", "\n\nAAAA", 1), "can't be read"},
		"too much":       {strings.Repeat("#", 5<<20), "and may have"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseKeyring("keyring", []byte(c.data))
			require.ErrorContains(t, err, c.want)
		})
	}
}

// GnuPG's own signatures over a commit of git, with a signing subkey.
func TestACommitThatGnuPGSignedIsTaken(t *testing.T) {
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Skip("gpg is not installed")
	}
	home, err := os.MkdirTemp("", "gpg") // a socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	run := func(name string, arguments ...string) string {
		t.Helper()
		command := exec.Command(name, arguments...)
		command.Env = append(os.Environ(), "GNUPGHOME="+home, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "LC_ALL=C",
			"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@x", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@x")
		var stderr bytes.Buffer
		command.Stderr = &stderr
		out, err := command.Output()
		require.NoError(t, err, "%s %v: %s", name, arguments, stderr.String())
		return string(out)
	}
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run() })
	gpg := func(arguments ...string) string {
		return run("gpg", append([]string{"--batch", "--passphrase", "", "--pinentry-mode", "loopback"}, arguments...)...)
	}
	gpg("--quick-generate-key", "Alice <alice@example.com>", "ed25519", "cert", "never")
	fingerprint := ""
	for _, line := range strings.Split(gpg("--with-colons", "--list-keys"), "\n") {
		if strings.HasPrefix(line, "fpr:") {
			fingerprint = strings.Split(line, ":")[9]
		}
	}
	gpg("--quick-add-key", fingerprint, "ed25519", "sign", "1d")
	ring, err := ParseKeyring("keyring", []byte(gpg("--armor", "--export")))
	require.NoError(t, err)

	folder := filepath.Join(t.TempDir(), "r")
	run("git", "init", "--quiet", folder)
	run("git", "-C", folder, "-c", "user.signingkey="+fingerprint, "commit", "--quiet", "-S", "--allow-empty", "-m", "A change\n\nwith a body")
	object := run("git", "-C", folder, "cat-file", "commit", "HEAD")
	commit, err := Parse([]byte(object))
	require.NoError(t, err)
	require.Equal(t, OpenPGP, commit.Format)
	who, err := ring.Verify(commit.Payload, commit.Signature, time.Now())
	require.NoError(t, err)
	require.Equal(t, fingerprint, who.Fingerprint)

	_, err = ring.Verify(commit.Payload, commit.Signature, time.Now().Add(48*time.Hour))
	require.ErrorContains(t, err, "has expired", "its signing subkey ends after a day")
	_, err = ring.Verify(append(commit.Payload, '\n'), commit.Signature, time.Now())
	require.ErrorContains(t, err, "is not of this commit")
}
