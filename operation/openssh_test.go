package operation

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const prod = "ichor-operation@prod"

func TestSignaturesAreGoodBothWays(t *testing.T) {
	for _, kind := range keyKinds {
		t.Run(kind, func(t *testing.T) {
			o := newOpenSSH(t)
			key, signer := newKey(t, kind)
			o.writeKey("key", key, signer)
			allowed := `alice@example.com namespaces="ichor-*@prod" ` + line(signer.PublicKey()) + "\n"

			ours := sign(t, operationYAML, prod, signer)
			good, said := o.verify(allowed, "alice@example.com", prod, operationYAML, ours, morning)
			require.True(t, good, said)

			o.write("op.yaml", operationYAML)
			o.run("", "-Y", "sign", "-f", "key", "-n", prod, "op.yaml")
			theirs := o.read("op.yaml.sig")
			who, refusal := parse(t, allowed).Verify([]byte(operationYAML), theirs, morning, prod)
			require.Nil(t, refusal)
			require.Equal(t, "alice@example.com", who.Principal)
			require.Equal(t, 1, who.Line)
			require.Contains(t, o.run("", "-l", "-f", "key.pub"), who.Fingerprint)

			for name, c := range map[string]struct {
				signers, data, namespace string
				want                     Reason
			}{
				"other bytes":            {allowed, operationYAML + "\n", prod, SignatureWrong},
				"another namespace":      {allowed, operationYAML, "ichor-operation@staging", NamespaceWrong},
				"a namespace not for it": {strings.Replace(allowed, "ichor-*@prod", "git", 1), operationYAML, prod, NamespaceNotAllowed},
			} {
				for _, signature := range [][]byte{ours, theirs} {
					_, refusal := parse(t, c.signers).Verify([]byte(c.data), signature, morning, c.namespace)
					requireRefused(t, c.want, refusal)
					good, said := o.verify(c.signers, "alice@example.com", c.namespace, c.data, signature, morning)
					require.False(t, good, "%s: %s", name, said)
				}
			}
		})
	}
}

func TestWhatOpenSSHHashesWithSHA256IsGood(t *testing.T) {
	o := newOpenSSH(t)
	key, signer := newKey(t, "ed25519")
	o.writeKey("key", key, signer)
	o.write("op.yaml", operationYAML)
	o.run("", "-Y", "sign", "-O", "hashalg=sha256", "-f", "key", "-n", prod, "op.yaml")
	_, refusal := parse(t, `a namespaces="*" `+line(signer.PublicKey())).Verify([]byte(operationYAML), o.read("op.yaml.sig"), morning, prod)
	require.Nil(t, refusal)
}

func TestACertificateIsGoodBothWays(t *testing.T) {
	for _, kind := range keyKinds {
		t.Run(kind, func(t *testing.T) {
			o := newOpenSSH(t)
			caKey, ca := newKey(t, "ed25519")
			if kind == "ed25519" { // an authority of another kind, too
				caKey, ca = newKey(t, "rsa-2048")
			}
			o.writeKey("ca", caKey, ca)
			key, signer := newKey(t, kind)
			o.writeKey("key", key, signer)
			o.run("", "-q", "-s", "ca", "-I", "alice's laptop", "-n", "alice@example.com,ops", "-z", "7", "-V", "20261101000000Z:20261201000000Z", "key.pub")
			allowed := `*@example.com cert-authority,namespaces="ichor-*@prod" ` + line(ca.PublicKey()) + "\n"

			certified, err := CertificateSigner(signer, o.read("key-cert.pub"))
			require.NoError(t, err)
			ours := sign(t, operationYAML, prod, certified)
			good, said := o.verify(allowed, "alice@example.com", prod, operationYAML, ours, morning)
			require.True(t, good, said)

			o.write("op.yaml", operationYAML)
			o.run("", "-Y", "sign", "-f", "key-cert.pub", "-n", prod, "op.yaml")
			theirs := o.read("op.yaml.sig")
			who, refusal := parse(t, allowed).Verify([]byte(operationYAML), theirs, morning, prod)
			require.Nil(t, refusal)
			require.Equal(t, "alice@example.com", who.Principal)
			require.Equal(t, uint64(7), who.Certificate.Serial)
			require.Equal(t, "alice's laptop", who.Certificate.KeyID)
			require.Contains(t, o.run("", "-l", "-f", "ca.pub"), who.Certificate.Authority)
			require.Contains(t, who.String(), "certificate")

			for _, signature := range [][]byte{ours, theirs} {
				for at, want := range map[time.Time]Reason{
					time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC):     CertificateExpired,
					time.Date(2026, 10, 31, 23, 59, 59, 0, time.UTC): CertificateNotYetValid,
				} {
					_, refusal = parse(t, allowed).Verify([]byte(operationYAML), signature, at, prod)
					requireRefused(t, want, refusal)
					good, said = o.verify(allowed, "alice@example.com", prod, operationYAML, signature, at)
					require.False(t, good, said)
				}
				_, refusal = parse(t, strings.Replace(allowed, "*@example.com", "*@example.org", 1)).Verify([]byte(operationYAML), signature, morning, prod)
				requireRefused(t, CertificateRefused, refusal)
				for _, other := range []string{"a cert-authority,namespaces=\"*\" " + line(signer.PublicKey()), "a namespaces=\"*\" " + line(signer.PublicKey()), "a namespaces=\"*\" " + line(ca.PublicKey())} {
					_, refusal = parse(t, other).Verify([]byte(operationYAML), signature, morning, prod)
					requireRefused(t, KeyUnknown, refusal)
					good, said = o.verify(other, "alice@example.com", prod, operationYAML, signature, morning)
					require.False(t, good, said)
				}
			}
		})
	}
}

