package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func sign(secret, body string) string {
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write([]byte(body))
	return hex.EncodeToString(sum.Sum(nil))
}

func (b *bench) deliver(body string, headers ...string) int {
	b.t.Helper()
	answer := b.ask(http.MethodPost, pathHook, func(r *http.Request) {
		r.Body = io.NopCloser(strings.NewReader(body))
		for n := 0; n < len(headers); n += 2 {
			r.Header.Set(headers[n], headers[n+1])
		}
	})
	require.Equal(b.t, "application/json", answer.Header().Get("Content-Type"))
	return answer.Code
}

func TestAWebhookIsBelievedForItsSecretOnly(t *testing.T) {
	b := newBench(t, func(c *Config) { c.HookSecretFile = writeFile(t, secret+"\nanother-"+secret) })
	const body = "Hello, World!"
	// The example in GitHub's documentation of its webhooks.
	const documented = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	for name, c := range map[string]struct {
		body    string
		headers []string
		code    int
	}{
		"GitHub":                                   {body, []string{"X-Hub-Signature-256", "sha256=" + documented}, http.StatusAccepted},
		"GitHub, in capitals":                      {body, []string{"X-Hub-Signature-256", "sha256=" + strings.ToUpper(documented)}, http.StatusAccepted},
		"GitHub, the second secret":                {body, []string{"X-Hub-Signature-256", "sha256=" + sign("another-"+secret, body)}, http.StatusAccepted},
		"GitHub, another body":                     {body + " ", []string{"X-Hub-Signature-256", "sha256=" + documented}, http.StatusUnauthorized},
		"GitHub, another secret":                   {body, []string{"X-Hub-Signature-256", "sha256=" + sign("guess", body)}, http.StatusUnauthorized},
		"GitHub, without the algorithm":            {body, []string{"X-Hub-Signature-256", documented}, http.StatusUnauthorized},
		"GitHub, SHA-1":                            {body, []string{"X-Hub-Signature", "sha1=d94d27d5e6e5a2f0e5f1b2f1b7e0b2ce7c5a6b44"}, http.StatusUnauthorized},
		"GitHub, empty":                            {body, []string{"X-Hub-Signature-256", "sha256="}, http.StatusUnauthorized},
		"GitHub, cut":                              {body, []string{"X-Hub-Signature-256", "sha256=" + documented[:62]}, http.StatusUnauthorized},
		"GitHub, no hexadecimal":                   {body, []string{"X-Hub-Signature-256", "sha256=" + strings.Repeat("zz", 32)}, http.StatusUnauthorized},
		"GitLab":                                   {body, []string{"X-Gitlab-Token", secret}, http.StatusAccepted},
		"GitLab, the second secret":                {body, []string{"X-Gitlab-Token", "another-" + secret}, http.StatusAccepted},
		"GitLab, another secret":                   {body, []string{"X-Gitlab-Token", secret + "!"}, http.StatusUnauthorized},
		"GitLab, a signature for a token":          {body, []string{"X-Gitlab-Token", documented}, http.StatusUnauthorized},
		"Gitea":                                    {body, []string{"X-Gitea-Signature", documented}, http.StatusAccepted},
		"Gitea, which signs for GitHub too":        {body, []string{"X-Gitea-Signature", documented, "X-Hub-Signature-256", "sha256=" + documented}, http.StatusAccepted},
		"Gitea, another body":                      {"", []string{"X-Gitea-Signature", documented}, http.StatusUnauthorized},
		"Gitea, the secret for a signature":        {body, []string{"X-Gitea-Signature", secret}, http.StatusUnauthorized},
		"no signature":                             {body, nil, http.StatusUnauthorized},
		"the secret as a bearer token":             {body, []string{"Authorization", "Bearer " + secret}, http.StatusUnauthorized},
		"a body that nobody sends":                 {strings.Repeat("x", largestHook+1), []string{"X-Gitea-Signature", documented}, http.StatusRequestEntityTooLarge},
		"a body as large as any, rightly signed":   {strings.Repeat("x", largestHook), []string{"X-Gitea-Signature", sign(secret, strings.Repeat("x", largestHook))}, http.StatusAccepted},
		"an empty body, rightly signed":            {"", []string{"X-Gitea-Signature", sign(secret, "")}, http.StatusAccepted},
		"a body that is no JSON, rightly signed":   {"\x00\xff", []string{"X-Gitea-Signature", sign(secret, "\x00\xff")}, http.StatusAccepted},
		"a wrong signature beside the right token": {body, []string{"X-Gitlab-Token", secret, "X-Hub-Signature-256", "sha256=00"}, http.StatusAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			select { // what an earlier case asked for
			case <-b.pacer.asks:
			default:
			}
			require.Equal(t, c.code, b.deliver(c.body, c.headers...))
			require.Equal(t, c.code == http.StatusAccepted, len(b.pacer.asks) == 1, "a pull is asked for exactly when the webhook is believed")
		})
	}
	require.NotContains(t, b.log.String(), secret)
	require.Contains(t, b.log.String(), "a webhook was refused")
	require.Equal(t, 1, strings.Count(b.log.String(), "\n"), "however many are refused in a minute, it is said once")
}

