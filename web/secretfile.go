package web

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/scrub"
)

const (
	// shortestSecret is the length under which a secret could be guessed.
	shortestSecret = 16
	largestSecrets = 64 << 10
	// fileAge is for how long a file that was read is believed.
	fileAge = time.Second
)

// secrets are the lines of a file: one secret each, so that one can be changed for another without a gap. The file is read
// anew as it changes.
type secrets struct {
	path, flag string
	clock      clock.PassiveClock
	scrubber   *scrub.Scrubber

	mu    sync.Mutex
	read  time.Time
	known []string
	err   error
}

// openSecrets reads a file of secrets; without a path there are none, and the result is nil.
func openSecrets(path, flag string, clock clock.PassiveClock, scrubber *scrub.Scrubber) (*secrets, error) {
	if path == "" {
		return nil, nil
	}
	s := &secrets{path: path, flag: flag, clock: clock, scrubber: scrubber}
	if _, err := s.current(); err != nil {
		return nil, err
	}
	return s, nil
}

// current gives the secrets that the file holds now. A file that can't be read opens nothing.
func (s *secrets) current() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if age := now.Sub(s.read); !s.read.IsZero() && age >= 0 && age < fileAge {
		return s.known, s.err
	}
	s.read = now
	s.known, s.err = s.load()
	return s.known, s.err
}

func (s *secrets) load() ([]string, error) {
	file, err := os.Open(s.path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.flag, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, largestSecrets+1))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", s.flag, s.path, err)
	}
	if len(text) > largestSecrets {
		return nil, fmt.Errorf("%s %s is larger than %d KiB; it should hold one secret a line", s.flag, s.path, largestSecrets>>10)
	}
	var known []string
	for line := range bytes.Lines(text) {
		secret := strings.TrimSpace(string(line))
		switch {
		case secret == "":
			continue
		case len(secret) < shortestSecret:
			return nil, fmt.Errorf("%s %s holds a secret of %d characters, which could be guessed; give at least %d (openssl rand -hex 32)", s.flag,
				s.path, len(secret), shortestSecret)
		}
		known = append(known, secret)
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("%s %s is empty; it should hold a secret of at least %d characters (openssl rand -hex 32)", s.flag, s.path, shortestSecret)
	}
	s.scrubber.Add(known...)
	return known, nil
}

// keyPair is a certificate with its key, read anew as the files change: certificates are renewed while an agent runs.
type keyPair struct {
	cert, key string
	clock     clock.PassiveClock
	log       *slog.Logger

	mu   sync.Mutex
	read time.Time
	pair *tls.Certificate
	// said is the problem that was logged last; empty while there is none.
	said string
}

// get gives the pair that the files hold. While they can't be read the one before is shown.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Now()
	if age := now.Sub(k.read); k.pair != nil && age >= 0 && age < fileAge {
		return k.pair, nil
	}
	k.read = now
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil && k.pair == nil {
		return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	if err == nil {
		k.pair, k.said = &pair, ""
	} else if problem := err.Error(); problem != k.said {
		k.said = problem
		k.log.Warn("the certificate of the status page can't be read; the one before is shown until it can", "certificate", k.cert, "key", k.key, "problem", problem)
	}
	return k.pair, nil
}
