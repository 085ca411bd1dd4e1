package statefile

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Times of a lease. A holder is the holder for TTL after the start of its last renewal that succeeded.
const (
	LeaseTTL   = 15 * time.Second
	LeaseRenew = 5 * time.Second
)

// leaseCall bounds one call for a lease, so that a store that hangs leaves time for another try within the TTL.
const leaseCall = 4 * time.Second

// leaseRetry is how soon a renewal that failed is tried again while the lease is still held.
const leaseRetry = time.Second

// MaxShards is how many shards there may be.
const MaxShards = 1024

// LeaseOptions says which lease, and for whom.
type LeaseOptions struct {
	Shard int
	// Holder is the random ID of this process.
	Holder string
	// Clocks are this machine's; nil is the system's.
	Clocks Clocks
	// Clock is what Run waits by; nil is the system's.
	Clock clock.WithTicker
}

// Lease is one agent's view of the lease of a shard. It is safe for concurrent use.
//
// A lease spreads the work over agents and makes a fail-over quick. It fences nothing: two agents may both believe for a moment
// that they hold it, and the writer in each state decides.
type Lease struct {
	store Store
	opts  LeaseOptions
	key   string

	ticking sync.Mutex // one Tick, or Release, at a time

	mu sync.Mutex
	// What was last read or written.
	record *leaseRecord
	etag   string
	// mine says that the record is this process's own; renewed is when the last renewal that succeeded was started.
	mine    bool
	renewed Instant
	// firstSeen is when a record of another was first seen as it is.
	firstSeen Instant
	problem   string
}

// LeaseStatus is what is known of a lease.
type LeaseStatus struct {
	Held bool
	// Holder and Token are those of the record that was last read or written. An empty holder: it was released.
	Holder string
	// Token grows with each change of the holder.
	Token uint64
	// Problem is why the last try failed, or empty.
	Problem string
}

// leaseRecord is the content of leases/<shard>.json. It isn't sealed: a lease belongs to no cluster.
type leaseRecord struct {
	SchemaVersion int    `json:"schemaVersion"`
	Shard         int    `json:"shard"`
	Holder        string `json:"holder"`
	Token         uint64 `json:"token"`
	Generation    uint64 `json:"generation"`
	Nonce         string `json:"nonce"`
	// RenewedAt is the holder's wall clock, for people. Nothing compares it.
	RenewedAt time.Time `json:"renewedAt"`
}

// NewLease makes a view; it reads nothing yet.
func NewLease(store Store, opts LeaseOptions) (*Lease, error) {
	if opts.Shard < 0 || opts.Shard >= MaxShards || opts.Holder == "" {
		return nil, fmt.Errorf("a lease needs a shard from 0 to %d and a holder; got shard %d", MaxShards-1, opts.Shard)
	}
	if opts.Clocks == nil {
		opts.Clocks = SystemClocks()
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	return &Lease{store: store, opts: opts, key: leaseKey(opts.Shard)}, nil
}

func leaseKey(shard int) string { return fmt.Sprintf("%s/%d.json", leasesFolder, shard) }

// Age is how long ago the last renewal that succeeded was started, by the clock that says most. ok is false when the lease is
// not held, or was held for TTL without a renewal.
func (l *Lease) Age() (age time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.age()
}

func (l *Lease) age() (time.Duration, bool) {
	if !l.mine {
		return 0, false
	}
	age := l.opts.Clocks.Now().Since(l.renewed)
	return age, age < LeaseTTL
}

// Status says what is known.
func (l *Lease) Status() LeaseStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	status := LeaseStatus{Problem: l.problem}
	_, status.Held = l.age()
	if l.record != nil {
		status.Holder, status.Token = l.record.Holder, l.record.Token
	}
	return status
}

// Tick renews the lease, or looks at it and takes it when it is free or its record has not changed for a whole TTL of this machine's
// clock. It says how long to wait until the next Tick. An error is also in the status; what was held stays held until its TTL.
func (l *Lease) Tick(ctx context.Context) (time.Duration, error) {
	l.ticking.Lock()
	defer l.ticking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, leaseCall)
	defer cancel()
	start := l.opts.Clocks.Now()
	err := l.tick(ctx, start)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problem = ""
	if err != nil {
		l.problem = err.Error()
	}
	next := LeaseRenew
	if _, held := l.age(); held && err != nil {
		next = leaseRetry // a store that was away for a moment must not cost the lease
	}
	if !l.mine && l.record != nil && l.record.Holder != "" {
		next = min(next, LeaseTTL-waited(l.opts.Clocks.Now(), l.firstSeen))
	}
	spent := l.opts.Clocks.Now().Monotonic - start.Monotonic
	return max(next-spent, 100*time.Millisecond), err
}

