package main

import (
	"fmt"
	"os"
	"sync"

	"ichor.maesh.dev/internal/sealed"
)

// identityLoader keeps the age identities that were loaded from files until one of the files changes.
type identityLoader struct {
	files []string

	mu     sync.Mutex
	stamp  string
	loaded *sealed.Identities
}

func (l *identityLoader) load() (*sealed.Identities, error) {
	stamp := ""
	for _, file := range l.files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("--age-identity: %w", err)
		}
		stamp += fmt.Sprintf("%s %d %d\n", file, info.Size(), info.ModTime().UnixNano())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded != nil && l.stamp == stamp {
		return l.loaded, nil
	}
	loaded, err := sealed.LoadIdentities(l.files...)
	if err != nil {
		return nil, fmt.Errorf("--age-identity: %w", err)
	}
	l.loaded, l.stamp = loaded, stamp
	return loaded, nil
}
