package gitsource_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh/knownhosts"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
)

// canary is planted as every secret; no error may hold it, in whatever coding.
const canary = "c4n4ry/+&s3cret"

func requireNoCanary(t testing.TB, text string) {
	t.Helper()
	for _, form := range []string{canary, url.QueryEscape(canary), url.PathEscape(canary), base64.StdEncoding.EncodeToString([]byte(canary)),
		base64.StdEncoding.EncodeToString([]byte("x-access-token:" + canary)), base64.StdEncoding.EncodeToString([]byte("ada:" + canary)), "c4n4ry"} {
		require.NotContains(t, text, form)
	}
}

// fails polls, and requires one clear sentence of that reason: with the way out, without a secret, on one line.
func fails(t testing.TB, s *gitsource.Source, reason gitsource.Reason, contains ...string) {
	t.Helper()
	revision, err := s.Poll(t.Context())
	require.Nil(t, revision)
	requireReason(t, err, reason)
	for _, part := range contains {
		require.ErrorContains(t, err, part)
	}
	requireNoCanary(t, err.Error())
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "\x1b")
	t.Log(err.Error())
}

func TestFailuresOverHTTPAreOneSentenceAndHealByThemselves(t *testing.T) {
	r := gittest.New(t)
	tip := r.Commit(gittest.Files{"f": "1"})

	t.Run("an expired token, and a new one in its file", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("x-access-token", canary)})
		token := writeFile(t, canary)
		s := open(t, gitsource.Config{URL: server.URL, TokenFile: token})
		poll(t, s)
		server.Authorize(gittest.Basic("x-access-token", "renewed"))
		fails(t, s, gitsource.ReasonUnauthorized, "refuses the token or password (401)", "expired")
		require.NoError(t, os.WriteFile(token, []byte("renewed"), 0o600))
		require.Equal(t, tip, poll(t, s).Commit)
	})
	t.Run("a wrong password in the URL", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("ada", "right")})
		s := open(t, gitsource.Config{URL: strings.Replace(server.URL, "http://", "http://ada:"+url.QueryEscape(canary)+"@", 1)})
		fails(t, s, gitsource.ReasonUnauthorized, "(401)", server.URL)
	})
	t.Run("a wrong token as the user of the URL", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("ada", "right")})
		s := open(t, gitsource.Config{URL: strings.Replace(server.URL, "http://", "http://"+url.QueryEscape(canary)+"@", 1)})
		fails(t, s, gitsource.ReasonUnauthorized, "(401)")
	})
	t.Run("no credentials where some are wanted", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Bearer("x")})
		fails(t, open(t, gitsource.Config{URL: server.URL}), gitsource.ReasonUnauthorized, "none are given (401)", "--git-token-file")
	})
	t.Run("a token file that is missing or empty", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		token := filepath.Join(t.TempDir(), "token")
		s := open(t, gitsource.Config{URL: server.URL, TokenFile: token})
		fails(t, s, gitsource.ReasonCredentials, token, "can't be read: no such file or directory")
		require.NoError(t, os.WriteFile(token, []byte(" \n"), 0o600))
		fails(t, s, gitsource.ReasonCredentials, token, "is empty")
		require.NoError(t, os.WriteFile(token, []byte("x"), 0o600))
		poll(t, s)
	})
	t.Run("a server that is away", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		s := open(t, gitsource.Config{URL: server.URL, Token: canary})
		server.Stop()
		fails(t, s, gitsource.ReasonUnreachable, "the connection was refused", server.URL)
		server.Start()
		poll(t, s)
	})
	t.Run("a host that doesn't exist", func(t *testing.T) {
		s := open(t, gitsource.Config{URL: "http://nowhere.invalid/fleet.git", Token: canary})
		fails(t, s, gitsource.ReasonUnreachable, "nowhere.invalid")
	})
	t.Run("a repository that doesn't exist", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		fails(t, open(t, gitsource.Config{URL: server.URL + "x", Token: canary}), gitsource.ReasonNotFound, "there is no repository at")
	})
	t.Run("a branch that doesn't exist, and then does", func(t *testing.T) {
		r := gittest.New(t)
		r.Commit(gittest.Files{"f": "1"})
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		s := open(t, gitsource.Config{URL: server.URL, Branch: "prod"})
		fails(t, s, gitsource.ReasonBranch, "has no branch prod (it has main); push it, or name another by --branch")
		r.Write(gittest.Commit{Branch: "prod", Files: gittest.Files{"f": "2"}})
		require.Equal(t, "2", read(t, poll(t, s), "f"))
	})
	t.Run("an empty repository, and then a first commit", func(t *testing.T) {
		r := gittest.New(t)
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		s := open(t, gitsource.Config{URL: server.URL})
		fails(t, s, gitsource.ReasonEmpty, "is empty; push a first commit")
		r.Commit(gittest.Files{"f": "1"})
		poll(t, s)
	})
	t.Run("a default branch that isn't there", func(t *testing.T) {
		r := gittest.New(t)
		r.Write(gittest.Commit{Branch: "trunk", Files: gittest.Files{"f": "1"}})
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		fails(t, open(t, gitsource.Config{URL: server.URL}), gitsource.ReasonBranch, "names no default branch (it has trunk)")
	})
	t.Run("a certificate that isn't trusted, and then is", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{TLS: true})
		fails(t, open(t, gitsource.Config{URL: server.URL, Token: canary}), gitsource.ReasonUntrusted, "a CA that isn't trusted here", "--git-ca")
		ca := writeFile(t, "nothing")
		s := open(t, gitsource.Config{URL: server.URL, CAFile: ca})
		fails(t, s, gitsource.ReasonCredentials, "holds no PEM certificate")
		right, err := os.ReadFile(server.CAFile)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(ca, right, 0o600))
		poll(t, s)
	})
	t.Run("a certificate for another name", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{TLS: true})
		s := open(t, gitsource.Config{URL: strings.Replace(server.URL, "127.0.0.1", "localhost", 1), CAFile: server.CAFile})
		fails(t, s, gitsource.ReasonUntrusted, "for another name than localhost")
	})
	t.Run("plain http where https is expected", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		s := open(t, gitsource.Config{URL: strings.Replace(server.URL, "http:", "https:", 1), Token: canary})
		fails(t, s, gitsource.ReasonUntrusted, "doesn't speak TLS")
	})
	t.Run("a shallow clone as the server", func(t *testing.T) {
		r := gittest.New(t)
		r.Commit(gittest.Files{"f": "1"})
		r.Commit(gittest.Files{"f": "2"})
		shallow := gittest.New(t)
		shallow.Git("fetch", "--quiet", "--depth=1", r.URL(), "main:main")
		fails(t, open(t, gitsource.Config{URL: shallow.URL()}), gitsource.ReasonServer, "shallow clone")
	})
	t.Run("a repository of SHA-256 names", func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "fleet.git")
		require.NoError(t, exec.Command("git", "init", "--quiet", "--bare", "--object-format=sha256", folder).Run())
		command := exec.Command("git", "-C", folder, "fast-import", "--quiet")
		command.Stdin = strings.NewReader("commit refs/heads/main\ncommitter A <a> 1 +0000\ndata 1\nx\n")
		require.NoError(t, command.Run())
		_ = exec.Command("git", "-C", folder, "symbolic-ref", "HEAD", "refs/heads/main").Run()
		fails(t, open(t, gitsource.Config{URL: "file://" + folder}), gitsource.ReasonNotFound, "SHA-256")
	})
}

