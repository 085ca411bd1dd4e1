package sealed

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func newIdentity(t testing.TB) (*age.X25519Identity, Recipient) {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	return identity, Recipient{Recipient: identity.Recipient(), Text: identity.Recipient().String()}
}

func newSSHKey(t *testing.T, passphrase string) (private, public string) {
	t.Helper()
	key, secret, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(secret, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(secret, "", []byte(passphrase))
	}
	require.NoError(t, err)
	line, err := ssh.NewPublicKey(key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(block)), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(line)))
}

func TestWhatIsSealedOpensAgain(t *testing.T) {
	identity, recipient := newIdentity(t)
	private, public := newSSHKey(t, "")
	recipients, err := ParseRecipients("recipients.txt", []byte("# the team\n\n"+recipient.Text+"\n"+public+" alice@laptop\n"))
	require.NoError(t, err)
	require.Len(t, recipients, 2)
	text := []byte("secretAccessKey: s3cr3t-canary\n")
	sealedText, err := Seal(recipients, text)
	require.NoError(t, err)
	require.True(t, IsSealed(sealedText))
	require.NotContains(t, string(sealedText), "canary")

	for name, key := range map[string]string{"an age identity": "# created: today\n" + identity.String() + "\n", "an SSH key": private} {
		t.Run(name, func(t *testing.T) {
			identities, err := ParseIdentities("key", []byte(key))
			require.NoError(t, err)
			plain, wasSealed, err := identities.Open("s3.age", sealedText)
			require.NoError(t, err)
			require.True(t, wasSealed)
			require.Equal(t, text, plain)
			require.Equal(t, []string{"s3cr3t-canary"}, identities.Values())
		})
	}
}

func TestABinaryFileOpensToo(t *testing.T) {
	identity, recipient := newIdentity(t)
	var out bytes.Buffer
	writer, err := age.Encrypt(&out, recipient)
	require.NoError(t, err)
	_, err = writer.Write([]byte("a: value-one"))
	require.NoError(t, err)
	require.NoError(t, writer.Close())
	identities, err := ParseIdentities("key", []byte(identity.String()))
	require.NoError(t, err)
	plain, wasSealed, err := identities.Open("x.age", out.Bytes())
	require.NoError(t, err)
	require.True(t, wasSealed)
	require.Equal(t, "a: value-one", string(plain))
}

func TestPlainDataIsGivenAsItIs(t *testing.T) {
	var none *Identities
	plain, wasSealed, err := none.Open("patch.yaml", []byte("machine: {}"))
	require.NoError(t, err)
	require.False(t, wasSealed)
	require.Equal(t, "machine: {}", string(plain))
	require.Empty(t, none.Values())
}

func TestSeveralIdentitiesAreTried(t *testing.T) {
	first, _ := newIdentity(t)
	second, recipient := newIdentity(t)
	dir := t.TempDir()
	for name, identity := range map[string]*age.X25519Identity{"one": first, "two": second} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(identity.String()), 0o600))
	}
	identities, err := LoadIdentities(filepath.Join(dir, "one"), filepath.Join(dir, "two"))
	require.NoError(t, err)
	require.Equal(t, 2, identities.Len())
	data, err := Seal([]Recipient{recipient}, []byte("x"))
	require.NoError(t, err)
	_, _, err = identities.Open("x.age", data)
	require.NoError(t, err)
}

func TestFailuresNameTheFileAndNoSecret(t *testing.T) {
	identity, recipient := newIdentity(t)
	other, _ := newIdentity(t)
	data, err := Seal([]Recipient{recipient}, []byte("canary"))
	require.NoError(t, err)
	damaged := bytes.Replace(data, []byte("\n"), []byte("\nAAAA"), 2)
	truncated := data[:len(data)/2]
	one, err := ParseIdentities("key", []byte(identity.String()))
	require.NoError(t, err)
	two, err := ParseIdentities("keys", []byte(other.String()+"\n"+other.String()))
	require.NoError(t, err)

	_, _, err = two.Open("clusters/prod/secrets.age", data)
	require.EqualError(t, err, "clusters/prod/secrets.age can't be opened by the 2 identities given: it is sealed to other recipients; give the identity of one of them, or have one of them seal it anew with yours in recipients.txt")
	require.ErrorIs(t, err, ErrOtherRecipients)
	_, _, err = (*Identities)(nil).Open("secrets.age", data)
	require.ErrorIs(t, err, ErrNoIdentity)
	for _, broken := range [][]byte{damaged, truncated} {
		_, _, err = one.Open("secrets.age", broken)
		require.ErrorContains(t, err, "secrets.age can't be opened by the 1 identity given: it is damaged")
	}
}

