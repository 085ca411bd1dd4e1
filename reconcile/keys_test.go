package reconcile

import (
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/talos"
)

// newKeys makes an age identity and who it is.
func newKeys(tb testing.TB) (*sealed.Identities, []sealed.Recipient) {
	tb.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(tb, err)
	identities, err := sealed.ParseIdentities("test", []byte(identity.String()))
	require.NoError(tb, err)
	recipients, err := sealed.ParseRecipients("recipients.txt", []byte(identity.Recipient().String()))
	require.NoError(tb, err)
	return identities, recipients
}

// newBundle makes the secrets of a new cluster.
func newBundle(tb testing.TB) *talos.Bundle {
	tb.Helper()
	bundle, err := talos.GenerateBundle("v1.13")
	require.NoError(tb, err)
	return bundle
}

// sealBundle gives the text of a cluster's secrets.age.
func sealBundle(tb testing.TB, recipients []sealed.Recipient, bundle *talos.Bundle) string {
	tb.Helper()
	plain, err := bundle.Marshal()
	require.NoError(tb, err)
	text, err := sealed.Seal(recipients, plain)
	require.NoError(tb, err)
	return string(text)
}
