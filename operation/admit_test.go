package operation

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"ichor.maesh.dev/schema"
)

func TestWhatIsAskedBeforeAnOperationIsAccepted(t *testing.T) {
	_, signer := newKey(t, "ed25519")
	allowed := "alice namespaces=\"ichor-operation@prod\" " + line(signer.PublicKey()) + "\nroot namespaces=\"ichor-override@*\" "
	_, root := newKey(t, "ed25519")
	signers := parse(t, allowed+line(root.PublicKey()))
	remove := strings.Replace(operationYAML, "action: reboot", "action: remove\n    confirm: w-1", 1)
	longRemove := strings.Replace(remove, "2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z", 1)
	id := Identity{ClusterID: "1f3a9c0d2b4e6f78", Name: "20261129-reboot-w1"}
	accepted := func(digest string, over bool) []Accepted {
		return []Accepted{{Identity: Identity{ClusterID: id.ClusterID, Name: "another"}}, {Identity: Identity{ClusterID: "0", Name: id.Name}},
			{Identity: Identity{ClusterID: id.ClusterID, Name: id.Name, Digest: digest}, Over: over}}
	}
	clusters := map[string]string{"prod": "1f3a9c0d2b4e6f78"}
	for _, c := range []struct {
		name      string
		data      string
		namespace string
		signer    ssh.Signer
		change    func(*Submission, *Known)
		want      Reason
	}{
		{"all is well", operationYAML, prod, signer, nil, ""},
		{"the override serves for less", operationYAML, "ichor-override@prod", root, nil, ""},
		{"a removal under the override", remove, "ichor-override@prod", root, nil, ""},
		{"a removal under the ordinary namespace", remove, prod, signer, nil, NamespaceWrong},
		{"a removal under an override that isn't the signer's", remove, "ichor-override@prod", signer, nil, NamespaceNotAllowed},
		{"another cluster's namespace", operationYAML, "ichor-override@staging", root, nil, NamespaceWrong},
		{"a cluster that isn't there", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Clusters = nil }, ClusterUnknown},
		{"a cluster that took the name", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Clusters = map[string]string{"prod": "0000000000000000"} }, ClusterDiffers},
		{"another file name", operationYAML, prod, signer, func(s *Submission, _ *Known) { s.File = "x.yaml" }, FileNameDiffers},
		{"no signature", operationYAML, prod, signer, func(s *Submission, _ *Known) { s.Signature = nil }, SignatureMissing},
		{"the last second", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Now = morning.Add(24*time.Hour - time.Second) }, ""},
		{"a second too late", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Now = morning.Add(24 * time.Hour) }, Expired},
		{"five minutes ahead", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Now = morning.Add(-5 * time.Minute) }, ""},
		{"more than five minutes ahead", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Now = morning.Add(-5*time.Minute - time.Second) }, CreatedAhead},
		{"accepted before", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Accepted = accepted(Digest([]byte(operationYAML)), true) }, AlreadyAccepted},
		{"edited while it runs", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Accepted = accepted("00", false) }, BytesChanged},
		{"a name that was used", operationYAML, prod, signer, func(_ *Submission, k *Known) { k.Accepted = accepted("00", true) }, NameUsed},
		{"an unsigned one that would use up a name", operationYAML, prod, signer, func(s *Submission, k *Known) {
			s.Signature = nil
			k.Accepted = accepted("00", true)
		}, SignatureMissing},
		{"a resume of something that needs the override", operationYAML, prod, signer, func(s *Submission, _ *Known) { s.Override = true }, NamespaceWrong},
		{"a removal that waits just a day", longRemove, "ichor-override@prod", root, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Submission{File: "operations/20261129-reboot-w1.yaml", Data: []byte(c.data), Signature: sign(t, c.data, c.namespace, c.signer)}
			known := Known{Signers: signers, Clusters: clusters, Now: morning.Add(time.Hour)}
			if c.change != nil {
				c.change(&s, &known)
			}
			admitted, refusal := Admit(s, known)
			if c.want != "" {
				requireRefused(t, c.want, refusal)
				return
			}
			require.Nil(t, refusal)
			require.Equal(t, Digest(s.Data), admitted.Identity.Digest)
			require.Equal(t, c.namespace, admitted.Signer.Namespace)
		})
	}
}

func TestAnOverrideWaitsADayAtMost(t *testing.T) {
	spec := schema.OperationSpec{Kind: schema.OperationResume, CreatedAt: morning, ExpiresAt: morning.Add(25 * time.Hour)}
	require.Nil(t, CheckTimes(spec, false, morning))
	requireRefused(t, LivesTooLong, CheckTimes(spec, true, morning))
	spec.ExpiresAt = morning.Add(7*24*time.Hour + time.Second)
	requireRefused(t, LivesTooLong, CheckTimes(spec, false, morning))
}

