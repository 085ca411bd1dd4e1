package cleartext_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/internal/cleartext"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// secrets are made anew for each run: none stands in the repository.
type secrets struct {
	bundle, controlPlane, worker, pem, encryptedSSH, ssh, age, public, certificate, sealedText string
	sealedBinary                                                                               string
}

var made = sync.OnceValues(func() (*secrets, error) {
	s := &secrets{}
	bundle, err := talos.GenerateBundle("v1.6")
	if err != nil {
		return nil, err
	}
	text, err := bundle.Marshal()
	if err != nil {
		return nil, err
	}
	s.bundle = string(text)
	cluster := &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}, Spec: schema.ClusterSpec{Endpoint: "https://10.0.0.10:6443",
		TalosVersion: "v1.13.6", KubernetesVersion: "v1.36.2", Install: schema.InstallSpec{Disk: "/dev/sda"}}}
	for role, to := range map[schema.Role]*string{schema.RoleControlPlane: &s.controlPlane, schema.RoleWorker: &s.worker} {
		machine := &schema.TalosMachine{Spec: schema.MachineSpec{Role: role, Endpoint: "10.0.0.11"}}
		rendered, err := talos.Render(cluster, machine, bundle, talos.RenderOptions{})
		if err != nil {
			return nil, err
		}
		*to = string(rendered.Bytes)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	s.pem = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err
	}
	s.ssh = string(pem.EncodeToMemory(block))
	if block, err = ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte("pass")); err != nil {
		return nil, err
	}
	s.encryptedSSH = string(pem.EncodeToMemory(block))
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return nil, err
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	s.age, s.public = identity.String(), identity.Recipient().String()+"\n"+string(ssh.MarshalAuthorizedKey(key))
	s.certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: bytes.Repeat([]byte("certificate"), 60)}))
	recipients, err := sealed.ParseRecipients("r", []byte(identity.Recipient().String()))
	if err != nil {
		return nil, err
	}
	armored, err := sealed.Seal(recipients, text)
	if err != nil {
		return nil, err
	}
	s.sealedText = string(armored)
	var out bytes.Buffer
	writer, err := age.Encrypt(&out, identity.Recipient())
	if err != nil {
		return nil, err
	}
	if _, err := writer.Write(text); err != nil {
		return nil, err
	}
	s.sealedBinary = out.String()
	return s, writer.Close()
})

func b64(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n"
}

func asJSON(t *testing.T, text string) string {
	t.Helper()
	var value any
	require.NoError(t, yaml.Unmarshal([]byte(text), &value))
	out, err := json.Marshal(value)
	require.NoError(t, err)
	return string(out)
}

// secretKey gives a key of 40 characters as S3 servers make them.
func secretKey() string { return strings.ReplaceAll(rand.Text()+rand.Text(), "", "")[:40] }

func windows(text string) string {
	out := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(text)) {
		out = append(out, byte(unit), byte(unit>>8))
	}
	return string(out)
}

func wrapped(text string, width int) string {
	var out strings.Builder
	for len(text) > width {
		out.WriteString(text[:width] + "\n")
		text = text[width:]
	}
	return out.String() + text + "\n"
}

