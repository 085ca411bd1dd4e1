package gitsource_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hiddeco/sshsig"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
)

func TestHostileAuthorsAndSubjectsAreOnlyText(t *testing.T) {
	r := gittest.New(t)
	tree := strings.Fields(r.Git("cat-file", "-p", r.Commit(gittest.Files{"a": "1"})))[1]
	hostile := "Ada\x1b[2J\x1b]0;owned\x07\u202e\r"
	r.ForcePush("main", r.RawCommit([]byte("tree "+tree+"\nauthor "+hostile+" <ada@example.com> 1767225600 +0000\ncommitter "+hostile+
		" <ada@example.com> 1767225600 +0000\n\nA change\x1b[31m\x9b2J\u202e"+strings.Repeat("x", 100_000)+"\n")))
	revision := poll(t, open(t, gitsource.Config{URL: r.URL()}))
	require.Contains(t, revision.Author, "Ada")
	require.Contains(t, revision.Subject, "A change")
	for _, text := range []string{revision.Author, revision.Subject} {
		require.NotContains(t, text, "\x1b")
		require.NotContains(t, text, "\u202e")
		require.NotContains(t, text, "\r")
		require.NotContains(t, text, "\x9b")
		require.Less(t, len(text), 300)
	}
}

// The commit that brings files can be signed by whoever adds them, so that an agent that wants signed commits takes it; git itself says that
// the signature is good.
func TestACommitThatBringsFilesIsSigned(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Fatal("ssh-keygen is needed for this test: install openssh-client")
	}
	asAda(t)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	key, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	allowed := filepath.Join(t.TempDir(), "allowed_signers")
	require.NoError(t, os.WriteFile(allowed, append([]byte("ada@example.com "), ssh.MarshalAuthorizedKey(key)...), 0o600))
	signed := addition()
	signed.Sign = func(object []byte) ([]byte, error) {
		signature, err := sshsig.Sign(strings.NewReader(string(object)), signer, sshsig.HashSHA512, "git")
		if err != nil {
			return nil, err
		}
		return sshsig.Armor(signature), nil
	}
	for name, remoteOf := range map[string]func(*testing.T, *gittest.Repository) *gitsource.Remote{
		"from a checkout": func(t *testing.T, r *gittest.Repository) *gitsource.Remote {
			_, remote := checkedOut(t, r.URL())
			return remote
		},
		"without one": func(t *testing.T, r *gittest.Repository) *gitsource.Remote {
			remote, err := gitsource.OpenRemote(gitsource.Config{URL: r.URL()}, gitsource.Author{Name: "Ada", Email: "ada@example.com"}, clock.RealClock{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, remote.Close()) })
			return remote
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := gittest.New(t)
			tip := odd(r)
			_, err := remoteOf(t, r).Add(context.Background(), "main", "main", signed)
			require.NoError(t, err)
			expectAdded(t, r, "main", tip)
			r.Git("-c", "gpg.ssh.allowedSignersFile="+allowed, "verify-commit", "main")
		})
	}
}
