package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/internal/scrub"
)

// Paths that need no token: whoever asks for them has none.
const (
	pathLive  = "/healthz"
	pathReady = "/readyz"
	pathHook  = "/hooks/git"
)

// access decides who may read.
type access struct {
	tokens   *secrets
	byCert   bool
	listen   string // the host that was given to listen on
	hosts    map[string]bool
	log      *slog.Logger
	scrubber *scrub.Scrubber
	said     *throttle
}

func newAccess(config Config, tokens *secrets) *access {
	a := &access{tokens: tokens, byCert: config.ClientCAFile != "", hosts: map[string]bool{"localhost": true}, log: config.Log,
		scrubber: config.Scrubber, said: newThrottle(config.Clock, saidGap)}
	if host, _, err := net.SplitHostPort(config.Address); err == nil {
		a.listen = plainHost(host)
	}
	for _, host := range config.Hosts {
		a.hosts[plainHost(host)] = true
	}
	return a
}

// plainHost is a host as it is compared: lower case, without brackets and the dot at the end.
func plainHost(host string) string {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// guard judges each request before anything answers it, and makes a panic an answer.
func (a *access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &answered{ResponseWriter: w}
		defer a.recover(answer, r)
		secureHeaders(answer.Header())
		switch {
		case !a.hostAllowed(r):
			refuse(answer, r, http.StatusMisdirectedRequest, fmt.Sprintf("this agent is not known as %s; start it with --host and that name if it is",
				brief(r.Host)))
		case !methodAllowed(r):
			allow := "GET, HEAD"
			if r.URL.Path == pathHook {
				allow = http.MethodPost
			}
			answer.Header().Set("Allow", allow)
			refuse(answer, r, http.StatusMethodNotAllowed, "only "+allow+" is answered here")
		case !open(r.URL.Path) && !a.authorised(r):
			answer.Header().Add("WWW-Authenticate", `Bearer realm="ichor"`)
			answer.Header().Add("WWW-Authenticate", `Basic realm="ichor: the token is the password", charset="UTF-8"`)
			refuse(answer, r, http.StatusUnauthorized, a.unauthorised())
		default:
			next.ServeHTTP(answer, r)
		}
	})
}

func (a *access) unauthorised() string {
	switch {
	case a.tokens != nil && a.byCert:
		return "a token (Authorization: Bearer, or as the password of any user), or a client certificate, is needed"
	case a.byCert:
		return "a client certificate is needed"
	}
	return "a token is needed: Authorization: Bearer, or as the password of any user"
}

// hostAllowed refuses names that this server is not known by: a web site can make its own name point here, and the browser of
// a person who may read this would then read it for that site.
func (a *access) hostAllowed(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = plainHost(host)
	if host == "" {
		return false
	}
	if a.hosts[host] || host == a.listen {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if ip = ip.Unmap(); ip.IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	own, err := netip.ParseAddrPort(local.String())
	return err == nil && own.Addr().Unmap().WithZone("") == ip.WithZone("")
}

func methodAllowed(r *http.Request) bool {
	if r.URL.Path == pathHook {
		return r.Method == http.MethodPost
	}
	return r.Method == http.MethodGet || r.Method == http.MethodHead
}

func open(path string) bool { return path == pathLive || path == pathReady || path == pathHook }

// authorised says whether a request may read everything.
func (a *access) authorised(r *http.Request) bool {
	if a.tokens == nil && !a.byCert {
		return true
	}
	if a.byCert && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return true
	}
	if a.tokens == nil {
		return false
	}
	given, ok := givenToken(r)
	if !ok {
		return false
	}
	known, err := a.tokens.current()
	if err != nil {
		a.said.say(func(int) { a.log.Error("nobody is let in: the token file can't be read", "problem", err) })
		return false
	}
	return matches(given, known)
}

// givenToken is the bearer token of a request, or the password that a browser asked a person for.
func givenToken(r *http.Request) (string, bool) {
	if scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " "); found && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token), true
	}
	_, password, ok := r.BasicAuth()
	return password, ok
}

// matches compares in a time that says nothing about what is known.
func matches(given string, known []string) bool {
	hash := sha256.Sum256([]byte(given))
	found := 0
	for _, secret := range known {
		wanted := sha256.Sum256([]byte(secret))
		found |= subtle.ConstantTimeCompare(hash[:], wanted[:])
	}
	return found == 1
}

// secureHeaders say to browsers what a page here never does.
func secureHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// recover answers 500 for a handler that panicked, and logs what happened without any secret.
func (a *access) recover(w *answered, r *http.Request) {
	value := recover()
	if value == nil {
		return
	}
	if value == http.ErrAbortHandler {
		panic(value)
	}
	a.log.Error("answering a request failed", "path", brief(r.URL.Path), "panic", a.scrubber.Panic(value))
	if !w.begun {
		refuse(w, r, http.StatusInternalServerError, "the agent failed to answer; its log says more")
	}
}

// answered knows whether an answer was begun.
type answered struct {
	http.ResponseWriter
	begun bool
}

func (w *answered) WriteHeader(code int) {
	w.begun = true
	w.ResponseWriter.WriteHeader(code)
}

func (w *answered) Write(data []byte) (int, error) {
	w.begun = true
	return w.ResponseWriter.Write(data)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *answered) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// apiError is what the API answers when it can't.
type apiError struct {
	Error string `json:"error"`
}

// refuse answers with a sentence: as JSON where JSON was asked for.
func refuse(w http.ResponseWriter, r *http.Request, code int, sentence string) {
	if isAPI(r.URL.Path) || r.URL.Path == pathHook {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(apiError{sentence})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, sentence)
}

// brief is what a client sent, fit for a sentence.
func brief(text string) string {
	const longest = 80
	text = printable.Text(text)
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return fmt.Sprintf("%q", text)
}