func TestIdentitiesThatCannotServeAreRefusedWithTheReason(t *testing.T) {
	identity, _ := newIdentity(t)
	locked, public := newSSHKey(t, "passphrase")
	_, recipient := newIdentity(t)
	protected, err := Seal([]Recipient{recipient}, []byte(identity.String()))
	require.NoError(t, err)
	broken := identity.String()[:40] + "ZZZZ"
	for name, test := range map[string]struct{ data, want string }{
		"empty":                        {"# nothing\n", "key holds no age identity"},
		"a public key":                 {public, "line 1 is not an age identity"},
		"a damaged key":                {"# mine\n" + broken, "key: line 2 is not an age identity"},
		"an SSH key with a passphrase": {locked, "SSH key protected by a passphrase"},
		"a sealed identity":            {string(protected), "key is protected by a passphrase"},
		"another PEM file":             {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not an SSH private key"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseIdentities("key", []byte(test.data))
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), broken)
		})
	}
	_, err = LoadIdentities(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestRecipientsThatCannotServeAreRefusedWithTheReason(t *testing.T) {
	identity, _ := newIdentity(t)
	for name, test := range map[string]struct{ data, want string }{
		"nobody":        {"# comment\n", "recipients.txt names no recipient"},
		"a secret key":  {"\n" + identity.String(), "recipients.txt:2: this is a secret key"},
		"a bad line":    {"age1nonsense", "recipients.txt:1: not an age recipient"},
		"a bad SSH key": {"ssh-ed25519 AAAA", "recipients.txt:1: not an SSH public key"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRecipients("recipients.txt", []byte(test.data))
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), identity.String())
		})
	}
	_, err := Seal(nil, []byte("x"))
	require.ErrorContains(t, err, "at least one recipient")
}

func TestEveryValueIsFoundAndNoKey(t *testing.T) {
	require.Equal(t, []string{"1", "list value", "multi\nline\n", "nested", "true"},
		Scalars([]byte("a: {b: nested}\nc: [list value, 1]\nd: |\n  multi\n  line\n---\nflag: true\nempty: ''\napiVersion: v1alpha1\nkind: EnvironmentConfig\n")))
	require.Equal(t, []string{"not: [yaml"}, Scalars([]byte("not: [yaml\n")))
}

func FuzzOpen(f *testing.F) {
	identity, recipient := newIdentity(f)
	data, err := Seal([]Recipient{recipient}, []byte("a: b"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("age-encryption.org/v1\n-> X25519 x\n"))
	f.Add([]byte("-----BEGIN AGE ENCRYPTED FILE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		identities, err := ParseIdentities("key", []byte(identity.String()))
		require.NoError(t, err)
		plain, wasSealed, err := identities.Open("file", data)
		if err == nil && !wasSealed && !bytes.Equal(plain, data) {
			t.Fatal("plain data was changed")
		}
	})
}

func TestRecipientsAreCounted(t *testing.T) {
	_, one := newIdentity(t)
	_, two := newIdentity(t)
	for want, recipients := range map[int][]Recipient{1: {one}, 2: {one, two}} {
		data, err := Seal(recipients, []byte("a: b"))
		require.NoError(t, err)
		found, err := CountRecipients(data)
		require.NoError(t, err)
		require.Equal(t, want, found)
	}
	_, err := CountRecipients([]byte("age-encryption.org/v1\nnonsense"))
	require.ErrorContains(t, err, "damaged")
}