func TestWithoutASecretThereIsNoWebhook(t *testing.T) {
	b := newBench(t, nil)
	require.Equal(t, http.StatusNotFound, b.deliver("", "X-Gitlab-Token", ""))
	require.Equal(t, http.StatusNotFound, b.deliver("", "X-Gitea-Signature", sign("", "")))
	require.Empty(t, b.pacer.asks)
}

func TestAWebhookWhoseSecretIsGoneIsRefused(t *testing.T) {
	file := writeFile(t, secret)
	b := newBench(t, func(c *Config) { c.HookSecretFile = file })
	require.NoError(t, os.Remove(file))
	b.clock.Step(fileAge)
	require.Equal(t, http.StatusServiceUnavailable, b.deliver("", "X-Gitlab-Token", secret))
	require.Empty(t, b.pacer.asks)
	require.EqualValues(t, 1, b.hook.refused.Load(), "who watches the metric sees it")
}

func TestAFloodOfWebhooksIsOnePullInAGapAndTheLastIsNotLost(t *testing.T) {
	b := newBench(t, func(c *Config) { c.HookSecretFile = writeFile(t, secret) })
	b.serve()
	flood := func() {
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() {
				for range 20 {
					if code := b.deliver("{}", "X-Gitlab-Token", secret); code != http.StatusAccepted {
						t.Errorf("a webhook got %d", code)
					}
				}
			})
		}
		group.Wait()
	}
	pokes := func(n int64) {
		t.Helper()
		require.Eventually(t, func() bool { return b.agent.pokes.Load() == n && b.clock.HasWaiters() }, time.Minute, time.Millisecond)
	}
	require.Equal(t, http.StatusAccepted, b.deliver("{}", "X-Gitlab-Token", secret))
	pokes(1)
	flood()
	b.clock.Step(hookGap - time.Millisecond)
	require.EqualValues(t, 1, b.agent.pokes.Load(), "within the gap the repository is left alone")
	b.clock.Step(time.Millisecond)
	pokes(2)
	b.clock.Step(hookGap)
	require.Eventually(t, func() bool { return !b.clock.HasWaiters() }, time.Minute, time.Millisecond)
	require.EqualValues(t, 2, b.agent.pokes.Load(), "after a flood there is quiet")
	require.Equal(t, http.StatusAccepted, b.deliver("{}", "X-Gitlab-Token", secret))
	pokes(3)
}

func TestAWebhookBeforeTheAgentIsThereIsTaken(t *testing.T) {
	b := newBench(t, func(c *Config) { c.HookSecretFile = writeFile(t, secret) })
	b.sources.Store(nil)
	require.Equal(t, http.StatusAccepted, b.deliver("{}", "X-Gitlab-Token", secret))
	b.poke()
	require.Zero(t, b.agent.pokes.Load())
}
