package gittest_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/gittest"
)

// git runs the user's own git, without the user's configuration, and gives all that it printed.
func git(t *testing.T, env []string, arguments ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", arguments...)
	command.Dir = t.TempDir()
	command.Env = append(os.Environ(), append([]string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com"}, env...)...)
	out, err := command.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

func TestARepositoryIsClonedAndPushedToOverHTTP(t *testing.T) {
	for name, options := range map[string]gittest.HTTPOptions{"in the clear": {}, "over TLS": {TLS: true}} {
		t.Run(name, func(t *testing.T) {
			r := gittest.New(t)
			tip := r.Commit(gittest.Files{"a": "1"})
			server := gittest.HTTP(t, r, options)
			require.Zero(t, server.Requests())
			env := []string{"GIT_SSL_CAINFO=" + server.CAFile}
			folder := t.TempDir()
			out, err := git(t, env, "clone", "--quiet", server.URL, folder)
			require.NoError(t, err, out)
			out, err = git(t, nil, "-C", folder, "rev-parse", "HEAD")
			require.NoError(t, err)
			require.Equal(t, tip, out)
			asked := server.Requests()
			require.Positive(t, asked)
			out, err = git(t, nil, "-C", folder, "commit", "--quiet", "--allow-empty", "-m", "Mine")
			require.NoError(t, err, out)
			out, err = git(t, env, "-C", folder, "push", "--quiet", "origin", "main")
			require.NoError(t, err, out)
			require.Equal(t, "Mine", r.Git("log", "-1", "--format=%s", "main"))
			require.Greater(t, server.Requests(), asked)
		})
	}
}

// get asks a server where its branches stand.
func get(t *testing.T, server *gittest.Server, authorization string) (status int, body string, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/info/refs?service=git-upload-pack", nil)
	require.NoError(t, err)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	if server.CAFile != "" {
		text, err := os.ReadFile(server.CAFile)
		require.NoError(t, err)
		transport.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		require.True(t, transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(text))
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func TestWhoDoesNotBearTheHeaderIsRefusedAndReadsItBack(t *testing.T) {
	r := gittest.New(t)
	tip := r.Commit(gittest.Files{"a": "1"})
	server := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("ada", "secret"), TLS: true})
	for _, test := range []struct {
		name, given, want string
		status            int
	}{
		{"without a header", "", "refused: ", http.StatusUnauthorized},
		{"with another password", gittest.Basic("ada", "other"), gittest.Basic("ada", "other"), http.StatusUnauthorized},
		{"with a token instead", gittest.Bearer("secret"), gittest.Bearer("secret"), http.StatusUnauthorized},
		{"with the password", gittest.Basic("ada", "secret"), tip, http.StatusOK},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, body, err := get(t, server, test.given)
			require.NoError(t, err)
			require.Equal(t, test.status, status)
			require.Contains(t, body, test.want)
		})
	}
	require.EqualValues(t, 4, server.Requests(), "what is refused is counted too")

	server.Authorize(gittest.Bearer("next"))
	status, _, err := get(t, server, gittest.Basic("ada", "secret"))
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, status, "it has expired")
	status, _, err = get(t, server, gittest.Bearer("next"))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
}

func TestAnotherHandlerAnswersUntilTheFirstIsPutBack(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"a": "1"})
	server := gittest.HTTP(t, r, gittest.HTTPOptions{})
	was := server.Handle(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusBadGateway) }))
	status, body, err := get(t, server, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, status)
	require.Equal(t, "broken\n", body)
	server.Handle(was)
	status, _, err = get(t, server, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
}

func TestAServerThatIsAwayIsBackAtItsAddress(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"a": "1"})
	for name, tls := range map[string]bool{"in the clear": false, "over TLS": true} {
		t.Run(name, func(t *testing.T) {
			server := gittest.HTTP(t, r, gittest.HTTPOptions{TLS: tls})
			url := server.URL
			server.Stop()
			_, _, err := get(t, server, "")
			require.Error(t, err)
			server.Stop() // it is away already
			server.Start()
			require.Equal(t, url, server.URL)
			status, _, err := get(t, server, "")
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, status)
		})
	}
}

func TestARequestThatIsBeingAnsweredGoesWithTheServer(t *testing.T) {
	server := gittest.HTTP(t, gittest.New(t), gittest.HTTPOptions{})
	asked := make(chan struct{})
	server.Handle(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	failed := make(chan error)
	go func() {
		_, _, err := get(t, server, "")
		failed <- err
	}()
	<-asked
	server.Stop()
	require.Error(t, <-failed)
}
