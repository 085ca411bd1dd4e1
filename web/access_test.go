package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/internal/scrub"
)

func TestWhatIsReachableFromElsewhereMustBeProtectedOrMeant(t *testing.T) {
	authority := newAuthority(t)
	cert, key := authority.issue(t, "ichor", x509.ExtKeyUsageServerAuth)
	tokens := writeFile(t, token+"\n")
	for name, c := range map[string]struct {
		config Config
		want   string // in the error; empty: it listens
	}{
		"loopback needs nothing":                    {Config{Address: "127.0.0.1:0"}, ""},
		"another loopback address needs nothing":    {Config{Address: "127.0.66.1:0"}, ""},
		"localhost needs nothing":                   {Config{Address: "localhost:0"}, ""},
		"every address needs protection":            {Config{Address: "0.0.0.0:0"}, "give --token-file or --client-ca, or --listen-public"},
		"no host is every address":                  {Config{Address: ":0"}, "give --token-file or --client-ca, or --listen-public"},
		"every address, and that is meant":          {Config{Address: "0.0.0.0:0", Public: true}, ""},
		"every address, with a token":               {Config{Address: "0.0.0.0:0", TokenFile: tokens}, ""},
		"every address, with client certificates":   {Config{Address: "0.0.0.0:0", CertFile: cert, KeyFile: key, ClientCAFile: authority.file}, ""},
		"client certificates without TLS":           {Config{Address: "127.0.0.1:0", ClientCAFile: authority.file}, "--client-ca needs TLS"},
		"a certificate without its key":             {Config{Address: "127.0.0.1:0", CertFile: cert}, "belong together"},
		"a key that is another's":                   {Config{Address: "127.0.0.1:0", CertFile: cert, KeyFile: authority.key(t)}, "--tls-cert and --tls-key"},
		"an authority that is none":                 {Config{Address: "127.0.0.1:0", CertFile: cert, KeyFile: key, ClientCAFile: tokens}, "holds no certificate"},
		"a token file that isn't there":             {Config{Address: "127.0.0.1:0", TokenFile: "/nowhere/token"}, "--token-file"},
		"a token file without a token":              {Config{Address: "127.0.0.1:0", TokenFile: writeFile(t, "\n \n")}, "is empty"},
		"a token that could be guessed":             {Config{Address: "127.0.0.1:0", TokenFile: writeFile(t, "letmein")}, "secret of 7 characters, which could be guessed"},
		"a webhook secret that could be guessed":    {Config{Address: "127.0.0.1:0", HookSecretFile: writeFile(t, "letmein")}, "--hook-secret-file"},
		"a file that is no token file":              {Config{Address: "127.0.0.1:0", TokenFile: writeFile(t, strings.Repeat("x", 70<<10))}, "larger than 64 KiB"},
		"an address without a port":                 {Config{Address: "127.0.0.1"}, "give host:port"},
		"an address that is not this machine's own": {Config{Address: "192.0.2.1:0", Public: true}, "--listen 192.0.2.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Clock, c.config.Log, c.config.Scrubber = testclock.NewFakeClock(noon), slog.New(slog.DiscardHandler), scrub.New()
			server, err := Listen(c.config)
			if c.want == "" {
				require.NoError(t, err)
				server.Close()
				return
			}
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "letmein", "a secret that is refused is no less one")
		})
	}
}

