package soak

import (
	"context"
	"io"
	"slices"
	"strings"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// spoiledBucket is a bucket of backups in which other things are done than were asked for.
type spoiledBucket struct {
	*agentBucket
	remove func(b *agentBucket, key string) string
	// uploads and puts come after what was uploaded or put.
	uploads func(ctx context.Context, b *agentBucket, key string)
	puts    func(ctx context.Context, b *agentBucket, key string)
	// lost says that nothing is stored of what is uploaded.
	lost bool
}

// Remove implements backup.Objects.
func (b spoiledBucket) Remove(ctx context.Context, key string) error {
	if b.remove != nil {
		key = b.remove(b.agentBucket, key)
	}
	return b.agentBucket.Remove(ctx, key)
}

// Put implements statefile.Store.
func (b spoiledBucket) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	etag, err := b.agentBucket.Put(ctx, key, data, cond)
	if err == nil && b.puts != nil {
		b.puts(ctx, b.agentBucket, key)
	}
	return etag, err
}

// Upload implements backup.Objects.
func (b spoiledBucket) Upload(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (statefile.Stat, error) {
	stat, err := b.agentBucket.Upload(ctx, key, content, metadata)
	if err == nil && b.uploads != nil {
		b.uploads(ctx, b.agentBucket, key)
	}
	if err == nil && b.lost && snapshotName.MatchString(key) {
		b.p.w.bucket.Tamper(b.c.name+"/"+key, nil)
	}
	return stat, err
}

// bucketOpener opens such buckets.
type bucketOpener struct {
	p     *process
	spoil spoiledBucket
}

// Open implements keeper.Opener.
func (o bucketOpener) Open(ctx context.Context, fleet *schema.Fleet, b *schema.TalosEtcdBackup, owner backup.Owner) (*keeper.Place, error) {
	place, err := o.p.Open(ctx, fleet, b, owner)
	if err != nil {
		return nil, err
	}
	bucket := o.spoil
	bucket.agentBucket = o.p.bucketOf(b)
	place.Destination = backup.NewDestination(bucket, place.Key, owner)
	return place, nil
}

// bucket is a sabotage of the buckets.
func bucket(spoil spoiledBucket) sabotage {
	return sabotage{spoil: func(p *process, c *reconcile.Config) { c.Backups.Opener = bucketOpener{p, spoil} }}
}

// newest is the newest snapshot but n in a bucket.
func newest(b *agentBucket, n int) string {
	b.p.w.mu.Lock()
	defer b.p.w.mu.Unlock()
	names := b.c.snapshots(b.p.w)
	slices.Sort(names)
	return names[max(0, len(names)-1-n)]
}

func brokenBackups() []faulty {
	backups, idle := Options{Restores: true}, []event{saying((*run).idle)}
	with := func(more func(*run) bool) []event { return []event{saying((*run).idle), saying(more)} }
	begun := func(what func(ctx context.Context, b *agentBucket)) spoiledBucket {
		return spoiledBucket{puts: func(ctx context.Context, b *agentBucket, key string) {
			if key == backup.MarkerKey {
				what(ctx, b)
			}
		}}
	}
	return []faulty{
		{name: "the newest snapshot is pruned in place of the oldest", reports: "of the 3 that are kept", options: backups, events: idle,
			sabotage: bucket(spoiledBucket{remove: func(b *agentBucket, key string) string {
				if !snapshotName.MatchString(key) {
					return key
				}
				return newest(b, 0)
			}})},
		{name: "what somebody put beside the snapshots is pruned", reports: "which is nothing that it stored", options: backups, events: with((*run).foreignObject),
			sabotage: bucket(spoiledBucket{remove: func(_ *agentBucket, key string) string {
				if !snapshotName.MatchString(key) {
					return key
				}
				return "notes-1.txt"
			}})},
		{name: "a snapshot is replaced by the next one", reports: "replaced etcd-", options: backups, events: idle,
			sabotage: bucket(spoiledBucket{uploads: func(ctx context.Context, b *agentBucket, key string) {
				if before := newest(b, 1); before != key && snapshotName.MatchString(key) {
					_, _ = b.Put(ctx, before, []byte("another"), statefile.If{})
				}
			}})},
		{name: "a snapshot is listed and was not stored", reports: "the bucket of prod misses", options: backups, events: idle, sabotage: bucket(spoiledBucket{lost: true}), from: 105},
		{name: "a snapshot is pruned during a restore", reports: "while a restore is under way", options: backups, events: with((*run).signRestore),
			sabotage: bucket(begun(func(ctx context.Context, b *agentBucket) { _ = b.Remove(ctx, newest(b, 100)) }))},
		{name: "the copy goes that a restore rests on", reports: "on which the restore under way rests", options: backups, events: with((*run).signRestore),
			sabotage: bucket(begun(func(ctx context.Context, b *agentBucket) {
				_ = b.List(ctx, "etcd-restore.", "", func(o statefile.ObjectInfo) error {
					if strings.HasSuffix(o.Key, ".age") {
						_ = b.Remove(ctx, o.Key)
					}
					return nil
				})
			}))},
	}
}
