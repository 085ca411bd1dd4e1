package operation

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

const operationYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata:
  name: 20261129-reboot-w1
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: node
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  node:
    machineRef: {name: w-1, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3733}
    action: reboot
`

// morning is when operationYAML was made.
var morning = time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)

// kinds of keys that a person may have.
var keyKinds = []string{"ed25519", "ecdsa-256", "ecdsa-384", "ecdsa-521", "rsa-2048"}

// newKey makes a key of a kind.
func newKey(t testing.TB, kind string) (crypto.Signer, ssh.Signer) {
	t.Helper()
	var key crypto.Signer
	var err error
	switch kind {
	case "ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case "ecdsa-256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ecdsa-384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ecdsa-521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "rsa-2048":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		t.Fatalf("what is a key of kind %s?", kind)
	}
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromSigner(key)
	require.NoError(t, err)
	return key, signer
}

// line gives a key as it stands in a .pub file.
func line(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

func parse(t testing.TB, text string) *AllowedSigners {
	t.Helper()
	signers, err := ParseAllowedSigners("allowed_signers", []byte(text))
	require.NoError(t, err)
	return signers
}

func sign(t testing.TB, data, namespace string, signer ssh.Signer) []byte {
	t.Helper()
	armoured, err := Sign([]byte(data), namespace, signer)
	require.NoError(t, err)
	return armoured
}

func requireRefused(t *testing.T, want Reason, refusal *Refusal) {
	t.Helper()
	require.NotNil(t, refusal, "nothing was refused")
	require.Equal(t, want, refusal.Reason, refusal.Message)
	require.NotEmpty(t, refusal.Message)
}

// openSSH is the system's ssh-keygen with a folder of its own.
type openSSH struct {
	t      *testing.T
	folder string
}

func newOpenSSH(t *testing.T) *openSSH {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Fatal("ssh-keygen is needed for this test: install openssh-client")
	}
	return &openSSH{t, t.TempDir()}
}

func (o *openSSH) path(name string) string { return filepath.Join(o.folder, name) }

func (o *openSSH) write(name, text string) string {
	o.t.Helper()
	require.NoError(o.t, os.WriteFile(o.path(name), []byte(text), 0o600))
	return o.path(name)
}

func (o *openSSH) read(name string) []byte {
	o.t.Helper()
	data, err := os.ReadFile(o.path(name))
	require.NoError(o.t, err)
	return data
}

// writeKey writes a private and a public key as ssh-keygen would.
func (o *openSSH) writeKey(name string, key crypto.Signer, signer ssh.Signer) string {
	o.t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(o.t, err)
	o.write(name, string(pem.EncodeToMemory(block)))
	o.write(name+".pub", line(signer.PublicKey())+"\n")
	return o.path(name)
}

// try runs ssh-keygen in UTC.
func (o *openSSH) try(input string, args ...string) (string, error) {
	command := exec.Command("ssh-keygen", args...)
	command.Dir = o.folder
	command.Env = append(os.Environ(), "TZ=UTC", "SSH_AUTH_SOCK=")
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (o *openSSH) run(input string, args ...string) string {
	o.t.Helper()
	out, err := o.try(input, args...)
	require.NoError(o.t, err, out)
	return out
}

// verify asks ssh-keygen whether a signature is good at a time.
func (o *openSSH) verify(signers, principal, namespace, data string, signature []byte, now time.Time) (bool, string) {
	o.t.Helper()
	o.write("signers", signers)
	o.write("signature", string(signature))
	out, err := o.try(data, "-Y", "verify", "-f", "signers", "-I", principal, "-n", namespace, "-s", "signature",
		"-Overify-time="+now.UTC().Format("20060102150405Z"))
	return err == nil, fmt.Sprintf("ssh-keygen said: %s", out)
}
