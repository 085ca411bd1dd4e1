package statefile_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/keptport"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
)

// middlebox stands between a client and the S3 server and spoils what it is told to.
type middlebox struct {
	*httptest.Server

	mu       sync.Mutex
	requests map[string]int
	spoil    func(method string, n int) spoiled
}

type spoiled int

const (
	pass spoiled = iota
	refuse503
	effectThen503
	effectThenHangUp
	hangUp
	cutShort
	refuse429
)

func startMiddlebox(t *testing.T, server *s3gateway.Child) *middlebox {
	t.Helper()
	target, err := url.Parse(server.Endpoint)
	require.NoError(t, err)
	box := &middlebox{requests: map[string]int{}}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}}
	box.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		box.mu.Lock()
		box.requests[r.Method]++
		what := pass
		if box.spoil != nil {
			what = box.spoil(r.Method, box.requests[r.Method])
		}
		box.mu.Unlock()
		recorder := httptest.NewRecorder()
		switch what {
		case refuse503, refuse429, hangUp:
			_, _ = io.Copy(io.Discard, r.Body)
		default:
			proxy.ServeHTTP(recorder, r)
		}
		switch what {
		case refuse503, effectThen503:
			w.WriteHeader(http.StatusServiceUnavailable)
		case refuse429:
			w.WriteHeader(http.StatusTooManyRequests)
		case hangUp, effectThenHangUp:
			panic(http.ErrAbortHandler)
		default:
			for name, values := range recorder.Header() {
				w.Header()[name] = values
			}
			body := recorder.Body.Bytes()
			if r.Method != http.MethodHead {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			w.WriteHeader(recorder.Code)
			if what == cutShort {
				_, _ = w.Write(body[:len(body)/2])
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(box.Close)
	return box
}

// expect starts counting again, and spoils as told.
func (b *middlebox) expect(spoil func(method string, n int) spoiled) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests, b.spoil = map[string]int{}, spoil
}

func (b *middlebox) count(method string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests[method]
}

func through(box *middlebox) func(*statefile.S3Config) {
	return func(config *statefile.S3Config) { config.Endpoint = box.URL }
}

func TestAWriteIsSentOnceWhateverBecomesOfIt(t *testing.T) {
	server := startS3(t)
	box := startMiddlebox(t, server)
	for _, test := range []struct {
		name    string
		spoil   spoiled
		want    error
		not     error
		written bool
	}{
		{"it is refused with 503", refuse503, statefile.ErrUnacknowledged, nil, false},
		{"it is done and answered with 503", effectThen503, statefile.ErrUnacknowledged, nil, true},
		{"it is done and the connection breaks", effectThenHangUp, statefile.ErrUnacknowledged, nil, true},
		{"the connection breaks", hangUp, statefile.ErrUnacknowledged, nil, false},
		{"there are too many requests", refuse429, statefile.ErrUnavailable, statefile.ErrUnacknowledged, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := openS3(t, server, through(box))
			box.expect(nil)
			etag, err := store.Put(t.Context(), "a.json", []byte("before"), statefile.IfAbsent())
			require.NoError(t, err)
			box.expect(func(method string, _ int) spoiled {
				if method == http.MethodPut {
					return test.spoil
				}
				return pass
			})
			_, err = store.Put(t.Context(), "a.json", []byte("after"), statefile.IfMatch(etag))
			require.ErrorIs(t, err, test.want)
			if test.not != nil {
				require.NotErrorIs(t, err, test.not)
			}
			require.Equal(t, 1, box.count(http.MethodPut))
			object, err := store.Get(t.Context(), "a.json", "")
			require.NoError(t, err)
			require.Equal(t, test.written, string(object.Data) == "after")
		})
	}
}