// waited is how long a challenger has waited. The clock that says least counts: a wall clock that is set must not take a lease.
func waited(now, since Instant) time.Duration {
	return max(min(now.Monotonic-since.Monotonic, now.Boot-since.Boot), 0)
}

func (l *Lease) tick(ctx context.Context, start Instant) error {
	if l.mine {
		return l.renew(ctx, start)
	}
	changed, err := l.look(ctx)
	if err != nil {
		return err
	}
	switch {
	case l.record == nil:
		return l.take(ctx, start, 1, IfAbsent())
	case l.record.Holder == "":
		return l.take(ctx, start, l.record.Token+1, IfMatch(l.etag))
	case !changed && waited(start, l.firstSeen) >= LeaseTTL:
		return l.take(ctx, start, l.record.Token+1, IfMatch(l.etag))
	}
	return nil
}

// look reads the record and says whether it is another one than was seen before.
func (l *Lease) look(ctx context.Context) (changed bool, err error) {
	object, err := l.store.Get(ctx, l.key, l.etag)
	switch {
	case errors.Is(err, ErrUnchanged):
		return false, nil
	case errors.Is(err, ErrNotFound):
		l.set(nil, "", false)
		return true, nil
	case err != nil:
		return false, fmt.Errorf("looking at the lease of shard %d: %w", l.opts.Shard, err)
	}
	record, err := decodeLease(l.key, object.Data)
	if err != nil {
		return false, err
	}
	l.set(record, object.ETag, false)
	return true, nil
}

// set takes a record as what was last seen.
func (l *Lease) set(record *leaseRecord, etag string, mine bool) {
	now := l.opts.Clocks.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record, l.etag, l.mine, l.firstSeen = record, etag, mine, now
}

func (l *Lease) renew(ctx context.Context, start Instant) error {
	err := l.write(ctx, start, l.opts.Holder, l.record.Token, IfMatch(l.etag))
	if errors.Is(err, errLostRace) && l.mine {
		// What stands there is an earlier renewal of this process that came late.
		err = l.write(ctx, start, l.opts.Holder, l.record.Token, IfMatch(l.etag))
	}
	if errors.Is(err, errLostRace) {
		return fmt.Errorf("the lease of shard %d was lost: %w", l.opts.Shard, ErrConflict)
	}
	return err
}

func (l *Lease) take(ctx context.Context, start Instant, token uint64, cond If) error {
	err := l.write(ctx, start, l.opts.Holder, token, cond)
	if errors.Is(err, errLostRace) {
		return nil // another was first, which is as good
	}
	return err
}

// write writes a record and finds out what became of it. On errLostRace the record that stands there instead was taken over.
func (l *Lease) write(ctx context.Context, start Instant, holder string, token uint64, cond If) error {
	record := &leaseRecord{
		SchemaVersion: SchemaVersion, Shard: l.opts.Shard, Holder: holder, Token: token, Generation: 1,
		Nonce: NewNonce(), RenewedAt: start.Wall.UTC(),
	}
	if l.record != nil {
		record.Generation = l.record.Generation + 1
	}
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encoding the lease of shard %d: %w", l.opts.Shard, err)
	}
	etag, err := l.store.Put(ctx, l.key, append(data, '\n'), cond)
	if err == nil {
		l.wrote(record, etag, start)
		return nil
	}
	if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnacknowledged) {
		return fmt.Errorf("writing the lease of shard %d: %w", l.opts.Shard, err)
	}
	cause := err
	object, err := l.store.Get(ctx, l.key, "")
	if errors.Is(err, ErrNotFound) {
		l.set(nil, "", false)
		return errLostRace
	}
	if err != nil {
		return fmt.Errorf("writing the lease of shard %d: %w (reading it back: %w)", l.opts.Shard, cause, err)
	}
	there, err := decodeLease(l.key, object.Data)
	switch {
	case err != nil:
		l.set(nil, "", false)
		return err
	case there.Nonce == record.Nonce:
		l.wrote(record, object.ETag, start)
		return nil
	case l.record != nil && there.Nonce == l.record.Nonce:
		return fmt.Errorf("writing the lease of shard %d: %w", l.opts.Shard, cause) // not there, and may come yet
	}
	// One's own earlier renewal may stand there: then the lease is held since the one before, which is older.
	l.set(there, object.ETag, l.mine && there.Holder == l.opts.Holder && there.Token == token)
	return errLostRace
}

func (l *Lease) wrote(record *leaseRecord, etag string, start Instant) {
	l.set(record, etag, record.Holder != "")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed = start
}

