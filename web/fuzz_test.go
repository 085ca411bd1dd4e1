package web

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzWebhook delivers anything to the webhook. It is believed exactly when it bears the secret, as GitLab does, or a signature of its body made with the secret;
// and whatever comes, the secret stands in no answer.
func FuzzWebhook(f *testing.F) {
	const body = `{"ref":"refs/heads/main"}`
	f.Add(body, "sha256="+sign(secret, body), "", "")
	f.Add(body, "", secret, "")
	f.Add(body, "", "", sign(secret, body))
	f.Add(body, "sha256="+strings.ToUpper(sign(secret, body)), "", "")
	f.Add(body, "sha1="+sign(secret, body), "", "")
	f.Add(body+" ", "sha256="+sign(secret, body), "", "")
	f.Add("\x00\xff", "sha256=", "x", "zz")
	f.Add("", "", "", "")
	f.Add(body, "sha256=00", secret+" ", strings.Repeat("0", 64))
	h := &hook{}
	f.Fuzz(func(t *testing.T, body, github, gitlab, gitea string) {
		request := httptest.NewRequest(http.MethodPost, "http://127.0.0.1"+pathHook, strings.NewReader(body))
		for name, value := range map[string]string{"X-Hub-Signature-256": github, "X-Gitlab-Token": gitlab, "X-Gitea-Signature": gitea} {
			if value != "" {
				request.Header.Set(name, value)
			}
		}
		err := h.verify(httptest.NewRecorder(), request, []string{secret, "another-" + secret})
		right := func(signature string) bool {
			return strings.EqualFold(signature, sign(secret, body)) || strings.EqualFold(signature, sign("another-"+secret, body))
		}
		signature, isGitHub := strings.CutPrefix(github, "sha256=")
		if !isGitHub {
			signature = gitea
		}
		believed := gitlab == secret || gitlab == "another-"+secret || gitlab == "" && right(signature)
		require.Equal(t, believed, err == nil, "%v", err)
		if err != nil {
			require.NotContains(t, err.Error(), secret)
		}
	})
}

// FuzzRequest asks for anything, under any name. Without the token nothing is answered but whether the agent lives and is ready; under a name
// that isn't the server's nothing at all; and whatever is answered leads nowhere else and acts on no browser.
func FuzzRequest(f *testing.F) {
	b := newBench(f, func(c *Config) { c.TokenFile = writeFile(f, token) })
	b.agent.report = hostileReport()
	for _, path := range append([]string{"//evil.example/..", "/clusters/../../etc", "/api/v1/clusters/\x00", "*", "", "/clusters/\u202e", "/healthz"}, everything...) {
		f.Add(http.MethodGet, "localhost", path, "", "Bearer "+token)
	}
	f.Add(http.MethodPost, "127.0.0.1:1", "/hooks/git", "a=b", "")
	f.Add(http.MethodGet, "evil.example", "/", "", "Basic "+token)
	f.Add("TRACE", "[::1]", "/", "%zz&;", "bearer  "+token)
	f.Add("", "localhost:x:y", "/readyz", "", "Bearer")
	f.Fuzz(func(t *testing.T, method, host, path, query, authorization string) {
		if strings.ContainsFunc(query, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return // net/url refuses what holds control characters, but for those that a path decodes to
		}
		r := (&http.Request{Method: method, Host: host, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{"Authorization": {authorization}},
			Body: http.NoBody}).WithContext(context.WithValue(context.Background(), http.LocalAddrContextKey, net.Addr(b.listener.Addr())))
		w := httptest.NewRecorder()
		b.http.Handler.ServeHTTP(w, r)
		known := strings.Contains(authorization, token) || strings.HasPrefix(strings.ToLower(authorization), "basic ")
		if w.Code == http.StatusOK && !known {
			require.Contains(t, []string{pathLive, pathReady}, path)
		}
		if name := plainHost(host); !strings.Contains(name, "localhost") && !strings.ContainsAny(name, "0123456789:") {
			require.Equal(t, http.StatusMisdirectedRequest, w.Code)
		}
		require.NotEqual(t, http.StatusInternalServerError, w.Code, "a panic")
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		if to := w.Header().Get("Location"); to != "" {
			require.Regexp(t, `^/([^/\\]|$)`, to, "a redirect leaves this server")
		}
		body := w.Body.String()
		require.NotContains(t, body, "\x1b")
		require.NotContains(t, body, token)
		if strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			requireHarmless(t, body)
		}
	})
}