func TestOnlyTheServersOwnNamesAreAnswered(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Hosts = []string{"Ichor.Example.com", "10.9.8.7"} })
	for name, c := range map[string]struct {
		host string
		ok   bool
	}{
		"localhost":                             {"localhost", true},
		"localhost with any port":               {"localhost:9000", true},
		"localhost in capitals, with a dot":     {"LOCALHOST.:80", true},
		"the address":                           {"127.0.0.1:4246", true},
		"another loopback address":              {"127.9.9.9", true},
		"loopback in IPv6":                      {"[::1]:4246", true},
		"loopback in IPv6, mapped":              {"[::ffff:127.0.0.1]", true},
		"a name that was given":                 {"ichor.example.com:443", true},
		"an address that was given":             {"10.9.8.7", true},
		"a name that points here":               {"evil.example", false},
		"a name that ends with one's own":       {"evil-ichor.example.com", false},
		"a name that begins with one's own":     {"ichor.example.com.evil.example", false},
		"a name that begins with localhost":     {"localhost.evil.example", false},
		"a name in front of an at":              {"localhost@evil.example", false},
		"a name that looks like an address":     {"127.0.0.1.nip.io", false},
		"an address of another machine":         {"10.0.0.5", false},
		"an address that is written in decimal": {"2130706433", false},
		"no name":                               {"", false},
		"only a port":                           {":4246", false},
		"markup":                                {"<script>alert(1)</script>", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range append([]string{pathLive, pathReady}, everything...) {
				answer := b.ask(http.MethodGet, path, host(c.host))
				require.Equal(t, !c.ok, answer.Code == http.StatusMisdirectedRequest, "%s: %d", path, answer.Code)
				if !c.ok {
					require.NotEqual(t, "text/html; charset=utf-8", answer.Header().Get("Content-Type"))
					require.Contains(t, answer.Body.String(), "--host")
				}
			}
			answer := b.ask(http.MethodPost, pathHook, host(c.host))
			require.Equal(t, !c.ok, answer.Code == http.StatusMisdirectedRequest)
		})
	}
}

func TestOnAllAddressesTheOneThatWasReachedIsItsName(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Address, c.Public = "0.0.0.0:0", true })
	b.serve()
	_, port, _ := strings.Cut(b.listener.Addr().String(), "]:")
	if port == "" {
		_, port, _ = strings.Cut(b.listener.Addr().String(), ":")
	}
	for host, code := range map[string]int{"127.0.66.2": http.StatusOK, "10.0.0.5": http.StatusMisdirectedRequest} {
		r, err := http.NewRequest(http.MethodGet, "http://127.0.66.2:"+port+"/healthz", nil)
		require.NoError(t, err)
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, code, answer.StatusCode, host)
	}
}

func TestOnlyReadingIsAnswered(t *testing.T) {
	b := newBench(t, func(c *Config) { c.HookSecretFile = writeFile(t, secret) })
	for _, path := range append([]string{pathLive, pathReady}, everything...) {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get"} {
			answer := b.ask(method, path, nil)
			require.Equal(t, http.StatusMethodNotAllowed, answer.Code, "%s %s", method, path)
			require.Equal(t, "GET, HEAD", answer.Header().Get("Allow"))
		}
		require.Equal(t, b.get(path).Code, b.ask(http.MethodHead, path, nil).Code)
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE"} {
		answer := b.ask(method, pathHook, nil)
		require.Equal(t, http.StatusMethodNotAllowed, answer.Code, method)
		require.Equal(t, "POST", answer.Header().Get("Allow"))
	}
	require.Zero(t, b.agent.pokes.Load())
}

