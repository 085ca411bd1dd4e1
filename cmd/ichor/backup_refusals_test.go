package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/keptport"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// site is a bucket with two snapshots of one cluster in it, newest last, and the bundle that opens them.
type site struct {
	t            *testing.T
	server       *s3gateway.Child
	endpoint     string
	prefix       string
	objects      string // the folder of what is below the prefix
	dir          string
	bundle       []byte
	older, newer string
}

func startServer(t *testing.T, options s3gateway.Options) *s3gateway.Child {
	t.Helper()
	options.Dir, options.Access, options.Secret, options.Buckets = t.TempDir(), canaryAccess, canarySecret, []string{"backups"}
	server, err := s3gateway.StartChild(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return server
}

func newSite(t *testing.T, server *s3gateway.Child, prefix string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), older: "etcd-20261129T100000Z.snapshot.age", newer: "etcd-20261129T110000Z.snapshot.age", server: server,
		endpoint: server.Endpoint, prefix: prefix, objects: filepath.Join(server.Options.Dir, "backups", prefix)}
	var err error
	s.bundle, err = ownBundle()
	require.NoError(t, err)
	s.write("bundle.yaml", string(s.bundle))
	s.keys(canaryAccess, canarySecret, "")
	return s
}

func (s *site) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	require.NoError(s.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (s *site) keys(access, secret, token string) {
	text := fmt.Sprintf("accessKeyID: %q\nsecretAccessKey: %q\n", access, secret)
	if token != "" {
		text += fmt.Sprintf("sessionToken: %q\n", token)
	}
	s.write("s3.yaml", text)
}

// fill stores two snapshots.
func (s *site) fill(config statefile.S3Config) *site {
	s.t.Helper()
	config.Endpoint, config.Bucket, config.Prefix = s.server.Endpoint, "backups", s.prefix
	config.Credentials = &statefile.S3Credentials{AccessKeyID: canaryAccess, SecretAccessKey: canarySecret}
	for n, name := range []string{s.older, s.newer} {
		at, _ := backup.ParseName(name)
		require.NoError(s.t, storeSnapshot(config, s.bundle, at, s.t.TempDir(), 100*(n+1), 1000))
	}
	return s
}

func (s *site) passphrase(bundle []byte) string {
	loaded, err := talos.LoadBundle(bundle)
	require.NoError(s.t, err)
	material := loaded.SealingMaterial()
	passphrase, err := backup.NewPassphrase(material.ClusterID, material.ClusterSecret)
	require.NoError(s.t, err)
	return passphrase.Secret()
}

// run runs `ichor backup ARGS`, and holds that no secret is in what it prints. %o is a folder that must stay empty if it fails.
func (s *site) run(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	out := s.t.TempDir()
	line := []string{"backup", args[0], "--bundle", filepath.Join(s.dir, "bundle.yaml")}
	if !strings.Contains(strings.Join(args, " "), "--file") {
		line = append(line, "--from", "s3://backups/"+s.prefix, "--s3-endpoint", s.endpoint, "--s3-credentials", filepath.Join(s.dir, "s3.yaml"))
	}
	switch args[0] {
	case "get":
		line = append(line, "--out", filepath.Join(out, "got"))
	case "drill":
		line = append(line, "--spool", out)
	}
	var a, b bytes.Buffer
	app := &app{terminal: &terminal{in: strings.NewReader(""), out: &a, err: &b}, getenv: func(string) string { return "" },
		clock: clocktesting.NewFakeClock(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC))}
	code = app.execute(s.t.Context(), append(line, args[1:]...))
	if code != exitOK || args[0] == "drill" {
		left, err := os.ReadDir(out)
		require.NoError(s.t, err)
		require.Empty(s.t, left, "what was half done is left")
	}
	s.requireNoSecret(a.String() + b.String())
	return code, a.String(), b.String()
}

// requireNoSecret holds that a text has no credential, passphrase or value of the bundle in it, in any form.
func (s *site) requireNoSecret(text string) {
	s.t.Helper()
	material, err := talos.LoadBundle(s.bundle)
	require.NoError(s.t, err)
	secrets := []string{canarySecret, s.passphrase(s.bundle), material.SealingMaterial().ClusterSecret, material.SealingMaterial().EncryptionSecret, canaryToken}
	for _, secret := range secrets {
		for _, form := range formsOf(secret) {
			require.NotContains(s.t, text, form)
		}
	}
}

func (s *site) refused(code int, want string, args ...string) {
	s.t.Helper()
	got, _, stderr := s.run(args...)
	require.Equal(s.t, code, got, stderr)
	require.Contains(s.t, stderr, want)
	require.LessOrEqual(s.t, strings.Count(stderr, "\n"), 3, "a sentence, a warning and a way out at most: %s", stderr)
}

