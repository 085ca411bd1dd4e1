package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// keptSnapshots is how many snapshots the backups of a history keep.
const keptSnapshots = 3

// prefixed is a bucket below a prefix.
type prefixed struct {
	statefile.Store
	prefix string
}

// Location implements statefile.Store.
func (s prefixed) Location() string { return "memory://backups/" + s.prefix }

// Get implements statefile.Store.
func (s prefixed) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	object, err := s.Store.Get(ctx, s.prefix+"/"+key, known)
	if object != nil {
		object.Key = key
	}
	return object, err
}

// Put implements statefile.Store.
func (s prefixed) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	return s.Store.Put(ctx, s.prefix+"/"+key, data, cond)
}

// Delete implements statefile.Store.
func (s prefixed) Delete(ctx context.Context, key string) error {
	return s.Store.Delete(ctx, s.prefix+"/"+key)
}

// List implements statefile.Store.
func (s prefixed) List(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
	start := s.prefix + "/"
	if after != "" {
		after = start + after
	}
	return s.Store.List(ctx, start+prefix, after, func(o statefile.ObjectInfo) error {
		o.Key = o.Key[len(start):]
		return fn(o)
	})
}

// watchedBucket is the bucket of the backups itself: the monitor sees what is stored in it and taken out of it.
type watchedBucket struct {
	statefile.Store
	p *process
	c *cluster
}

// Put implements statefile.Store.
func (s watchedBucket) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	before, _ := s.Store.Get(context.WithoutCancel(ctx), key, "")
	etag, err := s.Store.Put(context.WithoutCancel(ctx), key, data, cond)
	if err == nil {
		w.monitor.stored(s.p, s.c, key, before, data)
	}
	return etag, err
}

// Get implements statefile.Store.
func (s watchedBucket) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	return s.Store.Get(context.WithoutCancel(ctx), key, known)
}

// Delete implements statefile.Store.
func (s watchedBucket) Delete(ctx context.Context, key string) error {
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.monitor.deletes(s.p, s.c, key)
	return s.Store.Delete(context.WithoutCancel(ctx), key)
}

// objects is the bucket of a cluster's backups as nobody sees it but the history itself.
func (c *cluster) objects(w *World) prefixed {
	return prefixed{Store: w.bucket, prefix: c.name}
}

// agentBucket is the bucket of a cluster's backups as a process reaches it.
type agentBucket struct {
	*agentStore
	c *cluster
}

// Location implements statefile.Store.
func (b *agentBucket) Location() string { return b.c.objects(b.p.w).Location() }

// label is what an object was uploaded with. The world's lock is held.
func (c *cluster) label(w *World, key string) map[string]string { return w.labels[c.name+"/"+key] }

// Stat implements backup.Objects.
func (b *agentBucket) Stat(ctx context.Context, key string) (statefile.Stat, error) {
	object, err := b.Get(ctx, key, "")
	if err != nil {
		return statefile.Stat{}, err
	}
	b.p.w.mu.Lock()
	defer b.p.w.mu.Unlock()
	return statefile.Stat{Size: int64(len(object.Data)), ETag: object.ETag, Modified: object.Modified, Metadata: maps.Clone(b.c.label(b.p.w, key))}, nil
}

// Upload implements backup.Objects: as of a bucket, one that has this very content already is one's own.
func (b *agentBucket) Upload(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (statefile.Stat, error) {
	data, err := io.ReadAll(content)
	if err != nil {
		return statefile.Stat{}, err
	}
	b.p.w.mu.Lock()
	if b.c.label(b.p.w, key) == nil {
		b.p.w.labels[b.c.name+"/"+key] = maps.Clone(metadata)
	}
	b.p.w.mu.Unlock()
	if _, err = b.Put(ctx, key, data, statefile.IfAbsent()); err != nil && !errors.Is(err, statefile.ErrConflict) && !errors.Is(err, statefile.ErrUnacknowledged) {
		return statefile.Stat{}, err
	}
	object, problem := b.Get(ctx, key, "")
	switch {
	case problem != nil:
		return statefile.Stat{}, firstOf(err, problem)
	case !bytes.Equal(object.Data, data):
		return statefile.Stat{}, fmt.Errorf("uploading %s: another object stands there: %w", key, statefile.ErrConflict)
	}
	return b.Stat(ctx, key)
}

// Download implements backup.Objects.
func (b *agentBucket) Download(ctx context.Context, key string) (io.ReadCloser, statefile.Stat, error) {
	object, err := b.Get(ctx, key, "")
	if err != nil {
		return nil, statefile.Stat{}, err
	}
	return io.NopCloser(bytes.NewReader(object.Data)), statefile.Stat{Size: int64(len(object.Data)), ETag: object.ETag, Modified: object.Modified}, nil
}

// Remove implements backup.Objects.
func (b *agentBucket) Remove(ctx context.Context, key string) error { return b.Delete(ctx, key) }

// Open implements keeper.Opener.
func (p *process) Open(_ context.Context, _ *schema.Fleet, b *schema.TalosEtcdBackup, owner backup.Owner) (*keeper.Place, error) {
	objects := p.bucketOf(b)
	return &keeper.Place{Destination: backup.NewDestination(objects, objects.c.name, owner), Key: objects.c.name, Close: func() error { return nil }}, nil
}

// bucketOf is the bucket of a backup as this process reaches it.
func (p *process) bucketOf(b *schema.TalosEtcdBackup) *agentBucket {
	c := p.w.cluster(b.Spec.ClusterRef.Name)
	return &agentBucket{agentStore: p.through(watchedBucket{Store: c.objects(p.w), p: p, c: c}, "bucket of "+c.name), c: c}
}
