package main

import (
	"fmt"
	"os"
	"sync"
)

// fileLoader keeps what was loaded from files until one of them changes, so that a corrected one is used without a restart.
type fileLoader[T any] struct {
	// what the files are, for errors.
	what  string
	files []string
	read  func() (T, error)

	mu     sync.Mutex
	stamp  string
	loaded *T
}

func (l *fileLoader[T]) load() (T, error) {
	var none T
	stamp := ""
	for _, file := range l.files {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return none, fmt.Errorf("%s: %w", l.what, err)
		}
		stamp += fmt.Sprintf("%s %d %d\n", file, info.Size(), info.ModTime().UnixNano())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded != nil && l.stamp == stamp {
		return *l.loaded, nil
	}
	loaded, err := l.read()
	if err != nil {
		return none, err
	}
	l.loaded, l.stamp = &loaded, stamp
	return loaded, nil
}