func TestASecretInTheClearIsFoundWhereItStands(t *testing.T) {
	s, err := made()
	require.NoError(t, err)
	random := make([]byte, 32)
	_, _ = rand.Read(random)
	key := secretKey()
	token := "a1b2c3." + strings.ToLower(rand.Text()[:16])
	kubeconfig := "apiVersion: v1\nkind: Config\nclusters:\n- name: a\n  cluster: {server: https://x}\ncontexts: []\nusers:\n- name: admin\n  user:\n    "
	talosconfig := "context: prod\ncontexts:\n  prod:\n    endpoints: [10.0.0.11]\n    ca: " + b64(s.certificate) + "\n    crt: " + b64(s.certificate) + "\n    key: "
	for name, test := range map[string]struct {
		text         string
		what         cleartext.What
		line, column int
	}{
		"a secrets bundle":                      {s.bundle, cleartext.Bundle, 3, 5},
		"a bundle in a list":                    {"- a: b\n- " + strings.TrimPrefix(indented(s.bundle), "  "), cleartext.Bundle, 4, 7},
		"a bundle in JSON":                      {asJSON(t, s.bundle), cleartext.Bundle, 1, 0},
		"a bundle as the second document":       {"a: b\n---\n" + s.bundle, cleartext.Bundle, 5, 5},
		"a bundle with CRLF":                    {strings.ReplaceAll(s.bundle, "\n", "\r\n"), cleartext.Bundle, 3, 5},
		"a bundle with a byte order mark":       {"\ufeff" + s.bundle, cleartext.Bundle, 3, 5},
		"a bundle in UTF-16":                    {windows(s.bundle), cleartext.Bundle, 3, 5},
		"a bundle in a Markdown page":           {"# How we began\n\n```yaml\n" + s.bundle + "```\n", cleartext.Bundle, 6, 5},
		"a bundle in comments":                  {"# " + strings.ReplaceAll(s.bundle, "\n", "\n# "), cleartext.Bundle, 3, 7},
		"a bundle in a Secret's data":           {"kind: Secret\ndata:\n  bundle: " + b64(s.bundle) + "\n", cleartext.Bundle, 3, 11},
		"a bundle in base64 of many lines":      {"data: |\n" + indented(wrapped(b64(s.bundle), 76)), cleartext.Bundle, 2, 3},
		"a bundle in base64 in comments":        {"# " + strings.ReplaceAll(wrapped(b64(s.bundle), 76), "\n", "\n# "), cleartext.Bundle, 1, 3},
		"MinIO's credentials":                   {"accessKey: ichor\nsecretKey: A1b" + key + "\n", cleartext.S3Credentials, 2, 1},
		"a registry's password":                 {"machine:\n  registries:\n    config:\n      ghcr.io:\n        auth: {username: me, password: ghp-a1b2c3d4e5}\n", cleartext.MachineConfig, 5, 30},
		"a registry's password, alone":          {"apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: ghcr.io\nusername: me\npassword: ghp-a1b2c3d4e5\n", cleartext.MachineConfig, 5, 1},
		"a bundle that is cut off":              {s.bundle[:len(s.bundle)/3], cleartext.Bundle, 3, 5},
		"a control plane's config":              {s.controlPlane, cleartext.MachineConfig, 6, 5},
		"a worker's config":                     {s.worker, cleartext.MachineConfig, 6, 5},
		"a control plane's config in JSON":      {asJSON(t, strings.Split(s.controlPlane, "\n---")[0]), cleartext.MachineConfig, 1, 0},
		"a patch with a WireGuard key":          {"apiVersion: v1alpha1\nkind: WireguardConfig\nname: wg0\nprivateKey: " + b64(string(random)) + "\n", cleartext.MachineConfig, 4, 1},
		"a patch with a disk's passphrase":      {"apiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\nencryption:\n  keys:\n  - slot: 0\n    static:\n      passphrase: correct-horse-9\n", cleartext.MachineConfig, 8, 7},
		"S3 credentials":                        {"accessKeyID: ichor\nsecretAccessKey: " + key + "\n", cleartext.S3Credentials, 2, 1},
		"S3 credentials of words":               {"accessKeyID: minio\nsecretAccessKey: minioadmin\n", cleartext.S3Credentials, 2, 1},
		"S3 credentials in JSON":                {`{"accessKeyID": "a", "secretAccessKey": "` + key + `"}`, cleartext.S3Credentials, 1, 23},
		"S3 credentials in quotes":              {"secretAccessKey: '" + key + "'\n", cleartext.S3Credentials, 1, 1},
		"an AWS credentials file":               {"[default]\naws_access_key_id = AKIAZZ\naws_secret_access_key = " + key + "\n", cleartext.S3Credentials, 3, 5},
		"an environment file":                   {"export AWS_SECRET_ACCESS_KEY=" + key + "\n", cleartext.S3Credentials, 1, 12},
		"an environment of a container":         {"env:\n- name: AWS_SECRET_ACCESS_KEY\n  value: " + key + "\n", cleartext.S3Credentials, 2, 13},
		"an age identity":                       {"# created: today\n# public key: age1x\n" + s.age + "\n", cleartext.AgeIdentity, 3, 1},
		"an age identity in lower case":         {strings.ToLower(s.age), cleartext.AgeIdentity, 1, 1},
		"an age identity in UTF-16":             {windows("# x\r\n" + s.age), cleartext.AgeIdentity, 2, 1},
		"an age identity in a workflow":         {"env:\n  SOPS_AGE_KEY: " + s.age + "\n", cleartext.AgeIdentity, 2, 17},
		"an age plugin's identity":              {"AGE-PLUGIN-YUBIKEY-1QYPQXPQ9QCRSSZG2PVXQ6RS\n", cleartext.AgeIdentity, 1, 1},
		"a talosconfig":                         {talosconfig + b64(s.pem) + "\n", cleartext.Talosconfig, 7, 10},
		"a kubeconfig with a key":               {kubeconfig + "client-key-data: " + b64(s.pem) + "\n", cleartext.Kubeconfig, 10, 22},
		"a kubeconfig with a token":             {kubeconfig + "token: " + rand.Text() + "\n", cleartext.Kubeconfig, 10, 5},
		"a kubeconfig with a password":          {kubeconfig + "username: a\n    password: geheim\n", cleartext.Kubeconfig, 11, 5},
		"a kubeconfig in a Secret":              {"data:\n  config: " + b64(kubeconfig+"token: "+rand.Text()+"\n"), cleartext.Kubeconfig, 2, 11},
		"a private key":                         {s.pem, cleartext.PrivateKey, 1, 12},
		"a private key in a block":              {"tls:\n  key: |\n    " + strings.ReplaceAll(s.pem, "\n", "\n    "), cleartext.PrivateKey, 3, 16},
		"a private key in JSON":                 {`{"key": "` + strings.ReplaceAll(s.pem, "\n", `\n`) + `"}`, cleartext.PrivateKey, 1, 21},
		"a private key in base64":               {"key: " + b64(s.pem), cleartext.PrivateKey, 1, 6},
		"a private key behind a certificate":    {s.certificate + s.pem, cleartext.PrivateKey, 17, 12},
		"a private key in a file with NULs":     {"tar\x00\x00\x00" + s.pem, cleartext.PrivateKey, 1, 18},
		"an encrypted key":                      {strings.ReplaceAll(s.pem, "PRIVATE", "ENCRYPTED PRIVATE"), cleartext.PrivateKey, 1, 22},
		"an old encrypted key":                  {"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n" + strings.Repeat("MIIEpAIBAAKCAQEA", 4) + "\n", cleartext.PrivateKey, 1, 16},
		"a PGP key":                             {"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n" + strings.Repeat("lQOYBGExample123", 4) + "\n", cleartext.PrivateKey, 1, 16},
		"an SSH key":                            {s.ssh, cleartext.SSHKey, 1, 20},
		"an SSH key with a passphrase":          {s.encryptedSSH, cleartext.SSHKey, 1, 20},
		"a PuTTY key":                           {"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPublic-Lines: 1\nAAAA\nPrivate-Lines: 1\nBBBB\n", cleartext.SSHKey, 1, 1},
		"a token beside a config in a sentence": {"cluster:\n  token: " + token + "\n", cleartext.MachineConfig, 2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			found := cleartext.Search([]byte(test.text))
			require.Len(t, found, 1)
			require.Equal(t, test.what, found[0].What)
			require.Equal(t, test.line, found[0].Line)
			if test.column > 0 {
				require.Equal(t, test.column, found[0].Column)
			}
			require.NotContains(t, fmt.Sprint(found), key)
		})
	}
}