func TestWhoMayDoWhat(t *testing.T) {
	_, alice := newKey(t, "ed25519")
	_, ca := newKey(t, "ecdsa-256")
	_, lost := newKey(t, "ed25519")
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	require.NoError(t, err)
	weakSigner, err := ssh.NewSignerFromSigner(weak)
	require.NoError(t, err)
	signers := parse(t, strings.Join([]string{
		`alice@example.com namespaces="ichor-*@staging,ichor-operation@prod" ` + line(alice.PublicKey()),
		`*@example.com cert-authority,namespaces="ichor-*",valid-before="20270101" ` + line(ca.PublicKey()),
		`git@example.com ` + line(alice.PublicKey()),
		`lost namespaces="*" ` + line(lost.PublicKey()),
		`old namespaces="*" ` + line(weakSigner.PublicKey()),
	}, "\n"))
	require.NoError(t, signers.Revoke("revoked", []byte(line(lost.PublicKey()))))
	var got []string
	for _, right := range signers.Rights("prod", "staging") {
		got = append(got, right.String())
	}
	fingerprint := ssh.FingerprintSHA256(alice.PublicKey())
	authority := ssh.FingerprintSHA256(ca.PublicKey())
	require.Equal(t, []string{
		"alice@example.com (" + fingerprint + ", line 1) may sign operations, and no overrides on prod",
		"those of *@example.com with a certificate of " + authority + " (line 2) may sign operations, and overrides (what wipes or rewinds) on prod until 2027-01-01T00:00:00Z",
		"alice@example.com (" + fingerprint + ", line 1) may sign operations, and overrides (what wipes or rewinds) on staging",
		"those of *@example.com with a certificate of " + authority + " (line 2) may sign operations, and overrides (what wipes or rewinds) on staging until 2027-01-01T00:00:00Z",
	}, got)

	_, err = Sign([]byte(operationYAML), prod, weakSigner)
	require.ErrorContains(t, err, "an RSA key of 1024 bits")
	_, refusal := signers.Verify([]byte(operationYAML), sign(t, operationYAML, prod, alice), morning, prod)
	require.Nil(t, refusal)
	_, refusal = parse(t, "git "+line(alice.PublicKey())).Verify([]byte(operationYAML), sign(t, operationYAML, prod, alice), morning, prod)
	requireRefused(t, NamespacesMissing, refusal)
	require.Contains(t, refusal.Message, `line 1 of the allowed signers holds the key and has no namespaces=`)
}

func TestALineThatDoesNotParseIsNamed(t *testing.T) {
	_, signer := newKey(t, "ed25519")
	key := line(signer.PublicKey())
	for text, want := range map[string]string{
		"\n\nalice":          "signers:3: the key is missing",
		"alice ssh-dss AAAA": `signers:1: "ssh-dss" is no type of key`,
		"alice ssh-ed25519-cert-v01@openssh.com x": "signers:1: ssh-ed25519-cert-v01@openssh.com is a certificate",
		"alice restrict " + key:                    `signers:1: "restrict" is no option of allowed signers`,
		"alice namespaces=\"a b\" " + key:          "signers:1: the namespaces \"a b\" hold a blank",
		"alice namespaces=a " + key:                "signers:1: the value of namespaces must stand in quotes",
		"alice valid-before=\"tomorrow\" " + key:   `signers:1: valid-before is "tomorrow", and must be a time as in 20261129`,
		"alice,,bob " + key:                        "signers:1: one of the principals is empty",
		"al\x00ice " + key:                         "signers:1: the line holds a control character",
		"alice ssh-ed25519 %%%":                    "signers:1: the ssh-ed25519 key is not base64",
	} {
		_, err := ParseAllowedSigners("signers", []byte(text))
		require.ErrorContains(t, err, want, "%q", text)
	}
	require.ErrorContains(t, parse(t, "").Revoke("revoked", []byte("\nalice "+key)), "revoked:2: ")
}

func TestAPatternTakesNoExponentialTime(t *testing.T) {
	require.False(t, matches(strings.Repeat("a", 10_000), strings.Repeat("*a", 1000)+"b"))
	require.True(t, matches("", "***"))
}

