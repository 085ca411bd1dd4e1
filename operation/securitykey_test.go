package operation

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"io"
	"math/big"
	"os"
	"testing"

	"bytes"

	"github.com/hiddeco/sshsig"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

var update = flag.Bool("update", false, "make the signatures of security keys in testdata anew")

// softwareKey is a security key made of software: it signs as PROTOCOL.u2f of OpenSSH says one does.
type softwareKey struct {
	public ssh.PublicKey
	flags  byte
	sign   func(message []byte) []byte
}

func (k softwareKey) PublicKey() ssh.PublicKey { return k.public }

func (k softwareKey) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	application, message := sha256.Sum256([]byte("ssh:")), sha256.Sum256(data)
	counter := binary.BigEndian.AppendUint32([]byte{k.flags}, 7)
	signed := append(append(append([]byte{}, application[:]...), counter...), message[:]...)
	return &ssh.Signature{Format: k.public.Type(), Blob: k.sign(signed), Rest: counter}, nil
}

func softwareKeys(t *testing.T) map[string]softwareKey {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	ed, err := ssh.ParsePublicKey(ssh.Marshal(struct{ Type, Key, Application string }{ssh.KeyAlgoSKED25519, string(public), "ssh:"}))
	require.NoError(t, err)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	point, err := curve.PublicKey.Bytes()
	require.NoError(t, err)
	ec, err := ssh.ParsePublicKey(ssh.Marshal(struct{ Type, Curve, Point, Application string }{ssh.KeyAlgoSKECDSA256, "nistp256", string(point), "ssh:"}))
	require.NoError(t, err)
	signEd := func(message []byte) []byte { return ed25519.Sign(private, message) }
	return map[string]softwareKey{
		"ed25519":   {ed, touched, signEd},
		"untouched": {ed, 0, signEd},
		"ecdsa": {ec, touched, func(message []byte) []byte {
			digest := sha256.Sum256(message)
			r, s, err := ecdsa.Sign(rand.Reader, curve, digest[:])
			require.NoError(t, err)
			return ssh.Marshal(struct{ R, S *big.Int }{r, s})
		}},
	}
}

// TestSignaturesOfSecurityKeys checks fixed signatures over operationYAML; -update makes them anew.
func TestSignaturesOfSecurityKeys(t *testing.T) {
	if *update {
		require.NoError(t, os.MkdirAll("testdata/sk", 0o755))
		for name, key := range softwareKeys(t) {
			made, err := sshsig.Sign(bytes.NewReader([]byte(operationYAML)), key, sshsig.HashSHA512, prod)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile("testdata/sk/"+name+".sig", sshsig.Armor(made), 0o644))
			require.NoError(t, os.WriteFile("testdata/sk/"+name+".pub", ssh.MarshalAuthorizedKey(key.public), 0o644))
		}
	}
	for name, want := range map[string]Reason{"ed25519": "", "ecdsa": "", "untouched": KeyUntouched} {
		t.Run(name, func(t *testing.T) {
			signature, err := os.ReadFile("testdata/sk/" + name + ".sig")
			require.NoError(t, err)
			public, err := os.ReadFile("testdata/sk/" + name + ".pub")
			require.NoError(t, err)
			allowed := "alice namespaces=\"ichor-*\" " + string(public)
			who, refusal := parse(t, allowed).Verify([]byte(operationYAML), signature, morning, prod)
			if want != "" {
				requireRefused(t, want, refusal)
				return
			}
			require.Nil(t, refusal)
			require.Equal(t, "alice", who.Principal)
			good, said := newOpenSSH(t).verify(allowed, "alice", prod, operationYAML, signature, morning)
			require.True(t, good, said)
			_, refusal = parse(t, allowed).Verify([]byte(operationYAML+"\n"), signature, morning, prod)
			requireRefused(t, SignatureWrong, refusal)

			half, err := sshsig.Unarmor(signature)
			require.NoError(t, err)
			half.Signature.Rest = half.Signature.Rest[:1]
			_, refusal = parse(t, allowed).Verify([]byte(operationYAML), sshsig.Armor(half), morning, prod)
			requireRefused(t, SignatureMalformed, refusal)
		})
	}
}

func TestASecurityKeySignsThroughTheAgentOnlyWhenItIsTouched(t *testing.T) {
	keys := softwareKeys(t)
	for _, name := range []string{"ed25519", "ecdsa"} {
		sign(t, operationYAML, prod, keys[name])
	}
	_, err := Sign([]byte(operationYAML), prod, keys["untouched"])
	require.ErrorContains(t, err, "without being touched")
}