func TestSecretsOfOneKindInADocumentAreOneAndAreCounted(t *testing.T) {
	s, err := made()
	require.NoError(t, err)
	found := cleartext.Search([]byte(s.age + "\n" + s.age + "\n---\n" + s.age + "\n" + s.pem))
	require.Len(t, found, 3)
	require.Equal(t, cleartext.Found{What: cleartext.AgeIdentity, Line: 1, Column: 1, More: 1}, found[0])
	require.Equal(t, cleartext.Found{What: cleartext.AgeIdentity, Line: 4, Column: 1}, found[1])
	require.Equal(t, cleartext.PrivateKey, found[2].What)
}

func TestWhatIsNoSecretIsNotTakenForOne(t *testing.T) {
	s, err := made()
	require.NoError(t, err)
	withoutKeys := strings.NewReplacer().Replace("machine:\n  type: worker\n  token: \"\"\n  ca:\n    crt: " + b64(s.certificate) + "\n    key: \"\"\ncluster:\n  id: \"\"\n  secret: \"\"\n  token: \"\"\n  secretboxEncryptionSecret: \"\"\n")
	for name, text := range map[string]string{
		"nothing":                    "",
		"a certificate":              s.certificate,
		"a certificate in base64":    "ca:\n  crt: " + b64(s.certificate) + "\n",
		"public keys":                s.public,
		"an armored sealed file":     s.sealedText,
		"a binary sealed file":       s.sealedBinary,
		"a sealed value in base64":   "data: " + b64(s.sealedText),
		"a config without keys":      withoutKeys,
		"a config that is redacted":  "machine:\n  token: '*******'\n  ca: {crt: x, key: '*******'}\ncluster:\n  secret: '*******'\n  token: REDACTED\n",
		"a page about the fields":    "The bundle has `trustdinfo`, `bootstraptoken: ...` and `secretboxencryptionsecret: <base64>`. `s3.age` opens to `accessKeyID` and `secretAccessKey`.\n\n| field | |\n| `secretAccessKey` | required; the secret |\n\n    accessKeyID: AKIA...\n    secretAccessKey: ...\n    AWS_SECRET_ACCESS_KEY=...\n    AGE-SECRET-KEY-1...\n    -----BEGIN PRIVATE KEY-----\n    ...\n    -----END PRIVATE KEY-----\n",
		"an identity that is shown":  "AGE-SECRET-KEY-1" + strings.Repeat("Q", 58) + "\nAGE-PLUGIN-YUBIKEY-1...\n",
		"a workflow":                 "env:\n  AWS_SECRET_ACCESS_KEY: ${{ secrets.S3_KEY }}\n  AWS_ACCESS_KEY_ID: x\n  SOPS_AGE_KEY: ${{ secrets.AGE }}\n",
		"a script":                   "export AWS_SECRET_ACCESS_KEY=\"$(pass show s3)\"\nexport AWS_SECRET_ACCESS_KEY=$KEY\n: \"${AWS_SECRET_ACCESS_KEY:?is not set}\"\n",
		"code":                       "secretAccessKey: process.env.SECRET,\nSecretAccessKey = options.secretAccessKey\nvar secretAccessKey string\nif secretAccessKey == nil {\n",
		"a reference to a Secret":    "secretAccessKey:\n  secretKeyRef: {name: s3, key: secretAccessKey}\nsecret_access_key_file: /run/secrets/key\n",
		"AWS's own example":          "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n",
		"Talos's own examples":       "machine:\n  token: 328hom.uqjzh6jnn2eie9oi\ncluster:\n  token: wlzjyw.bei2zfylhs2by0wd\n  aescbcEncryptionSecret: z01mye6j16bspJYtTB/5SFX8j7Ph4JXxM2Xuu4vsBPM=\n",
		"sops":                       "cluster:\n  secret: ENC[AES256_GCM,data:c2VjcmV0,iv:aXY=,tag:dGFn,type:str]\n  token: ENC[AES256_GCM,data:dG9rZW4=,iv:aXY=,tag:dGFn,type:str]\nsecretAccessKey: ENC[AES256_GCM,data:a2V5,iv:aXY=,tag:dGFn,type:str]\nkey: ENC[AES256_GCM,data:" + b64("0123456789012345678901234567890123456789") + ",type:str]\nsops:\n  age:\n  - recipient: " + strings.SplitN(s.public, "\n", 2)[0] + "\n    enc: |\n" + indented(s.sealedText),
		"a kubeconfig with a plugin": "apiVersion: v1\nkind: Config\nclusters: []\ncontexts: []\nusers:\n- name: a\n  user:\n    exec: {command: kubelogin, args: [get-token]}\n    tokenFile: /var/run/token\n",
		"a kind of ours":             "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosCluster\nmetadata: {name: prod}\nspec:\n  id: 1f3a9c0d2b4e6f78\n  secrets: {file: secrets.age}\n",
		"a signature":                "-----BEGIN SSH SIGNATURE-----\nU1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgc2lnbmF0dXJl\n-----END SSH SIGNATURE-----\n",
		"a hash of 32 bytes":         "image: x@sha256:" + strings.Repeat("0a", 32) + "\nsecret: not-a-key\n",
		"a path to a key":            "privateKey: /etc/wireguard/key\nkey: /etc/ssl/private.pem\ntoken: see the vault\n",
		"a public key of WireGuard":  "kind: WireguardConfig\npeers:\n- publicKey: " + b64("01234567890123456789012345678901") + "\n",
		"an ExternalSecret":          "data:\n- secretKey: accessKey\n- secretKey: secretAccessKey\n  remoteRef: {key: a}\naccessKey: x\n",
		"Terraform":                  "access_key = var.access_key\nsecret_key = var.secret_key2.Value\n",
		"a password elsewhere":       "machine:\n  type: worker\nmysql:\n  password: hunter2hunter2\n",
		"a picture":                  "\x89PNG\x00\x00\x00token: a1b2c3.0123456789abcdef cluster: ",
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, cleartext.Search([]byte(text)))
		})
	}
}

