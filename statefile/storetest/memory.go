package storetest

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/statefile"
)

// Memory is a store in memory. Like S3's, its ETag is a hash of the content.
type Memory struct {
	// IgnoreConditions makes it a store that does not honour conditional writes.
	IgnoreConditions bool

	mu      sync.Mutex
	objects map[string]memoryObject
	reads   int
	writes  int
}

type memoryObject struct {
	data     []byte
	modified time.Time
}

// NewMemory makes an empty store.
func NewMemory() *Memory { return &Memory{objects: map[string]memoryObject{}} }

// Location implements statefile.Store.
func (m *Memory) Location() string { return fmt.Sprintf("memory://%p", m) }

// Close implements statefile.Store.
func (m *Memory) Close() error { return nil }

// Counts says how many calls read (Get, List) and how many would write (Put, Delete), met conditions or not.
func (m *Memory) Counts() (reads, writes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads, m.writes
}

// Get implements statefile.Store.
func (m *Memory) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if err := check(ctx, key); err != nil {
		return nil, err
	}
	object, there := m.objects[key]
	if !there {
		return nil, fmt.Errorf("reading %s: %w", key, statefile.ErrNotFound)
	}
	etag := md5Of(object.data)
	if etag == known {
		return nil, fmt.Errorf("reading %s: %w", key, statefile.ErrUnchanged)
	}
	return &statefile.Object{Key: key, Data: bytes.Clone(object.data), ETag: etag, Modified: object.modified}, nil
}

// Put implements statefile.Store.
func (m *Memory) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if err := check(ctx, key); err != nil {
		return "", err
	}
	if len(data) > statefile.MaxObject {
		return "", fmt.Errorf("writing %s: %w", key, statefile.ErrTooLarge)
	}
	object, there := m.objects[key]
	conflict := cond.Absent() && there || cond.ETag() != "" && (!there || md5Of(object.data) != cond.ETag())
	if conflict && !m.IgnoreConditions {
		return "", fmt.Errorf("writing %s: %w", key, statefile.ErrConflict)
	}
	m.objects[key] = memoryObject{data: bytes.Clone(data), modified: time.Now()}
	return md5Of(data), nil
}

// Delete implements statefile.Store.
func (m *Memory) Delete(ctx context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if err := check(ctx, key); err != nil {
		return err
	}
	delete(m.objects, key)
	return nil
}

// List implements statefile.Store.
func (m *Memory) List(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
	m.mu.Lock()
	m.reads++
	var found []statefile.ObjectInfo
	for _, key := range slices.Sorted(maps.Keys(m.objects)) {
		if strings.HasPrefix(key, prefix) && key > after {
			object := m.objects[key]
			found = append(found, statefile.ObjectInfo{Key: key, Size: int64(len(object.data)), Modified: object.modified})
		}
	}
	m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("listing %s: %w", prefix, err)
	}
	for _, info := range found {
		if err := fn(info); err != nil {
			return err
		}
	}
	return nil
}

// Tamper puts content under a key as someone would who can write the bucket; nil removes it.
func (m *Memory) Tamper(key string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if data == nil {
		delete(m.objects, key)
		return
	}
	m.objects[key] = memoryObject{data: bytes.Clone(data), modified: time.Now()}
}

// Snapshot copies every object.
func (m *Memory) Snapshot() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]byte{}
	for key, object := range m.objects {
		out[key] = bytes.Clone(object.data)
	}
	return out
}

func check(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("using %s: %w", key, err)
	}
	return statefile.CheckKey(key)
}

func md5Of(data []byte) string {
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}