// TestTheVerdictOnALineIsOpenSSHs compares with ssh-keygen itself. Where Ichor is stricter, on purpose, the case says so.
func TestTheVerdictOnALineIsOpenSSHs(t *testing.T) {
	o := newOpenSSH(t)
	_, signer := newKey(t, "ed25519")
	_, other := newKey(t, "ed25519")
	signature := sign(t, operationYAML, prod, signer)
	key := line(signer.PublicKey())
	const stricter, both = true, false
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, signers string
		good          bool
		stricter      bool
	}{
		{"the namespace itself", `alice namespaces="ichor-operation@prod" ` + key, true, both},
		{"a star at the end", `alice namespaces="ichor-*" ` + key, true, both},
		{"a star in the middle", `alice namespaces="ichor-*@prod" ` + key, true, both},
		{"a star for nothing", `alice namespaces="*ichor-operation@prod*" ` + key, true, both},
		{"two stars", `alice namespaces="*-*@p*d" ` + key, true, both},
		{"a question mark", `alice namespaces="ichor-operation?prod" ` + key, true, both},
		{"a question mark for nothing", `alice namespaces="ichor-operation@prod?" ` + key, false, both},
		{"another cluster", `alice namespaces="ichor-*@staging" ` + key, false, both},
		{"a cluster that begins alike", `alice namespaces="ichor-operation@pro" ` + key, false, both},
		{"capitals", `alice namespaces="ICHOR-OPERATION@PROD" ` + key, false, both},
		{"the override alone", `alice namespaces="ichor-override@prod" ` + key, false, both},
		{"one of several", `alice namespaces="git,ichor-operation@prod,file" ` + key, true, both},
		{"none of several", `alice namespaces="git,file" ` + key, false, both},
		{"one against it, in front", `alice namespaces="!ichor-operation@*,ichor-*" ` + key, false, both},
		{"one against it, behind", `alice namespaces="ichor-*,!*@prod" ` + key, false, both},
		{"one against another", `alice namespaces="ichor-*,!ichor-override@*" ` + key, true, both},
		{"nothing but one against another", `alice namespaces="!ichor-override@*" ` + key, false, both},
		{"no pattern", `alice namespaces="" ` + key, false, both},
		{"an empty pattern among others", `alice namespaces=",ichor-*" ` + key, true, both},
		{"a blank among them", `alice namespaces="git, ichor-*" ` + key, false, both},
		{"no namespaces=", `alice ` + key, false, stricter},
		{"the option in capitals", `alice NAMESPACES="ichor-*" ` + key, true, both},
		{"an option without quotes", `alice namespaces=ichor-* ` + key, false, both},
		{"an option that is given twice", `alice namespaces="a",namespaces="ichor-*" ` + key, false, both},
		{"an option that isn't known", `alice namespaces="ichor-*",no-touch-required ` + key, false, both},
		{"a comma at the end", `alice namespaces="ichor-*", ` + key, false, both},
		{"a blank between options", `alice namespaces="ichor-*", valid-after="20200101" ` + key, false, both},
		{"quotes that aren't closed", `alice namespaces="ichor-* ` + key, false, both},
		{"a quote inside the quotes", `alice namespaces="ichor-*,a\"b" ` + key, true, both},
		{"a comment behind the key", `alice namespaces="ichor-*" ` + key + ` alice's # laptop`, true, both},
		{"tabs between", "\talice\tnamespaces=\"ichor-*\"\t" + key, true, both},
		{"principals in quotes", `"alice,bob" namespaces="ichor-*" ` + key, true, both},
		{"principals by pattern", `al*,!bob namespaces="ichor-*" ` + key, true, both},
		{"another's key first", "bob namespaces=\"*\" " + line(other.PublicKey()) + "\n\n# mine\nalice namespaces=\"ichor-*\" " + key, true, both},
		{"the same key on a line that says no first", "alice namespaces=\"git\" " + key + "\nalice namespaces=\"ichor-*\" " + key, true, both},
		{"the same key out of time first", "alice namespaces=\"ichor-*\",valid-before=\"20200101\" " + key + "\nalice namespaces=\"ichor-*\" " + key, true, both},
		{"a key that is an authority", `alice cert-authority,namespaces="ichor-*" ` + key, false, both},
		{"another key", `alice namespaces="ichor-*" ` + line(other.PublicKey()), false, both},
		{"a line that doesn't parse behind the good one", "alice namespaces=\"ichor-*\" " + key + "\nbob nonsense", false, stricter},
		{"a key of another type than its line says", `alice namespaces="ichor-*" ssh-rsa ` + strings.Fields(key)[1], false, both},
		{"a key that is cut off", `alice namespaces="ichor-*" ` + key[:40], false, both},
		{"nothing at all", "", false, both},

		{"until a day that is to come", `alice namespaces="*",valid-before="20261130" ` + key, true, both},
		{"until this day began", `alice namespaces="*",valid-before="20261129" ` + key, false, both},
		{"until this minute", `alice namespaces="*",valid-before="202611291200" ` + key, true, both},
		{"until this second", `alice namespaces="*",valid-before="20261129120000" ` + key, true, both},
		{"until the second before", `alice namespaces="*",valid-before="20261129115959" ` + key, false, both},
		{"until this second in UTC", `alice namespaces="*",valid-before="20261129120000Z" ` + key, true, both},
		{"until the second before in UTC", `alice namespaces="*",valid-before="20261129115959z" ` + key, false, both},
		{"from this second on", `alice namespaces="*",valid-after="20261129120000" ` + key, true, both},
		{"from the next second on", `alice namespaces="*",valid-after="20261129120001" ` + key, false, both},
		{"from a day ago to a day ahead", `alice valid-after="20261128",namespaces="*",valid-before="20261130Z" ` + key, true, both},
		{"a time that never is", `alice namespaces="*",valid-after="20261130",valid-before="20261129" ` + key, false, both},
		{"a month that doesn't exist", `alice namespaces="*",valid-before="20271301" ` + key, false, both},
		{"a time with a dash", `alice namespaces="*",valid-before="2027-01-01" ` + key, false, both},
		{"a time that is too short", `alice namespaces="*",valid-before="202701" ` + key, false, both},
		{"a time of ten digits", `alice namespaces="*",valid-before="2027010112" ` + key, false, both},
		{"an empty time", `alice namespaces="*",valid-before="" ` + key, false, both},
		{"a time for ever", `alice namespaces="*",valid-before="forever" ` + key, false, both},
	} {
		t.Run(c.name, func(t *testing.T) {
			ours := false
			if signers, err := ParseAllowedSigners("signers", []byte(c.signers)); err == nil {
				_, refusal := signers.Verify([]byte(operationYAML), signature, noon, prod)
				ours = refusal == nil
			}
			require.Equal(t, c.good, ours)
			theirs, said := o.verify(c.signers, "alice", prod, operationYAML, signature, noon)
			require.Equal(t, c.good || c.stricter, theirs, said)
		})
	}
}