func TestAHugeFileIsReadAtItsBeginningOnly(t *testing.T) {
	s, err := made()
	require.NoError(t, err)
	reader := &endless{line: []byte("token: abcdefghijklmnop\n")}
	found, whole, err := cleartext.Read(reader)
	require.NoError(t, err)
	require.False(t, whole)
	require.Empty(t, found)
	require.LessOrEqual(t, reader.read, cleartext.MaxSearched+1<<20)
	found, whole, err = cleartext.Read(strings.NewReader(s.age))
	require.NoError(t, err)
	require.True(t, whole)
	require.Len(t, found, 1)
}

// endless is a file without an end.
type endless struct {
	line []byte
	read int
}

func (e *endless) Read(into []byte) (int, error) {
	n := copy(into, bytes.Repeat(e.line, len(into)/len(e.line)+1))
	e.read += n
	return n, nil
}

// BenchmarkSearch searches files of the largest size that is looked at, made to be as slow as can be.
func BenchmarkSearch(b *testing.B) {
	s, err := made()
	require.NoError(b, err)
	for name, unit := range map[string]string{
		"tokens": "token: a1b2c3.0123456789abcdeg\n", "tokens in a cluster": "cluster: token: a1b2c3.0123456789abcdeg\n", "dashes": "---\n", "base64": b64(s.certificate) + "\n", "nested base64": b64(b64(s.certificate)) + "\n",
		"keys": "-----BEGIN PRIVATE KEY-----\n", "secrets": "secret secret: ", "letters": "a", "sealed": s.sealedText, "heads": "private key-----\n\n\n\n",
	} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat([]byte(unit), cleartext.MaxSearched/len(unit))
			b.ReportAllocs()
			for b.Loop() {
				cleartext.Search(data)
			}
		})
	}
}

func FuzzSearch(f *testing.F) {
	s, err := made()
	require.NoError(f, err)
	for _, seed := range []string{"", s.pem, "token: a1b2c3.0123456789abcdef", "\xff\xfea", "---\n---\n", b64(b64(s.pem)), "AGE-SECRET-KEY-1", "\ufeff-----BEGIN PRIVATE KEY-----\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		begun := time.Now()
		lines := bytes.Count(data, []byte("\n")) + 1
		for _, found := range cleartext.Search(data) {
			if found.What == "" || found.Line < 1 || found.Column < 1 || found.Line > 2*lines+len(data) {
				t.Fatalf("%+v", found)
			}
		}
		if time.Since(begun) > 10*time.Second {
			t.Fatal("the search took more than 10 s")
		}
	})
}