func TestWhatIsNoGoodInTheBucketIsRefusedWithTheReason(t *testing.T) {
	server := startServer(t, s3gateway.Options{})
	for name, c := range map[string]struct {
		change func(t *testing.T, s *site)
		want   map[string]string // by the command, what it must say; all end with 1
	}{
		"nothing there": {func(t *testing.T, s *site) { require.NoError(t, os.RemoveAll(s.objects)) },
			map[string]string{"list": "holds no snapshot", "get": "there is no snapshot yet", "verify": "there is no snapshot yet", "drill": "there is no snapshot yet"}},
		"the object is gone": {func(t *testing.T, s *site) { require.NoError(t, os.Remove(filepath.Join(s.objects, s.newer))) },
			map[string]string{"list": "1 listed snapshots are gone or were changed, first etcd-20261129T110000Z", "verify NEWER": "the bucket doesn't hold it any more",
				"get NEWER": "the bucket doesn't hold it any more", "drill NEWER": "the bucket doesn't hold it any more"}},
		"the object was cut off": {func(t *testing.T, s *site) {
			require.NoError(t, os.Truncate(filepath.Join(s.objects, s.newer), 70_000))
		},
			map[string]string{"list": "1 listed snapshots are gone or were changed", "verify NEWER": "has 70000 bytes in the bucket, and", "get NEWER --decrypt": "has 70000 bytes in the bucket, and",
				"drill NEWER": "has 70000 bytes in the bucket, and"}},
		"the object was replaced by another snapshot": {func(t *testing.T, s *site) { s.swap(t) },
			map[string]string{"list": "2 listed snapshots are gone or were changed", "get NEWER": "so it was replaced or damaged"}},
		"one bit is another": {func(t *testing.T, s *site) { require.NoError(t, flipBit(filepath.Join(s.objects, s.newer), 100_000)) },
			map[string]string{"verify": "it was replaced or damaged; take another", "get": "it was replaced or damaged", "get --decrypt": "it was replaced or damaged",
				"drill": "it was replaced or damaged"}},
		"one bit of the header is another": {func(t *testing.T, s *site) { require.NoError(t, flipBit(filepath.Join(s.objects, s.newer), 40)) },
			map[string]string{"verify": "it was replaced or damaged; take another", "get": "it was replaced or damaged", "drill": "it was replaced or damaged"}},
		"the bundle is of another cluster": {func(t *testing.T, s *site) { s.otherBundle(t) },
			map[string]string{"list": "etcd-index.json: its seal is wrong: someone without this cluster's secrets bundle wrote it, or it was sealed with another bundle",
				"get": "which snapshot is the newest of this cluster can't be told", "get NEWER --decrypt": "it was not sealed with this cluster's secrets bundle",
				"verify NEWER": "it was not sealed with this cluster's secrets bundle", "drill NEWER": "it was not sealed with this cluster's secrets bundle"}},
		"the index was changed": {func(t *testing.T, s *site) {
			require.NoError(t, flipBit(filepath.Join(s.objects, "etcd-index.json"), 400))
		},
			map[string]string{"list": "etcd-index.json: its seal is wrong", "verify": "can't be told: the-index-was-changed/etcd-index.json: its seal is wrong"}},
		"the index is gone": {func(t *testing.T, s *site) {
			require.NoError(t, os.Remove(filepath.Join(s.objects, "etcd-index.json")))
		},
			map[string]string{"list": "the index etcd-index.json is gone", "verify": "holds 2 snapshots, and none that its index lists"}},
		"an object of which nobody knows whose it is": {func(t *testing.T, s *site) {
			require.NoError(t, os.WriteFile(filepath.Join(s.objects, "etcd-20261129T110001Z.snapshot.age"), []byte("hello"), 0o600))
		}, map[string]string{"list": "1 snapshots are not this cluster's, first etcd-20261129T110001Z", "get etcd-20261129T110001Z.snapshot.age --decrypt": "it is no sealed snapshot"}},
		"it was sealed with a heavier work factor": {func(t *testing.T, s *site) { s.heavier(t) },
			map[string]string{"get etcd-20261129T110002Z.snapshot.age --decrypt": "it asks for more work than", "verify etcd-20261129T110002Z.snapshot.age": "it asks for more work than",
				"drill etcd-20261129T110002Z.snapshot.age": "it asks for more work than"}},
		"its header never ends": {func(t *testing.T, s *site) {
			text := "age-encryption.org/v1\n-> scrypt AAAAAAAAAAAAAAAAAAAAAA 10\n" + strings.Repeat("-> X25519 "+strings.Repeat("A", 43)+"\n\n", 1_000_000)
			require.NoError(t, os.WriteFile(filepath.Join(s.objects, "etcd-20261129T110003Z.snapshot.age"), []byte(text), 0o600))
		}, map[string]string{"verify etcd-20261129T110003Z.snapshot.age": "it is no sealed snapshot"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, server, strings.ReplaceAll(name, " ", "-")).fill(statefile.S3Config{})
			c.change(t, s)
			for command, want := range c.want {
				s.refused(exitNo, want, strings.Fields(strings.ReplaceAll(command, "NEWER", s.newer))...)
			}
		})
	}
}