func TestRevokedKeysAreRefusedAsOpenSSHRefusesThem(t *testing.T) {
	o := newOpenSSH(t)
	caKey, ca := newKey(t, "ed25519")
	o.writeKey("ca", caKey, ca)
	key, signer := newKey(t, "ecdsa-256")
	o.writeKey("key", key, signer)
	o.run("", "-q", "-s", "ca", "-I", "id", "-n", "alice", "-V", "20261101000000Z:20261201000000Z", "key.pub")
	certified, err := CertificateSigner(signer, o.read("key-cert.pub"))
	require.NoError(t, err)
	_, other := newKey(t, "ed25519")
	allowed := "alice namespaces=\"*\" " + line(signer.PublicKey()) + "\nalice cert-authority,namespaces=\"*\" " + line(ca.PublicKey()) + "\n"
	plain, byCertificate := sign(t, operationYAML, prod, signer), sign(t, operationYAML, prod, certified)
	for _, c := range []struct {
		name, list string
		signature  []byte
		good       bool
	}{
		{"an empty list", "# nobody\n\n", plain, true},
		{"another's key", line(other.PublicKey()) + "\n", plain, true},
		{"the key", line(other.PublicKey()) + "\n" + line(signer.PublicKey()) + " lost\n", plain, false},
		{"the key, and the signature by its certificate", line(signer.PublicKey()) + "\n", byCertificate, false},
		{"the authority", line(ca.PublicKey()) + "\n", byCertificate, false},
		{"the authority, and the signature by the key itself", line(ca.PublicKey()) + "\n", plain, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			signers := parse(t, allowed)
			require.NoError(t, signers.Revoke("revoked", []byte(c.list)))
			_, refusal := signers.Verify([]byte(operationYAML), c.signature, morning, prod)
			if c.good {
				require.Nil(t, refusal)
			} else {
				requireRefused(t, KeyRevoked, refusal)
			}
			o.write("signers", allowed)
			o.write("revoked", c.list)
			o.write("signature", string(c.signature))
			out, err := o.try(operationYAML, "-Y", "verify", "-f", "signers", "-r", "revoked", "-I", "alice", "-n", prod, "-s", "signature",
				"-Overify-time="+morning.Format("20060102150405Z"))
			require.Equal(t, c.good, err == nil, out)
		})
	}
	o.run("", "-q", "-k", "-f", "krl", "key.pub")
	require.ErrorContains(t, parse(t, allowed).Revoke("krl", o.read("krl")), "krl is a binary revocation list (KRL)")
}