func TestAReadIsRepeatedAndNeverShort(t *testing.T) {
	server := startS3(t)
	box := startMiddlebox(t, server)
	store := openS3(t, server, through(box))
	content := strings.Repeat("0123456789", 10_000)
	_, err := store.Put(t.Context(), "a.json", []byte(content), statefile.If{})
	require.NoError(t, err)
	for name, spoil := range map[string]spoiled{"503": refuse503, "a broken connection": hangUp, "a short answer": cutShort} {
		t.Run("after "+name, func(t *testing.T) {
			box.expect(func(_ string, n int) spoiled {
				if n == 1 {
					return spoil
				}
				return pass
			})
			object, err := store.Get(t.Context(), "a.json", "")
			require.NoError(t, err)
			require.Equal(t, content, string(object.Data))
			require.Equal(t, 2, box.count(http.MethodGet))

			box.expect(func(_ string, n int) spoiled {
				if n == 1 {
					return spoil
				}
				return pass
			})
			require.NoError(t, store.List(t.Context(), "", "", func(statefile.ObjectInfo) error { return nil }))
		})
		t.Run("but not for ever after "+name, func(t *testing.T) {
			box.expect(func(string, int) spoiled { return spoil })
			_, err := store.Get(t.Context(), "a.json", "")
			require.ErrorIs(t, err, statefile.ErrUnavailable)
			require.LessOrEqual(t, box.count(http.MethodGet), 6, "three tries, and what the transport repeats by itself on a connection that was idle")
		})
	}
}

func TestAReadOfWhatIsKnownBringsNoContent(t *testing.T) {
	server := startS3(t)
	box := startMiddlebox(t, server)
	store := openS3(t, server, through(box))
	etag, err := store.Put(t.Context(), "a.json", []byte("x"), statefile.If{})
	require.NoError(t, err)
	box.expect(nil)
	_, err = store.Get(t.Context(), "a.json", etag)
	require.ErrorIs(t, err, statefile.ErrUnchanged)
	require.Equal(t, 1, box.count(http.MethodGet))
}

func TestAPassInWhichNothingChangesWritesNothingToABucket(t *testing.T) {
	server := startS3(t)
	box := startMiddlebox(t, server)
	cluster := create(t, openS3(t, server, through(box)), "first")
	box.expect(nil)
	for range 5 {
		load(t, cluster)
		require.NoError(t, cluster.Swap(t.Context(), func(*statefile.State) error { return nil }))
	}
	require.Equal(t, 5, box.count(http.MethodGet))
	require.Zero(t, box.count(http.MethodPut)+box.count(http.MethodPost)+box.count(http.MethodDelete))
}

func TestEveryFailureOfABucketIsOneSentenceWithoutKeys(t *testing.T) {
	server := startS3(t)
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, "<Error><Code>Odd</Code><Message>you sent %s and %s and %s\x1b[2J</Message></Error>",
			r.Header.Get("Authorization"), r.Header.Get("X-Amz-Security-Token"), canarySecret)
	}))
	t.Cleanup(echo.Close)
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	t.Cleanup(hangs.Close)
	closed, err := keptport.Keep()
	require.NoError(t, err)

	for _, test := range []struct {
		name   string
		change func(*statefile.S3Config)
		read   error
		write  error
		says   string
	}{
		{"the secret is wrong", func(c *statefile.S3Config) { c.Credentials.SecretAccessKey = "canary/secret+key=0002x" },
			statefile.ErrPermission, statefile.ErrPermission, "does not know these keys"},
		{"the key is unknown", func(c *statefile.S3Config) { c.Credentials.AccessKeyID = canaryAccess + "X" },
			statefile.ErrPermission, statefile.ErrPermission, "does not know these keys"},
		{"there is no bucket", func(c *statefile.S3Config) { c.Bucket = "nowhere" }, nil, nil, "no such bucket"},
		{"nobody listens", func(c *statefile.S3Config) { c.Endpoint = "http://" + closed.Address },
			statefile.ErrUnavailable, statefile.ErrUnavailable, "refused"},
		{"there is no such host", func(c *statefile.S3Config) { c.Endpoint = "http://s3.invalid" },
			statefile.ErrUnavailable, statefile.ErrUnavailable, "s3.invalid"},
		{"the server says what it was sent", func(c *statefile.S3Config) {
			c.Endpoint, c.Credentials.SessionToken = echo.URL, "canary/session+token=="
		}, nil, nil, "[redacted]"},
		{"the server hangs", func(c *statefile.S3Config) { c.Endpoint, c.Timeout = hangs.URL, time.Second },
			statefile.ErrUnavailable, statefile.ErrUnacknowledged, "no answer in time: one call may take 1s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := openS3(t, server, test.change)
			check := func(err, want error) {
				t.Helper()
				require.Error(t, err)
				if want != nil {
					require.ErrorIs(t, err, want)
				}
				require.ErrorContains(t, err, test.says)
				for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", store)} {
					requireNoCanary(t, text)
					require.NotContains(t, text, "canary/session")
				}
				require.NotContains(t, err.Error(), "\x1b")
				require.NotContains(t, err.Error(), "\n")
			}
			_, err := store.Get(t.Context(), "a.json", "")
			check(err, test.read)
			_, err = store.Put(t.Context(), "a.json", []byte("x"), statefile.IfAbsent())
			check(err, test.write)
			if test.write != statefile.ErrUnacknowledged {
				require.NotErrorIs(t, err, statefile.ErrUnacknowledged)
			}
			check(store.List(t.Context(), "", "", func(statefile.ObjectInfo) error { return nil }), test.read)
			_, err = statefile.Probe(t.Context(), store)
			check(err, nil)
		})
	}
}

