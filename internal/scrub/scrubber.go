package scrub

import (
	"sync"

	"ichor.maesh.dev/internal/printable"
)

// MinLength is the length in bytes of the shortest secret that is looked for.
const MinLength = 6

// Hidden stands in the place of a secret.
const Hidden = "(hidden)"

// Scrubber replaces secrets in texts. The zero value knows none and is ready to use; a nil *Scrubber only strips control
// characters. Safe for use by many goroutines; secrets may be added at any time. An agent of a thousand clusters knows their bundles one
// after the other, so what adding a secret costs doesn't grow with those that are known.
type Scrubber struct {
	mu      sync.RWMutex
	known   map[string]struct{}
	matcher matcher
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
	for _, secret := range secrets {
		if _, ok := s.known[secret]; ok || len(secret) < MinLength {
			continue
		}
		if s.known == nil {
			s.known = map[string]struct{}{}
		}
		s.known[secret] = struct{}{}
		for _, form := range forms(secret) {
			s.matcher.add(form)
		}
	}
}

// String replaces every known secret in text.
func (s *Scrubber) String(text string) string {
	if s == nil || len(text) < MinLength {
		return text
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.matcher.replace(text)
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
