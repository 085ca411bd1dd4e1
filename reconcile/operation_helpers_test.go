package reconcile

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/statefile"
)

// signer is somebody with a key.
type signer struct {
	t   testing.TB
	key ssh.Signer
}

func newSigner(t testing.TB) *signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return &signer{t: t, key: key}
}

// line is a line of allowed signers.
func (s *signer) line(principal, options string) string {
	return fmt.Sprintf("%s %s %s", principal, options, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.key.PublicKey()))))
}

func (s *signer) sign(data, namespace string) []byte {
	s.t.Helper()
	signature, err := operation.Sign([]byte(data), namespace, s.key)
	require.NoError(s.t, err)
	return signature
}

func signersOf(t testing.TB, lines ...string) *operation.AllowedSigners {
	t.Helper()
	signers, err := operation.ParseAllowedSigners("allowed_signers", []byte(strings.Join(lines, "\n")))
	require.NoError(t, err)
	return signers
}

// operationText is the file of an operation on the cluster prod; body is its kind with what belongs to it.
func operationText(name, id string, created time.Time, life time.Duration, body string) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata:
  name: %s
spec:
  clusterRef:
    name: prod
    id: %s
  createdAt: %s
  expiresAt: %s
%s`, name, idText(id), created.UTC().Format(time.RFC3339), created.Add(life).UTC().Format(time.RFC3339), body)
}

// idText is a cluster's ID as it stands in YAML: one that may be read as a number stands in quotes.
func idText(id string) string {
	if strings.Trim(id, "0123456789e") == "" {
		return `"` + id + `"`
	}
	return id
}

func nodeBody(machine, uuid, action string) string {
	return fmt.Sprintf("  kind: node\n  node:\n    machineRef:\n      name: %s\n      uuid: %s\n    action: %s\n", machine, uuid, action)
}

func operationNamed(s *statefile.State, name string) *statefile.OperationState {
	if s == nil {
		return nil
	}
	for _, op := range s.Operations {
		if op.Name == name {
			return op
		}
	}
	return nil
}