func TestAKeyFileAndAnAgentSign(t *testing.T) {
	key, signer := newKey(t, "rsa-2048")
	open, err := ssh.MarshalPrivateKey(key, "")
	require.NoError(t, err)
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("secret"))
	require.NoError(t, err)
	allowed := parse(t, "alice namespaces=\"*\" "+line(signer.PublicKey()))
	good := func(s ssh.Signer) {
		t.Helper()
		_, refusal := allowed.Verify([]byte(operationYAML), sign(t, operationYAML, prod, s), morning, prod)
		require.Nil(t, refusal)
	}
	read, err := KeySigner(pem.EncodeToMemory(open), func() ([]byte, error) { return nil, errors.New("nobody was to be asked") })
	require.NoError(t, err)
	good(read)
	file := pem.EncodeToMemory(locked)
	read, err = KeySigner(file, func() ([]byte, error) { return []byte("secret"), nil })
	require.NoError(t, err)
	good(read)
	_, err = KeySigner(file, func() ([]byte, error) { return []byte("wrong"), nil })
	require.EqualError(t, err, "the key doesn't open: the passphrase is wrong, or the file is damaged")
	_, err = KeySigner(file, nil)
	require.ErrorContains(t, err, "the key has a passphrase")
	_, err = KeySigner([]byte("secret text"), nil)
	require.ErrorContains(t, err, "the file is no private key")
	require.NotContains(t, err.Error(), "secret")

	ring := agent.NewKeyring()
	_, err = AgentSigner(ring, nil)
	require.ErrorContains(t, err, "holds no key")
	require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: key}))
	read, err = AgentSigner(ring, nil)
	require.NoError(t, err)
	good(read)
	other, otherSigner := newKey(t, "ed25519")
	require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: other}))
	_, err = AgentSigner(ring, nil)
	require.ErrorContains(t, err, "holds 2 keys")
	read, err = AgentSigner(ring, signer.PublicKey())
	require.NoError(t, err)
	good(read)
	require.NoError(t, ring.Remove(otherSigner.PublicKey()))
	_, err = AgentSigner(ring, otherSigner.PublicKey())
	require.ErrorContains(t, err, "doesn't hold "+ssh.FingerprintSHA256(otherSigner.PublicKey()))

	_, err = Sign([]byte(operationYAML), "", signer)
	require.ErrorContains(t, err, "namespace")
	_, err = CertificateSigner(signer, []byte(line(signer.PublicKey())))
	require.ErrorContains(t, err, "is a key and no certificate")
}

func TestACertificateThatMayNotSign(t *testing.T) {
	_, ca := newKey(t, "ed25519")
	_, signer := newKey(t, "ed25519")
	signers := parse(t, `*@example.com cert-authority,namespaces="*" `+line(ca.PublicKey()))
	for name, c := range map[string]struct {
		change func(*ssh.Certificate)
		want   string
	}{
		"a user's":                       {func(*ssh.Certificate) {}, ""},
		"a host's":                       {func(c *ssh.Certificate) { c.CertType = ssh.HostCert }, "it is a host's"},
		"one for everyone":               {func(c *ssh.Certificate) { c.ValidPrincipals = nil }, "it names no principal"},
		"one for others":                 {func(c *ssh.Certificate) { c.ValidPrincipals = []string{"alice@example.org"} }, "it names alice@example.org, and line 1"},
		"one for ever":                   {func(c *ssh.Certificate) { c.ValidBefore = ssh.CertTimeInfinity }, "it never ends"},
		"one with a critical option":     {func(c *ssh.Certificate) { c.CriticalOptions = map[string]string{"force-command": "x"} }, "it bears a critical option"},
		"one that ends before it begins": {func(c *ssh.Certificate) { c.ValidAfter = c.ValidBefore + 1 }, "not yet valid"},
	} {
		t.Run(name, func(t *testing.T) {
			certificate := &ssh.Certificate{Key: signer.PublicKey(), Serial: 1, CertType: ssh.UserCert, KeyId: "id", ValidPrincipals: []string{"alice@example.com"},
				ValidAfter: uint64(morning.Add(-time.Hour).Unix()), ValidBefore: uint64(morning.Add(time.Hour).Unix())}
			c.change(certificate)
			require.NoError(t, certificate.SignCert(rand.Reader, ca))
			certified, err := ssh.NewCertSigner(certificate, signer)
			require.NoError(t, err)
			signature := sign(t, operationYAML, prod, certified)
			_, refusal := signers.Verify([]byte(operationYAML), signature, morning, prod)
			if c.want == "" {
				require.Nil(t, refusal)
				return
			}
			requireRefused(t, CertificateRefused, refusal)
			require.Contains(t, refusal.Message, c.want)
		})
	}
	forged := &ssh.Certificate{Key: signer.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"alice@example.com"},
		ValidAfter: uint64(morning.Add(-time.Hour).Unix()), ValidBefore: uint64(morning.Add(time.Hour).Unix())}
	require.NoError(t, forged.SignCert(rand.Reader, signer))
	forged.SignatureKey = ca.PublicKey()
	certified, err := ssh.NewCertSigner(forged, signer)
	require.NoError(t, err)
	_, refusal := signers.Verify([]byte(operationYAML), sign(t, operationYAML, prod, certified), morning, prod)
	requireRefused(t, CertificateRefused, refusal)
}