func TestServersThatAnswerBadlyAreOneSentence(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": strings.Repeat("some text that does not compress away 0123456789\n", 200)})
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		reason gitsource.Reason
		want   string
	}{
		"a login page": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<!DOCTYPE html><html><body>Sign in, \x1b[31mplease</body></html>")
		}, gitsource.ReasonNotFound, "doesn't speak Git's protocol"},
		"an error of its own": {func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, r.Header.Get("Authorization"), http.StatusBadGateway)
		}, gitsource.ReasonServer, "HTTP 502"},
		"too many requests": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTooManyRequests)
		}, gitsource.ReasonServer, "asked too often"},
		"a forbidden repository": {func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "no "+r.Header.Get("Authorization"), http.StatusForbidden)
		}, gitsource.ReasonUnauthorized, "forbids these credentials to read it (403)"},
		"an endless error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, gitsource.ReasonUnauthorized, "(401)"},
		"an endless list of branches": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "001e# service=git-upload-pack\n0000")
			for i := 0; ; i++ {
				line := fmt.Sprintf("%040x refs/heads/b%09d", i+1, i)
				if i == 0 {
					line += "\x00 side-band-64k"
				}
				if _, err := fmt.Fprintf(w, "%04x%s\n", len(line)+5, line); err != nil {
					return
				}
			}
		}, gitsource.ReasonServer, ""},
		"nothing": {func(http.ResponseWriter, *http.Request) {}, gitsource.ReasonUnreachable, "ended in the middle of an answer"},
		"an answer cut off": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "001e# service=git-upload-pack\n000001")
		}, gitsource.ReasonServer, ""},
		"an error in Git's protocol": {func(w http.ResponseWriter, r *http.Request) {
			line := "ERR you said " + r.Header.Get("Authorization") + "\x1b[2J\n"
			_, _ = fmt.Fprintf(w, "%04x%s", len(line)+4, line)
		}, gitsource.ReasonServer, "said: "},
		"a redirect to plain text elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "ftp://127.0.0.1/x", http.StatusFound)
		}, gitsource.ReasonServer, "redirect"},
	} {
		t.Run(name, func(t *testing.T) {
			server := gittest.HTTP(t, r, gittest.HTTPOptions{})
			was := server.Handle(c.answer)
			s := open(t, gitsource.Config{URL: server.URL, Token: canary, ListTimeout: 3 * time.Minute})
			revision, err := s.Poll(t.Context())
			require.Nil(t, revision)
			require.ErrorContains(t, err, c.want)
			requireNoCanary(t, err.Error())
			require.NotContains(t, err.Error(), "\x1b")
			require.Less(t, len(err.Error()), 700)
			if c.want != "" {
				requireReason(t, err, c.reason)
			}
			t.Log(err)
			server.Handle(was)
			poll(t, s)
		})
	}
}