func TestATokenOpensEverythingAndNothingElseDoes(t *testing.T) {
	b := newBench(t, func(c *Config) { c.TokenFile = writeFile(t, "\n  "+token+"  \nsecond-"+token+"\n") })
	basic := func(user, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	header := func(value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", value) }
	}
	for name, c := range map[string]struct {
		with func(*http.Request)
		ok   bool
	}{
		"the token":                        {bearer(token), true},
		"the second token":                 {bearer("second-" + token), true},
		"the scheme in capitals":           {header("BEARER " + token), true},
		"as the password of any user":      {basic("alice", token), true},
		"as the password of no user":       {basic("", token), true},
		"nothing":                          {nil, false},
		"an empty token":                   {bearer(""), false},
		"another token":                    {bearer("0123456789abcdef-tokem"), false},
		"the token's beginning":            {bearer(token[:len(token)-1]), false},
		"more than the token":              {bearer(token + "x"), false},
		"the token in capitals":            {bearer(strings.ToUpper(token)), false},
		"both tokens in one":               {bearer(token + "\nsecond-" + token), false},
		"the token as the user":            {basic(token, ""), false},
		"the token without a scheme":       {header(token), false},
		"another scheme":                   {header("Token " + token), false},
		"a password that can't be decoded": {header("Basic !!!"), false},
		"the token in the URL":             {func(r *http.Request) { r.URL.RawQuery = "token=" + token }, false},
		"the token in a cookie":            {func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "token", Value: token}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range everything {
				answer := b.ask(http.MethodGet, path, c.with)
				require.Equal(t, !c.ok, answer.Code == http.StatusUnauthorized, "%s: %d", path, answer.Code)
				if !c.ok {
					require.Len(t, answer.Header().Values("WWW-Authenticate"), 2)
					require.NotContains(t, answer.Body.String(), "prod")
				}
			}
		})
	}
	require.Equal(t, http.StatusOK, b.get(pathLive).Code, "the health needs no token")
	require.Equal(t, http.StatusOK, b.get(pathReady).Code, "nor does the readiness")
	require.Equal(t, http.StatusNotFound, b.ask(http.MethodPost, pathHook, nil).Code, "nor does the webhook, which has a secret of its own")
}

func TestATokenIsChangedWithoutARestart(t *testing.T) {
	file := writeFile(t, token)
	b := newBench(t, func(c *Config) { c.TokenFile = file })
	require.Equal(t, http.StatusOK, b.ask(http.MethodGet, "/", bearer(token)).Code)

	require.NoError(t, os.WriteFile(file, []byte("another-"+token), 0o600))
	b.clock.Step(fileAge)
	require.Equal(t, http.StatusUnauthorized, b.ask(http.MethodGet, "/", bearer(token)).Code)
	require.Equal(t, http.StatusOK, b.ask(http.MethodGet, "/", bearer("another-"+token)).Code)

	require.NoError(t, os.Remove(file))
	b.clock.Step(fileAge)
	require.Equal(t, http.StatusUnauthorized, b.ask(http.MethodGet, "/", bearer("another-"+token)).Code, "a file that is gone opens nothing")
	require.Contains(t, b.log.String(), "nobody is let in")
}

// A renewed certificate that can't be read is no reason to show none. It is said, once, because the old one will expire.
func TestACertificateThatCannotBeReadAnewIsSaid(t *testing.T) {
	authority := newAuthority(t)
	cert, key := authority.issue(t, "localhost", x509.ExtKeyUsageServerAuth)
	b := newBench(t, func(c *Config) { c.CertFile, c.KeyFile = cert, key })
	pair := &keyPair{cert: cert, key: key, clock: b.clock, log: b.config.Log}
	first, err := pair.get(nil)
	require.NoError(t, err)
	good, err := os.ReadFile(cert)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cert, []byte("half a certif"), 0o600))
	for range 3 {
		b.clock.Step(fileAge)
		shown, err := pair.get(nil)
		require.NoError(t, err)
		require.Same(t, first, shown)
	}
	require.Equal(t, 1, strings.Count(b.log.String(), "the one before is shown"))
	require.NoError(t, os.WriteFile(cert, good, 0o600))
	b.clock.Step(fileAge)
	shown, err := pair.get(nil)
	require.NoError(t, err)
	require.NotSame(t, first, shown)
}

func TestReadinessTellsStrangersNoNames(t *testing.T) {
	b := newBench(t, func(c *Config) { c.TokenFile = writeFile(t, token) })
	b.agent.report.Git = "https://git.internal.example/fleet.git: connection refused"
	answer := b.get(pathReady)
	require.Equal(t, http.StatusServiceUnavailable, answer.Code)
	require.Equal(t, "git: not ready\n", answer.Body.String())
	require.Contains(t, b.ask(http.MethodGet, pathReady, bearer(token)).Body.String(), "git.internal.example")
}