// swap puts the older snapshot in the newer one's place, and the other way round.
func (s *site) swap(t *testing.T) {
	older, newer := filepath.Join(s.objects, s.older), filepath.Join(s.objects, s.newer)
	one, err := os.ReadFile(older)
	require.NoError(t, err)
	two, err := os.ReadFile(newer)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(older, two, 0o600))
	require.NoError(t, os.WriteFile(newer, one, 0o600))
}

func (s *site) otherBundle(t *testing.T) {
	text, err := foreignBundle()
	require.NoError(t, err)
	s.write("bundle.yaml", string(text))
}

func (s *site) heavier(t *testing.T) {
	recipient, err := age.NewScryptRecipient(s.passphrase(s.bundle))
	require.NoError(t, err)
	recipient.SetWorkFactor(14)
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, recipient)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(filepath.Join(s.objects, "etcd-20261129T110002Z.snapshot.age"), sealed.Bytes(), 0o600))
}

func TestWithoutAUsableIndexANamedSnapshotIsUsedWithAWarning(t *testing.T) {
	s := newSite(t, startServer(t, s3gateway.Options{}), "prod").fill(statefile.S3Config{})
	require.NoError(t, flipBit(filepath.Join(s.objects, "etcd-index.json"), 400))
	code, stdout, stderr := s.run("get", s.newer, "--decrypt")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stderr, "warning: "+s.newer+" is not in the index (prod/etcd-index.json: its seal is wrong")
	require.Contains(t, stdout, "it is not in the index")
	code, stdout, _ = s.run("drill", s.newer)
	require.Equal(t, exitOK, code)
	require.Contains(t, stdout, "the index was not changed")
	code, stdout, _ = s.run("list", "-o", "json")
	require.Equal(t, exitNo, code)
	require.Contains(t, stdout, `"state": "unlisted"`)
}

// Any bit of an object: each command says that the object isn't the one that was stored; opened as a file it says what it sees.
func TestAFlippedBitAnywhereIsRefused(t *testing.T) {
	s := newSite(t, startServer(t, s3gateway.Options{}), "prod").fill(statefile.S3Config{})
	path := filepath.Join(s.objects, s.newer)
	info, err := os.Stat(path)
	require.NoError(t, err)
	offsets := []int64{info.Size() - 1, info.Size() - 16, info.Size() / 2, 64 << 10, 1000}
	for offset := int64(0); offset < 200; offset += 7 {
		offsets = append(offsets, offset)
	}
	for _, offset := range offsets {
		require.NoError(t, flipBit(path, offset))
		s.refused(exitNo, "so it was replaced or damaged", "verify")
		code, _, stderr := s.run("verify", "--file", path)
		require.Equal(t, exitNo, code, "bit of byte %d: %s", offset, stderr)
		require.NoError(t, flipBit(path, offset))
	}
	code, _, _ := s.run("verify")
	require.Equal(t, exitOK, code)
}

