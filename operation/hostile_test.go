package operation

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hiddeco/sshsig"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

// hostile says what is wrong with each file of testdata/hostile.
var hostile = map[string]string{
	"capital-kind":          `line 3, column 1: the document has no field "Kind"`,
	"capital-action":        `line 13, column 5: spec.node has no field "Action"`,
	"capital-spec":          `line 13, column 1: the document has no field "Spec"`,
	"duplicate-action":      `line 13, column 5: spec.node.action is given twice`,
	"duplicate-in-quotes":   `line 13, column 5: spec.node.action is given twice`,
	"second-document":       `line 13 begins or ends a document`,
	"second-document-empty": `line 13 begins or ends a document`,
	"document-end":          `line 13 begins or ends a document`,
	"directive":             `line 1, column 1: the file of an operation has no directives`,
	"anchor":                `it has no anchors; leave &a out`,
	"alias":                 `it has no anchors; leave &l out`,
	"tag":                   `it has no tags; leave "!!str" out`,
	"merge-key":             `it has no merge keys`,
	"comment":               `line 12, column 20: the file of an operation has no comments`,
	"carriage-returns":      `this is a carriage return`,
	"byte-order-mark":       `this is a byte order mark`,
	"tab":                   `line 12, column 12: the file of an operation is printable ASCII and line feeds, and this is a tab`,
	"escape-character":      `line 13`,
	"nul":                   `line 13`,
	"cyrillic-letter":       `a character beyond ASCII (byte 0xd0)`,
	"line-separator":        `line break that YAML knows and editors don't`,
	"latin-1":               `the file is not UTF-8 text`,
	"boolean-of-yaml-1-1":   `line 14, column 11: "yes" is a boolean to some readers of YAML`,
	"number-in-base-60":     `"12:30:45" is a number to some readers`,
	"octal-number":          `spec.resume.pause must be a whole number`,
	"boolean-in-quotes":     `spec.node.gone must be true or false`,
	"unknown-field":         `spec.node has no field "force"`,
	"two-bodies":            `spec.cancel doesn't belong to spec.kind node`,
	"other-kind":            `line 5, column 1: `,
	"nothing":               `holds no operation`,
	"not-yaml":              `the file is not YAML`,
	"too-large":             `and the file of an operation may have 16384`,
	"too-deep":              `spec.reason must be a text, not a list`,
	"lives-too-long":        `an operation waits at most 7 days`,
	"no-cluster-id":         `spec.clusterRef.id is missing`,
	"later-kind":            `spec.kind is "ca-rotation"; that isn't built yet (not-yet)`,
	"service-not-allowed":   `it must be kubelet, containerd or cri`,
	"confirms-another":      `spec.node.confirm is "w-2", and the machine is "w-1"`,
}

func TestHostileFilesAreRefusedEachForItsOwnReason(t *testing.T) {
	files, err := filepath.Glob("testdata/hostile/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(hostile))
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			_, refusal := Read("operations/20261129-reboot-w1.yaml", data)
			requireRefused(t, Malformed, refusal)
			require.Contains(t, hostile, name)
			require.Contains(t, refusal.Message, hostile[name])
		})
	}
}

func TestAFileIsCalledLikeItsOperation(t *testing.T) {
	op, refusal := Read("operations/20261129-reboot-w1.yaml", []byte(operationYAML))
	require.Nil(t, refusal)
	require.Equal(t, Identity{ClusterID: "1f3a9c0d2b4e6f78", Name: "20261129-reboot-w1", Digest: Digest([]byte(operationYAML))}, identityOf(op))
	for _, name := range []string{"other.yaml", "20261129-reboot-w1.yml", "20261129-REBOOT-W1.yaml", "20261129-reboot-w1.yaml.sig"} {
		_, refusal = Read("operations/"+name, []byte(operationYAML))
		requireRefused(t, FileNameDiffers, refusal)
	}
}