func TestAClientCertificateOpensEverything(t *testing.T) {
	authority, stranger := newAuthority(t), newAuthority(t)
	cert, key := authority.issue(t, "localhost", x509.ExtKeyUsageServerAuth)
	b := newBench(t, func(c *Config) {
		c.CertFile, c.KeyFile, c.ClientCAFile = cert, key, authority.file
	})
	b.serve()
	require.True(t, strings.HasPrefix(b.URL(), "https://127.0.0.1:"))
	get := func(path string, pair ...string) (int, error) {
		config := &tls.Config{RootCAs: authority.pool(), ServerName: "localhost"}
		if len(pair) > 0 {
			own, err := tls.LoadX509KeyPair(pair[0], pair[1])
			require.NoError(t, err)
			config.Certificates = []tls.Certificate{own}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		answer, err := client.Get(b.URL() + path)
		if err != nil {
			return 0, err
		}
		defer answer.Body.Close()
		require.Equal(t, 1, answer.ProtoMajor)
		return answer.StatusCode, nil
	}
	clientCert, clientKey := authority.issue(t, "alice", x509.ExtKeyUsageClientAuth)
	code, err := get("api/v1/status", clientCert, clientKey)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	code, err = get("api/v1/status")
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, code)
	code, err = get("healthz")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	otherCert, otherKey := stranger.issue(t, "mallory", x509.ExtKeyUsageClientAuth)
	code, err = get("api/v1/status", otherCert, otherKey)
	require.True(t, err != nil || code == http.StatusUnauthorized, "a stranger's certificate opens nothing: %d", code)
	code, err = get("api/v1/status", cert, key)
	require.True(t, err != nil || code == http.StatusUnauthorized, "a server's certificate is no client's: %d", code)
}

func TestEveryAnswerForbidsWhatAPageHereNeverDoes(t *testing.T) {
	b := newBench(t, nil)
	for _, path := range append([]string{pathLive, pathReady, "/clusters/none"}, everything...) {
		header := b.get(path).Header()
		require.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'", path)
		require.NotContains(t, header.Get("Content-Security-Policy"), "unsafe")
		require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
		require.Equal(t, "DENY", header.Get("X-Frame-Options"))
		require.Equal(t, "no-referrer", header.Get("Referrer-Policy"))
		require.Equal(t, "no-store", header.Get("Cache-Control"))
		require.Empty(t, header.Get("Access-Control-Allow-Origin"))
		require.Empty(t, header.Get("Set-Cookie"))
	}
}

func TestAPanicIsAnAnswerAndALineWithoutSecrets(t *testing.T) {
	b := newBench(t, func(c *Config) { c.TokenFile = writeFile(t, token) })
	handler := b.access.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("it broke at " + token) }))
	b.http.Handler = handler
	answer := b.ask(http.MethodGet, "/api/v1/status", bearer(token))
	require.Equal(t, http.StatusInternalServerError, answer.Code)
	var body apiError
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &body))
	require.Equal(t, "the agent failed to answer; its log says more", body.Error)
	require.Contains(t, b.log.String(), "it broke at (hidden)")
	require.NotContains(t, b.log.String(), token)
}

// authority makes certificates for tests.
type authority struct {
	cert    *x509.Certificate
	private *ecdsa.PrivateKey
	file    string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert, private, pemFile(t, "CERTIFICATE", der)}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *authority) key(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(a.private)
	require.NoError(t, err)
	return pemFile(t, "PRIVATE KEY", der)
}

func (a *authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pemFile(t, "CERTIFICATE", der), pemFile(t, "PRIVATE KEY", keyDER)
}

func pemFile(t *testing.T, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.pem")
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}
