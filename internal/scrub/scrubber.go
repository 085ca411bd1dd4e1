package scrub

import (
	"sync"
	"sync/atomic"

	"ichor.maesh.dev/internal/printable"
)

// MinLength is the length in bytes of the shortest secret that is looked for.
const MinLength = 6

// Hidden stands in the place of a secret.
const Hidden = "(hidden)"

// Scrubber replaces secrets in texts. The zero value knows none and is ready to use; a nil *Scrubber only strips control
// characters. Safe for use by many goroutines; secrets may be added at any time.
type Scrubber struct {
	mu    sync.Mutex
	known map[string]struct{}
	forms map[string]struct{}
	// matcher is made when it is first needed after secrets were added, and nil until then.
	matcher atomic.Pointer[matcher]
}

// New makes a Scrubber that knows secrets.
func New(secrets ...string) *Scrubber {
	s := &Scrubber{}
	s.Add(secrets...)
	return s
}

// Add makes secrets known. Adding what is known already costs a map look-up, so callers may add on every pass.
func (s *Scrubber) Add(secrets ...string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for _, secret := range secrets {
		if _, ok := s.known[secret]; ok || len(secret) < MinLength {
			continue
		}
		if s.known == nil {
			s.known, s.forms = map[string]struct{}{}, map[string]struct{}{}
		}
		s.known[secret] = struct{}{}
		for _, form := range forms(secret) {
			s.forms[form] = struct{}{}
		}
		changed = true
	}
	if changed {
		s.matcher.Store(nil)
	}
}

func (s *Scrubber) current() *matcher {
	if m := s.matcher.Load(); m != nil {
		return m
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := newMatcher(s.forms)
	s.matcher.Store(m)
	return m
}

// String replaces every known secret in text.
func (s *Scrubber) String(text string) string {
	if s == nil {
		return text
	}
	return s.current().replace(text)
}

// Text replaces every known secret and takes out control characters: what may go to a terminal, a log or a status.
func (s *Scrubber) Text(text string) string {
	// Control characters go first as well, or one in the middle of a secret would hide it from the search.
	return s.String(printable.Text(s.String(text)))
}

// Error gives an error whose text is scrubbed. errors.Is and errors.As still see err. Nil gives nil.
func (s *Scrubber) Error(err error) error {
	if err == nil {
		return nil
	}
	return &scrubbed{text: s.Text(err.Error()), err: err}
}

type scrubbed struct {
	text string
	err  error
}

func (e *scrubbed) Error() string { return e.text }
func (e *scrubbed) Unwrap() error { return e.err }