// middlebox stands between the command and the server, and answers some requests itself.
func (s *site) middlebox(answer func(w http.ResponseWriter, r *http.Request) bool) {
	target, err := url.Parse(s.server.Endpoint)
	require.NoError(s.t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answer(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	s.t.Cleanup(box.Close)
	s.endpoint = box.URL
}

// say answers as AWS does.
func say(w http.ResponseWriter, status int, code, more string) bool {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>said with %s %s</Message>%s<RequestId>1</RequestId></Error>`,
		code, canarySecret, url.QueryEscape(canarySecret), more)
	return true
}

func TestWhatTheStoreRefusesIsSaidWithTheWayOut(t *testing.T) {
	shared := newSite(t, startServer(t, s3gateway.Options{}), "prod").fill(statefile.S3Config{})
	always := func(status int, code, more string) func(*site) {
		return func(s *site) {
			s.middlebox(func(w http.ResponseWriter, _ *http.Request) bool { return say(w, status, code, more) })
		}
	}
	for _, c := range []struct {
		name    string
		arrange func(s *site)
		want    string
		args    []string
	}{
		{"the clocks are apart", always(403, "RequestTimeTooSkewed", ""), "this machine's clock and the store's are too far apart", nil},
		{"the keys are unknown", always(403, "InvalidAccessKeyId", ""), "it does not know these keys (InvalidAccessKeyId)", nil},
		{"the secret is another", func(s *site) { s.keys(canaryAccess, "another-"+canarySecret, "") }, "it does not know these keys (SignatureDoesNotMatch)", nil},
		{"the account is another", func(s *site) { s.keys("SOMEBODYELSE0001", canarySecret, "") }, "it does not know these keys", nil},
		{"the token is over", always(400, "ExpiredToken", ""), "the session token has expired or is wrong (ExpiredToken)", nil},
		{"the token is wrong", always(400, "InvalidToken", ""), "the session token has expired or is wrong (InvalidToken)", nil},
		{"there is no right to it", always(403, "AccessDenied", ""), "listing s3://backups/prod/etcd-: the store does not permit it (it answered 403 AccessDenied); these keys need the right s3:ListBucket", nil},
		{"there is no right to read", func(s *site) {
			s.middlebox(func(w http.ResponseWriter, r *http.Request) bool {
				return strings.HasSuffix(r.URL.Path, ".age") && say(w, 403, "AccessDenied", "")
			})
		}, "s3://backups/prod/etcd-20261129T110000Z.snapshot.age: the store does not permit it (it answered 403 AccessDenied); these keys need the right s3:GetObject", []string{"verify"}},
		{"there is no right to write", func(s *site) {
			s.middlebox(func(w http.ResponseWriter, r *http.Request) bool {
				return r.Method == http.MethodPut && say(w, 403, "AccessDenied", "")
			})
		}, "passed, and that could not be written into the index: writing s3://backups/prod/etcd-index.json: the store does not permit it (it answered 403 AccessDenied); these keys need the right s3:PutObject", []string{"drill"}},
		{"the region is another", always(400, "AuthorizationHeaderMalformed", "<Region>eu-central-2</Region>"), "the bucket is in the region eu-central-2; give that region", nil},
		{"the region is another, by redirect", always(301, "PermanentRedirect", "<Endpoint>backups.s3.eu-central-2.amazonaws.com</Endpoint>"),
			"the bucket is in another region, or behind another endpoint", nil},
		{"the bucket is gone", func(*site) {}, "there is no such bucket; make it, or mend the bucket's name", []string{"list", "--from", "s3://elsewhere/prod"}},
		{"it is overloaded", always(503, "SlowDown", ""), "the store can't be reached: it answered 503 SlowDown", nil},
		{"nobody listens", func(s *site) { s.endpoint = "http://" + closedPort(s.t) }, "connection refused", nil},
		{"it is no S3 server", func(s *site) {
			s.middlebox(func(w http.ResponseWriter, _ *http.Request) bool { http.Error(w, "it works!", 404); return true })
		}, "listing s3://backups/prod/etcd-", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *shared
			s.t, s.dir = t, t.TempDir()
			s.write("bundle.yaml", string(s.bundle))
			s.keys(canaryAccess, canarySecret, "")
			if c.args == nil {
				c.args = []string{"list"}
			}
			c.arrange(&s)
			s.refused(exitCannot, c.want, c.args...)
		})
	}
}

func closedPort(t *testing.T) string {
	port, err := keptport.Keep()
	require.NoError(t, err)
	t.Cleanup(func() { runtime.KeepAlive(port) })
	return port.Address
}

func TestThePrivateAuthorityOfAServerIsGivenOrAskedFor(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a private authority"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certificate, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(certificate, authority, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600))
	s := newSite(t, startServer(t, s3gateway.Options{CertFile: certificate, KeyFile: keyFile}), "prod").fill(statefile.S3Config{CA: authority})
	s.refused(exitCannot, "its certificate is not trusted here; give its authority", "list")
	code, _, stderr := s.run("list", "--s3-ca", certificate)
	require.Equal(t, exitOK, code, stderr)
}

func TestCtrlCLeavesNothing(t *testing.T) {
	s := newSite(t, startServer(t, s3gateway.Options{}), "prod").fill(statefile.S3Config{})
	for _, command := range []string{"get", "drill", "verify"} {
		ctx, cancel := context.WithCancel(t.Context())
		s.middlebox(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, ".age") {
				cancel() // while the body is being read
			}
			return false
		})
		out := t.TempDir()
		var a, b bytes.Buffer
		app := &app{terminal: &terminal{in: strings.NewReader(""), out: &a, err: &b}, getenv: func(string) string { return "" }, clock: clocktesting.NewFakeClock(time.Now())}
		line := []string{"backup", command, "--bundle", filepath.Join(s.dir, "bundle.yaml"), "--from", "s3://backups/prod", "--s3-endpoint", s.endpoint,
			"--s3-credentials", filepath.Join(s.dir, "s3.yaml")}
		switch command {
		case "get":
			line = append(line, "--decrypt", "--out", filepath.Join(out, "got"))
		case "drill":
			line = append(line, "--spool", out)
		}
		require.Equal(t, exitCannot, app.execute(ctx, line), b.String())
		require.Contains(t, b.String(), "context canceled")
		left, err := os.ReadDir(out)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}