func TestAPackThatEndsTooEarlyLeavesNothing(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "1"})
	server := gittest.HTTP(t, r, gittest.HTTPOptions{})
	var backend http.Handler
	cut, whole := 0, 1<<20
	backend = server.Handle(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			backend.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		backend.ServeHTTP(answer, r)
		whole = answer.Body.Len()
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		_, _ = w.Write(answer.Body.Bytes()[:min(cut, whole)])
	}))
	cache := filepath.Join(t.TempDir(), "cache")
	s := open(t, gitsource.Config{URL: server.URL, Cache: cache})
	for cut = 0; cut < whole-4; cut += 13 { // without the last four bytes, which say that no more comes, the pack is whole
		_, err := s.Poll(t.Context())
		var e *gitsource.Error
		require.ErrorAs(t, err, &e, "cut after %d bytes", cut)
		require.Contains(t, []gitsource.Reason{gitsource.ReasonServer, gitsource.ReasonUnreachable}, e.Reason, "cut after %d bytes: %s", cut, e.Message)
		entries, err := os.ReadDir(cache)
		require.NoError(t, err)
		for _, entry := range entries {
			require.Contains(t, []string{"lock", "record.json"}, entry.Name(), "nothing is half done")
		}
	}
	cut = 1 << 30
	poll(t, s)
}

func TestCredentialsDoNotFollowARedirectToAnotherHost(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "1"})
	var stolen string
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stolen += r.Header.Get("Authorization")
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer thief.Close()
	server := gittest.HTTP(t, r, gittest.HTTPOptions{})
	server.Handle(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL+r.URL.RequestURI(), http.StatusFound)
	}))
	s := open(t, gitsource.Config{URL: server.URL, Token: canary})
	fails(t, s, gitsource.ReasonUnauthorized)
	require.Empty(t, stolen)
}

