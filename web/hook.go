package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
)

// largestHook is GitHub's own bound for what it sends, and a bit.
const largestHook = 26 << 20

// hook is the Git webhook. What it is told is only that something may have moved: the agent asks the repository by itself, and
// nothing of the body is read but for its signature.
type hook struct {
	// secrets is nil when there is no webhook.
	secrets *secrets
	asked   func()
	log     *slog.Logger
	said    *throttle

	accepted, refused atomic.Uint64
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.secrets == nil {
		refuse(w, r, http.StatusNotFound, "there is no webhook; start the agent with --hook-secret-file")
		return
	}
	known, err := h.secrets.current()
	if err != nil {
		h.refused.Add(1)
		h.said.say(func(int) { h.log.Error("webhooks are refused: their secret can't be read", "problem", err) })
		refuse(w, r, http.StatusServiceUnavailable, "the agent can't read its webhook secret; its log says more")
		return
	}
	if err := h.verify(w, r, known); err != nil {
		h.refused.Add(1)
		code := http.StatusUnauthorized
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			code = http.StatusRequestEntityTooLarge
		}
		h.said.say(func(skipped int) { h.log.Warn("a webhook was refused", "why", err, "more", skipped) })
		refuse(w, r, code, err.Error())
		return
	}
	h.accepted.Add(1)
	h.asked()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": "the repository is asked now"})
}

var (
	errNoSignature = errors.New("no signature: X-Hub-Signature-256 (GitHub), X-Gitlab-Token (GitLab) or X-Gitea-Signature (Gitea) is needed; " +
		"give the webhook the secret of --hook-secret-file")
	errWrongSignature = errors.New("the signature or token is not of this agent's secret; give the webhook the secret of --hook-secret-file")
)

// verify says why a request does not come from who knows the secret. GitLab sends the secret itself; the others sign the
// body with it.
func (h *hook) verify(w http.ResponseWriter, r *http.Request, known []string) error {
	if token := r.Header.Get("X-Gitlab-Token"); token != "" {
		if matches(token, known) {
			return nil
		}
		return errWrongSignature
	}
	signature, found := strings.CutPrefix(r.Header.Get("X-Hub-Signature-256"), "sha256=")
	if !found {
		signature = r.Header.Get("X-Gitea-Signature")
	}
	if signature == "" {
		return errNoSignature
	}
	given, err := hex.DecodeString(signature)
	if err != nil || len(given) != sha256.Size {
		return errWrongSignature
	}
	sums := make([]io.Writer, len(known))
	for n, secret := range known {
		sums[n] = hmac.New(sha256.New, []byte(secret))
	}
	if _, err := io.Copy(io.MultiWriter(sums...), http.MaxBytesReader(w, r.Body, largestHook)); err != nil {
		return err
	}
	right := false
	for _, sum := range sums {
		if hmac.Equal(given, sum.(interface{ Sum([]byte) []byte }).Sum(nil)) {
			right = true
		}
	}
	if !right {
		return errWrongSignature
	}
	return nil
}