func TestForgedArmourIsRefused(t *testing.T) {
	_, signer := newKey(t, "ed25519")
	_, rsaSigner := newKey(t, "rsa-2048")
	signers := parse(t, "alice namespaces=\"*\" "+line(signer.PublicKey())+"\nbob namespaces=\"*\" "+line(rsaSigner.PublicKey()))
	good := string(sign(t, operationYAML, prod, signer))
	lines := strings.Split(strings.TrimSuffix(good, "\n"), "\n")
	body := strings.Join(lines[1:len(lines)-1], "")
	rearm := func(change func(*sshsig.Signature)) string {
		s, err := sshsig.Unarmor([]byte(good))
		require.NoError(t, err)
		change(s)
		return string(sshsig.Armor(s))
	}
	raw := func(change func([]byte) []byte) string {
		blob, err := base64.StdEncoding.DecodeString(body)
		require.NoError(t, err)
		return armourBegin + base64.StdEncoding.EncodeToString(change(blob)) + armourEnd + "\n"
	}
	sha1 := func() string {
		sig, err := rsaSigner.(ssh.AlgorithmSigner).SignWithAlgorithm(nil, []byte("x"), ssh.KeyAlgoRSA)
		require.NoError(t, err)
		return string(sshsig.Armor(&sshsig.Signature{Version: 1, PublicKey: rsaSigner.PublicKey(), Namespace: prod, HashAlgorithm: "sha512", Signature: sig}))
	}
	for _, c := range []struct {
		name, armoured string
		want           Reason
	}{
		{"nothing", "", SignatureMissing},
		{"a blank", " ", SignatureMalformed},
		{"a text in front", "x\n" + good, SignatureMalformed},
		{"an empty line in front", "\n" + good, SignatureMalformed},
		{"a text behind", good + "x", SignatureMalformed},
		{"an empty line behind", good + "\n", SignatureMalformed},
		{"two signatures", good + good, SignatureMalformed},
		{"a header", armourBegin + "Comment: x\n\n" + body + armourEnd + "\n", SignatureMalformed},
		{"an empty line inside", armourBegin + "\n" + body + armourEnd + "\n", SignatureMalformed},
		{"a blank inside", armourBegin + " " + body + armourEnd + "\n", SignatureMalformed},
		{"carriage returns", strings.ReplaceAll(good, "\n", "\r\n"), SignatureMalformed},
		{"another armour", strings.ReplaceAll(good, "SSH SIGNATURE", "PGP SIGNATURE"), SignatureMalformed},
		{"no end", armourBegin + body, SignatureMalformed},
		{"no base64", armourBegin + "????" + armourEnd + "\n", SignatureMalformed},
		{"bits behind the base64", armourBegin + "QQ=" + armourEnd + "\n", SignatureMalformed},
		{"a signature that is cut off", raw(func(b []byte) []byte { return b[:len(b)-1] }), SignatureMalformed},
		{"bytes behind the signature", raw(func(b []byte) []byte { return append(b, 0) }), SignatureMalformed},
		{"another magic", raw(func(b []byte) []byte { b[0] = 'X'; return b }), SignatureMalformed},
		{"another version", raw(func(b []byte) []byte { b[9] = 2; return b }), SignatureMalformed},
		{"a large file", strings.Repeat("A", maxSignature+1), SignatureMalformed},
		{"a bit turned", rearm(func(s *sshsig.Signature) { s.Signature.Blob[0] ^= 1 }), SignatureWrong},
		{"something behind the inner signature", rearm(func(s *sshsig.Signature) { s.Signature.Rest = []byte{0} }), SignatureMalformed},
		{"another's key put in", rearm(func(s *sshsig.Signature) { s.PublicKey = rsaSigner.PublicKey() }), SignatureMalformed},
		{"another namespace put in", rearm(func(s *sshsig.Signature) { s.Namespace = "ichor-override@prod" }), SignatureWrong},
		{"an empty namespace", rearm(func(s *sshsig.Signature) { s.Namespace = "" }), NamespaceWrong},
		{"another hash put in", rearm(func(s *sshsig.Signature) { s.HashAlgorithm = "sha256" }), SignatureWrong},
		{"an algorithm put in", rearm(func(s *sshsig.Signature) { s.Signature.Format = ssh.KeyAlgoECDSA256 }), SignatureWrong},
		{"RSA with SHA-1", sha1(), KeyWeak},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, refusal := signers.Verify([]byte(operationYAML), []byte(c.armoured), morning, prod, overrideNamespace("prod"))
			requireRefused(t, c.want, refusal)
		})
	}
	_, refusal := signers.Verify([]byte(operationYAML), []byte(strings.TrimSuffix(good, "\n")), morning, prod)
	require.Nil(t, refusal, "a line feed at the end more or less is none of the signature")
}

func FuzzSignature(f *testing.F) {
	_, signer := newKey(f, "ed25519")
	signers := parse(f, "alice namespaces=\"*\" "+line(signer.PublicKey()))
	good := sign(f, operationYAML, prod, signer)
	f.Add(good)
	for _, seed := range []string{"", armourBegin, armourBegin + "U1NIU0lH" + armourEnd, strings.Replace(string(good), "A", "B", 3)} {
		f.Add([]byte(seed))
	}
	for _, name := range []string{"ed25519", "ecdsa", "untouched"} {
		data, err := os.ReadFile("testdata/sk/" + name + ".sig")
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, armoured []byte) {
		read, refusal := readSignature(armoured)
		if refusal != nil {
			require.NotEmpty(t, refusal.Message)
			return
		}
		again, refusal := readSignature(sshsig.Armor(read.Signature))
		require.Nil(t, refusal)
		require.Equal(t, read.Marshal(), again.Marshal(), "each signature has one spelling")
		if _, refusal := signers.Verify([]byte(operationYAML+"x"), armoured, morning, prod); refusal == nil {
			t.Fatal("a signature of other bytes was taken")
		}
	})
}

func FuzzAllowedSigners(f *testing.F) {
	_, signer := newKey(f, "ed25519")
	key := line(signer.PublicKey())
	good := sign(f, operationYAML, prod, signer)
	for _, seed := range []string{"", "# x\n", "alice " + key, `alice namespaces="ichor-*,!b?" ` + key, `"a,b" valid-after="20260101",valid-before="20270101Z",cert-authority ` + key,
		`a namespaces="x\"y" ` + key + " c", "alice namespaces=\"", "a ssh-rsa AAAA", "a valid-before=\"99999999\" " + key} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		signers, err := ParseAllowedSigners("signers", data)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "signers"))
			require.NotContains(t, err.Error(), "\n")
			return
		}
		allowed := false
		for _, right := range signers.Rights("prod") {
			require.NotContains(t, right.String(), "\n")
			allowed = allowed || right.Operations
		}
		if _, refusal := signers.Verify([]byte(operationYAML), good, morning, prod); refusal == nil {
			require.True(t, allowed, "what may be signed is listed")
		}
	})
}