func TestFailuresOverSSHAreOneSentenceAndHealByThemselves(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "1"})
	server := gittest.SSH(t, r)
	config := gitsource.Config{URL: server.URL, SSHKeyFile: server.KeyFile, KnownHostsFile: server.KnownHostsFile}

	t.Run("no known_hosts", func(t *testing.T) {
		c := config
		c.KnownHostsFile = ""
		fails(t, open(t, c), gitsource.ReasonCredentials, "never trusted at first sight", "--known-hosts")
	})
	t.Run("an unknown host", func(t *testing.T) {
		c := config
		c.KnownHostsFile = writeFile(t, "")
		s := open(t, c)
		fails(t, s, gitsource.ReasonUntrusted, "ssh-keyscan -p", "never trusted at first sight")
		known, err := os.ReadFile(server.KnownHostsFile)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(c.KnownHostsFile, known, 0o600))
		poll(t, s)
	})
	t.Run("a known_hosts file that isn't one", func(t *testing.T) {
		c := config
		c.KnownHostsFile = writeFile(t, "host ssh-ed25519 not-a-key\n")
		fails(t, open(t, c), gitsource.ReasonCredentials, "can't be understood")
	})
	t.Run("another host key", func(t *testing.T) {
		server := gittest.SSH(t, r)
		s := open(t, gitsource.Config{URL: server.URL, SSHKeyFile: server.KeyFile, KnownHostsFile: server.KnownHostsFile})
		poll(t, s)
		server.NewHostKey()
		fails(t, s, gitsource.ReasonUntrusted, "shows another host key", "someone may be in between")
		server.TrustHost()
		poll(t, s)
	})
	t.Run("a key that the server doesn't know", func(t *testing.T) {
		c := config
		c.SSHKeyFile = server.StrangerKeyFile
		fails(t, open(t, c), gitsource.ReasonUnauthorized, "refuses the private key", "SHA256:", "deploy keys")
	})
	t.Run("a key under a passphrase that isn't given, or is wrong", func(t *testing.T) {
		c := config
		c.SSHKeyFile = server.LockedKeyFile
		fails(t, open(t, c), gitsource.ReasonCredentials, "has a passphrase and none is given")
		c.SSHPassphrase = canary
		fails(t, open(t, c), gitsource.ReasonCredentials, "does not open the private key")
	})
	t.Run("a file that is no key", func(t *testing.T) {
		c := config
		c.SSHKeyFile = writeFile(t, canary)
		fails(t, open(t, c), gitsource.ReasonCredentials, "holds no private key that can be used")
	})
	t.Run("a repository that doesn't exist", func(t *testing.T) {
		c := config
		c.URL += "x"
		fails(t, open(t, c), gitsource.ReasonNotFound, "there is no repository at")
	})
	t.Run("a branch that doesn't exist", func(t *testing.T) {
		c := config
		c.Branch = "prod"
		fails(t, open(t, c), gitsource.ReasonBranch)
	})
	t.Run("an empty repository", func(t *testing.T) {
		server := gittest.SSH(t, gittest.New(t))
		fails(t, open(t, gitsource.Config{URL: server.URL, SSHKeyFile: server.KeyFile, KnownHostsFile: server.KnownHostsFile}), gitsource.ReasonEmpty)
	})
	t.Run("a host known by its hashed name", func(t *testing.T) {
		data, err := os.ReadFile(server.KnownHostsFile)
		require.NoError(t, err)
		address, key, _ := strings.Cut(string(data), " ")
		c := config
		c.KnownHostsFile = writeFile(t, knownhosts.HashHostname(knownhosts.Normalize(address))+" "+key)
		poll(t, open(t, c))
	})
	t.Run("a server that accepts and says nothing", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = listener.Close() }()
		c := config
		c.URL = "ssh://git@" + listener.Addr().String() + "/fleet.git"
		c.ListTimeout = 100 * time.Millisecond
		fails(t, open(t, c), gitsource.ReasonUnreachable, "gave no answer in time")
	})
}

func TestFailuresOfAFileRepository(t *testing.T) {
	t.Run("nothing there", func(t *testing.T) {
		s := open(t, gitsource.Config{URL: "file://" + t.TempDir() + "/none.git"})
		fails(t, s, gitsource.ReasonNotFound, "there is nothing at")
	})
	t.Run("a folder that is no repository", func(t *testing.T) {
		fails(t, open(t, gitsource.Config{URL: "file://" + t.TempDir()}), gitsource.ReasonNotFound, "is no Git repository")
	})
	t.Run("an empty repository", func(t *testing.T) {
		fails(t, open(t, gitsource.Config{URL: gittest.New(t).URL()}), gitsource.ReasonEmpty)
	})
	t.Run("no git installed", func(t *testing.T) {
		r := gittest.New(t)
		r.Commit(gittest.Files{"f": "1"})
		s := open(t, gitsource.Config{URL: r.URL()})
		t.Setenv("PATH", t.TempDir())
		fails(t, s, gitsource.ReasonCache, "git, which isn't installed here")
	})
	t.Run("variables of a hook don't lead elsewhere", func(t *testing.T) {
		r, other := gittest.New(t), gittest.New(t)
		tip := r.Commit(gittest.Files{"f": "1"})
		other.Commit(gittest.Files{"f": "other"})
		t.Setenv("GIT_DIR", other.Dir)
		require.Equal(t, tip, poll(t, open(t, gitsource.Config{URL: r.URL()})).Commit)
	})
}