// writeCert makes a certificate for 127.0.0.1 that is its own authority.
func writeCert(t *testing.T) (certFile, keyFile string, ca []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "s3"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(certFile, ca, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	return certFile, keyFile, ca
}

func TestABucketWithAnAuthorityOfItsOwnIsTrustedWhenThatIsGiven(t *testing.T) {
	certFile, keyFile, ca := writeCert(t)
	server := startS3(t, func(opts *s3gateway.Options) { opts.CertFile, opts.KeyFile = certFile, keyFile })
	require.True(t, strings.HasPrefix(server.Endpoint, "https://"))

	_, err := statefile.Probe(t.Context(), openS3(t, server))
	require.ErrorIs(t, err, statefile.ErrUnavailable)
	require.ErrorContains(t, err, "ca.crt")
	result, err := statefile.Probe(t.Context(), openS3(t, server, func(config *statefile.S3Config) { config.CA = ca }))
	require.NoError(t, err)
	require.True(t, result.Conditional)

	_, err = statefile.OpenS3(t.Context(), statefile.S3Config{
		Bucket: "state", Endpoint: server.Endpoint, CA: []byte("x"), Credentials: &statefile.S3Credentials{AccessKeyID: "a", SecretAccessKey: "b"},
	})
	require.ErrorContains(t, err, "PEM")
}

func clearAWS(t *testing.T) {
	t.Helper()
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
}

func TestKeysComeFromTheEnvironmentWhenNoneAreGiven(t *testing.T) {
	server := startS3(t)
	clearAWS(t)
	fromEnvironment := func(config *statefile.S3Config) { config.Credentials, config.Endpoint = nil, "" }
	t.Setenv("AWS_ENDPOINT_URL", server.Endpoint)
	_, err := statefile.OpenS3(t.Context(), statefile.S3Config{Bucket: "state"})
	require.ErrorContains(t, err, "AWS_ACCESS_KEY_ID")
	t.Setenv("AWS_ACCESS_KEY_ID", canaryAccess)
	_, err = statefile.OpenS3(t.Context(), statefile.S3Config{Bucket: "state"})
	require.ErrorContains(t, err, "only one")
	requireNoCanary(t, err.Error())
	t.Setenv("AWS_SECRET_ACCESS_KEY", canarySecret)
	_, err = statefile.Probe(t.Context(), openS3(t, server, fromEnvironment))
	require.NoError(t, err)

	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	shared := filepath.Join(t.TempDir(), "credentials")
	require.NoError(t, os.WriteFile(shared, fmt.Appendf(nil, "[fleet]\naws_access_key_id = %s\naws_secret_access_key = %s\n", canaryAccess, canarySecret), 0o600))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", shared)
	t.Setenv("AWS_PROFILE", "fleet")
	_, err = statefile.Probe(t.Context(), openS3(t, server, fromEnvironment))
	require.NoError(t, err)
}

func TestKeysComeFromTheInstanceWhenTheEnvironmentNamesIt(t *testing.T) {
	server := startS3(t)
	clearAWS(t)
	instance := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"AccessKeyId":%q,"SecretAccessKey":%q,"Token":"","Expiration":%q,"Code":"Success"}`,
			canaryAccess, canarySecret, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(instance.Close)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", instance.URL)
	store := openS3(t, server, func(config *statefile.S3Config) { config.Credentials = nil })
	_, err := statefile.Probe(t.Context(), store)
	require.NoError(t, err)

	instance.Close()
	store = openS3(t, server, func(config *statefile.S3Config) { config.Credentials = nil })
	_, err = store.Put(t.Context(), "a.json", []byte("x"), statefile.If{})
	require.ErrorContains(t, err, "the instance gave none; set AWS_ACCESS_KEY_ID")
	require.NotErrorIs(t, err, statefile.ErrUnacknowledged)
}

func TestCredentialsFilesAreReadStrictlyAndNeverShown(t *testing.T) {
	credentials, err := statefile.ParseS3Credentials([]byte("accessKeyID: " + canaryAccess + "\nsecretAccessKey: " + canarySecret +
		"\nsessionToken: canary/secret-session\nca.crt: |\n  PEM\n"))
	require.NoError(t, err)
	require.Equal(t, canarySecret, credentials.SecretAccessKey)
	require.Equal(t, "canary/secret-session", credentials.SessionToken)
	require.Equal(t, "PEM\n", string(credentials.CA))
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		requireNoCanary(t, fmt.Sprintf(format, credentials))
		requireNoCanary(t, fmt.Sprintf(format, *credentials))
	}
	for name, data := range map[string]string{
		"a misspelt field": "accessKeyId: " + canaryAccess + "\nsecretAccessKey: " + canarySecret + "\n",
		"no secret":        "accessKeyID: " + canaryAccess + "\n",
		"no YAML":          canarySecret + ": [",
		"a plain text":     canarySecret,
		"nothing":          "",
	} {
		_, err := statefile.ParseS3Credentials([]byte(data))
		require.Error(t, err, name)
		requireNoCanary(t, err.Error())
	}
}

func TestWhatIsWrongWithABucketsAddressIsSaid(t *testing.T) {
	good := statefile.S3Config{
		Bucket: "state", Endpoint: "https://s3.example.com", Credentials: &statefile.S3Credentials{AccessKeyID: "a", SecretAccessKey: "b"},
	}
	for name, change := range map[string]func(*statefile.S3Config){
		"bucket":                func(c *statefile.S3Config) { c.Bucket = "" },
		"URL with a host":       func(c *statefile.S3Config) { c.Endpoint = "s3.example.com" },
		"host and nothing more": func(c *statefile.S3Config) { c.Endpoint = "https://user:pw@s3.example.com" },
		"nothing more":          func(c *statefile.S3Config) { c.Endpoint = "https://s3.example.com/bucket" },
		"must be a URL":         func(c *statefile.S3Config) { c.Endpoint = "ftp://s3.example.com" },
		"addressing":            func(c *statefile.S3Config) { c.Addressing = "virtual" },
		"prefix":                func(c *statefile.S3Config) { c.Prefix = "a//b" },
	} {
		config := good
		change(&config)
		_, err := statefile.OpenS3(t.Context(), config)
		require.ErrorContains(t, err, name)
		require.NotContains(t, err.Error(), "pw")
	}
}

func TestA404ThatIsNotS3sOwnDoesNotMeanThatTheObjectIsGone(t *testing.T) {
	for name, body := range map[string]string{"no body": "", "a page": "<html>not here</html>", "another error": "<Error><Code>NoSuchThing</Code></Error>"} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, body)
			}))
			t.Cleanup(server.Close)
			store, err := statefile.OpenS3(t.Context(), statefile.S3Config{
				Endpoint: server.URL, Bucket: "state", Credentials: &statefile.S3Credentials{AccessKeyID: "a", SecretAccessKey: "b"},
			})
			require.NoError(t, err)
			_, err = store.Get(t.Context(), "a.json", "")
			require.Error(t, err)
			require.NotErrorIs(t, err, statefile.ErrNotFound)
			require.ErrorContains(t, err, "404")
		})
	}
}

func TestHostAddressingPutsTheBucketIntoTheHost(t *testing.T) {
	hosts := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hosts <- r.Host + r.URL.Path
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
	}))
	t.Cleanup(server.Close)
	endpoint := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	host := strings.TrimPrefix(endpoint, "http://")
	for addressing, want := range map[string]string{"host": "state." + host + "/p/a.json", "path": host + "/state/p/a.json", "auto": host + "/state/p/a.json"} {
		store, err := statefile.OpenS3(t.Context(), statefile.S3Config{
			Endpoint: endpoint, Bucket: "state", Prefix: "/p/", Addressing: addressing,
			Credentials: &statefile.S3Credentials{AccessKeyID: "test-access", SecretAccessKey: "test-secret"},
		})
		require.NoError(t, err)
		_, err = store.Get(t.Context(), "a.json", "")
		if addressing == "host" && err != nil && strings.Contains(err.Error(), "lookup state.localhost") {
			continue // this machine's resolver doesn't know names under localhost
		}
		require.ErrorIs(t, err, statefile.ErrNotFound)
		require.Equal(t, want, <-hosts)
	}
}