// Release gives the lease back, so that another takes it at once. Only call it when no call to a node is open. It is no error
// that the lease isn't held.
func (l *Lease) Release(ctx context.Context) error {
	l.ticking.Lock()
	defer l.ticking.Unlock()
	if !l.mine {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaseCall)
	defer cancel()
	err := l.write(ctx, l.opts.Clocks.Now(), "", l.record.Token, IfMatch(l.etag))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mine = false
	if err != nil && !errors.Is(err, errLostRace) {
		return fmt.Errorf("giving the lease back, which then ends by itself in %s: %w", LeaseTTL, err)
	}
	return nil
}

// Run ticks until the context ends, and then returns nil. It calls changed, if not nil, after each Tick that changed whether or under
// which token the lease is held. It does not release.
func (l *Lease) Run(ctx context.Context, changed func(LeaseStatus)) error {
	var before LeaseStatus
	for {
		next, _ := l.Tick(ctx) // the status says what went wrong
		after := l.Status()
		if changed != nil && (after.Held != before.Held || after.Token != before.Token) {
			changed(after)
		}
		before = after
		timer := l.opts.Clock.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// ReadLease reads a lease's record for showing it. [ErrNotFound]: nobody ever took it.
func ReadLease(ctx context.Context, store Store, shard int) (*LeaseStatus, error) {
	object, err := store.Get(ctx, leaseKey(shard), "")
	if err != nil {
		return nil, fmt.Errorf("looking at the lease of shard %d: %w", shard, err)
	}
	record, err := decodeLease(object.Key, object.Data)
	if err != nil {
		return nil, err
	}
	return &LeaseStatus{Held: record.Holder != "", Holder: record.Holder, Token: record.Token}, nil
}

func decodeLease(key string, data []byte) (*leaseRecord, error) {
	var record leaseRecord
	if err := decodeVersioned(key, data, &record); err != nil {
		return nil, err
	}
	if key != leaseKey(record.Shard) || record.Nonce == "" {
		return nil, fmt.Errorf("%s is not the lease of its shard; remove it when no agent runs", key)
	}
	return &record, nil
}

// decodeVersioned decodes an object that isn't sealed and has a schemaVersion of its own.
func decodeVersioned(key string, data []byte, into any) error {
	var version struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return fmt.Errorf("%s can't be read (%w); remove it when no agent runs", key, err)
	}
	if version.SchemaVersion > SchemaVersion {
		return fmt.Errorf("%s has schemaVersion %d: %w; this one knows %d", key, version.SchemaVersion, ErrNewerSchema, SchemaVersion)
	}
	if err := decodeStrict(data, into); err != nil {
		return fmt.Errorf("%s can't be read (%w); remove it when no agent runs", key, err)
	}
	return nil
}

// shardsRecord is the content of leases/shards.json, which is made once.
type shardsRecord struct {
	SchemaVersion int `json:"schemaVersion"`
	Shards        int `json:"shards"`
}

const shardsKey = leasesFolder + "/shards.json"

// AgreeShards makes leases/shards.json with this number of shards, or checks that it has this number. Agents with different
// numbers would each take some cluster for theirs.
func AgreeShards(ctx context.Context, store Store, shards int) error {
	if shards < 1 || shards > MaxShards {
		return fmt.Errorf("the number of shards must be 1 to %d, and is %d (--shards)", MaxShards, shards)
	}
	there, err := ReadShards(ctx, store)
	if errors.Is(err, ErrNotFound) {
		data, err := json.Marshal(shardsRecord{SchemaVersion: SchemaVersion, Shards: shards})
		if err != nil {
			return fmt.Errorf("encoding the number of shards: %w", err)
		}
		_, err = store.Put(ctx, shardsKey, append(data, '\n'), IfAbsent())
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnacknowledged) {
			return fmt.Errorf("recording the number of shards: %w", err)
		}
		if there, err = ReadShards(ctx, store); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if there != shards {
		return fmt.Errorf("this state has %d shards, and --shards says %d; start with --shards %d, or stop every agent and remove %s to change it",
			there, shards, there, shardsKey)
	}
	return nil
}

func ReadShards(ctx context.Context, store Store) (int, error) {
	object, err := store.Get(ctx, shardsKey, "")
	if err != nil {
		return 0, fmt.Errorf("reading the number of shards: %w", err)
	}
	var record shardsRecord
	if err := decodeVersioned(shardsKey, object.Data, &record); err != nil {
		return 0, err
	}
	if record.Shards < 1 || record.Shards > MaxShards {
		return 0, fmt.Errorf("%s says %d shards, and 1 to %d are possible; remove it when no agent runs", shardsKey, record.Shards, MaxShards)
	}
	return record.Shards, nil
}

// ShardOf is the shard of a cluster: the first 8 bytes of SHA-256(name) as a big-endian number, modulo the number of shards.
func ShardOf(cluster string, shards int) int {
	sum := sha256.Sum256([]byte(cluster))
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(max(shards, 1)))
}