func TestDeadlines(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "1"})
	block := make(chan struct{})
	defer close(block)
	hang := func(method string, server *gittest.Server) {
		var backend http.Handler
		backend = server.Handle(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != method {
				backend.ServeHTTP(w, r)
				return
			}
			select {
			case <-block:
			case <-r.Context().Done():
			}
		}))
	}
	t.Run("a server that never tells its branches", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		hang(http.MethodGet, server)
		s := open(t, gitsource.Config{URL: server.URL, Token: canary, ListTimeout: 50 * time.Millisecond})
		fails(t, s, gitsource.ReasonUnreachable, "gave no answer in time")
	})
	t.Run("a server that never sends the pack", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		hang(http.MethodPost, server)
		s := open(t, gitsource.Config{URL: server.URL, Token: canary, FetchTimeout: 50 * time.Millisecond})
		fails(t, s, gitsource.ReasonUnreachable, "took longer than 50ms")
	})
	t.Run("a caller that stops", func(t *testing.T) {
		server := gittest.HTTP(t, r, gittest.HTTPOptions{})
		hang(http.MethodGet, server)
		s := open(t, gitsource.Config{URL: server.URL, Token: canary})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := s.Poll(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		requireNoCanary(t, err.Error())
		var e *gitsource.Error
		require.False(t, errors.As(err, &e))
	})
}

func TestConfigsThatCannotBeMeantAreRefusedAtTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		config gitsource.Config
		want   string
	}{
		"no URL":                     {gitsource.Config{}, "no repository URL is given"},
		"an unknown scheme":          {gitsource.Config{URL: "s3://" + canary + "@bucket/x"}, "scheme isn't known"},
		"git's own protocol":         {gitsource.Config{URL: "git://host/x"}, "neither proves the server"},
		"a URL that doesn't parse":   {gitsource.Config{URL: "https://ada:" + canary + "@ho st/x\x7f"}, "can't be read"},
		"a query":                    {gitsource.Config{URL: "https://host/x?token=" + canary}, "no query or fragment"},
		"a relative file URL":        {gitsource.Config{URL: "file://srv/fleet.git"}, "three slashes"},
		"a password for ssh":         {gitsource.Config{URL: "ssh://git:" + url.QueryEscape(canary) + "@host/x"}, "may hold no password"},
		"no cache":                   {gitsource.Config{URL: "file:///x"}, "no cache folder"},
		"a token twice":              {gitsource.Config{URL: "https://h/x", Cache: "c", Token: canary, TokenFile: "t"}, "given twice"},
		"a password twice":           {gitsource.Config{URL: "https://h/x", Cache: "c", Password: canary, PasswordFile: "t"}, "given twice"},
		"a passphrase twice":         {gitsource.Config{URL: "ssh://h/x", Cache: "c", SSHPassphrase: canary, SSHPassphraseFile: "t"}, "given twice"},
		"a token and a password":     {gitsource.Config{URL: "https://h/x", Cache: "c", Token: canary, Password: "p"}, "give one of them"},
		"a token beside one in URL":  {gitsource.Config{URL: "https://" + url.QueryEscape(canary) + "@h/x", Cache: "c", Token: "t"}, "leave them out of the URL"},
		"a bearer without a token":   {gitsource.Config{URL: "https://h/x", Cache: "c", Bearer: true}, "no Git token is given"},
		"a token for ssh":            {gitsource.Config{URL: "git@host:x", Cache: "c", Token: canary}, "serves only http and https"},
		"a certificate for http":     {gitsource.Config{URL: "http://h/x", Cache: "c", CAFile: "ca"}, "serves only https"},
		"an ssh key for https":       {gitsource.Config{URL: "https://h/x", Cache: "c", SSHKeyFile: "k"}, "serves only ssh"},
		"a branch that is a refspec": {gitsource.Config{URL: "https://h/x", Cache: "c", Branch: "refs/heads/main"}, "is no branch name"},
		"a branch of escapes":        {gitsource.Config{URL: "https://h/x", Cache: "c", Branch: "a b\x1b[2J"}, "is no branch name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gitsource.Open(c.config, clock.RealClock{})
			require.ErrorContains(t, err, c.want)
			requireNoCanary(t, err.Error())
			require.NotContains(t, err.Error(), "\x1b")
		})
	}
}

func TestACacheFolderThatCannotBeMade(t *testing.T) {
	file := writeFile(t, "")
	_, err := gitsource.Open(gitsource.Config{URL: "file:///x", Cache: filepath.Join(file, "cache")}, clock.RealClock{})
	require.ErrorContains(t, err, "the cache folder "+file)
	requireReason(t, err, gitsource.ReasonCache)
}
