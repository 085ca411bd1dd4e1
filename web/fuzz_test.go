package web

import (
	"net/http"
	"net/http/httptest"
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
