package statefile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"

	"k8s.io/utils/clock"
)

// Errors of a [Cluster] that stop the work for it.
var (
	// ErrOtherWriter: another agent wrote itself into the state. Who finds that stops, and never continues with what it knew.
	ErrOtherWriter = errors.New("another agent is the writer of this state now")
	// ErrNotWriter: neither TakeOver nor Create made this process the writer.
	ErrNotWriter = errors.New("this process is not the writer of this state")
)

// maxRaces bounds how often a lost race is run again. Only a take-over, an acceptance and one's own late write are ever raced against.
const maxRaces = 8

// leasesFolder is the folder beside the clusters' that is none of a cluster.
const leasesFolder = "leases"

var clusterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Options says which state a [Cluster] is a handle on, and with what.
type Options struct {
	// Name is the cluster's.
	Name string
	// Sealer seals and checks. Nil: the state can be shown and not written.
	Sealer *Sealer
	// WriterID is the random ID of this process (NewNonce makes one).
	WriterID string
	// CacheDir is where the highest generation that was seen is kept. Empty: it is kept in memory only.
	CacheDir string
	// Clock gives the time for Latest and for audit events; nil is the system's.
	Clock clock.PassiveClock
}

// Cluster is the handle on one cluster's state. It is safe for concurrent use; its calls run one at a time.
type Cluster struct {
	store Store
	opts  Options
	key   string

	// turn holds an element while a call is under way: who waits for its turn waits no longer than its context.
	turn  chan struct{}
	water *highWater
	// What was last read or written. A nil record: there was none, or nothing was read yet.
	etag    string
	record  *Record
	state   *State
	content []byte // the state as it would be written if nothing changed
	// writer is what this process is in the state as long as it is the writer, else the zero Writer.
	writer Writer
	// lost says that another writer was found.
	lost error
	// flushed is the last event that is known to be an object.
	flushed uint64
	// stop is what was found after a write that succeeded; the next call returns it.
	stop error
	// shown is what Known, Checked and IsWriter say while a call is under way.
	shown atomic.Pointer[shown]
}

type shown struct {
	content    []byte
	generation uint64
	checked    bool
}

// OpenCluster makes the handle; it reads nothing from the store.
func OpenCluster(store Store, opts Options) (*Cluster, error) {
	if !clusterName.MatchString(opts.Name) || opts.Name == leasesFolder {
		return nil, fmt.Errorf("%.80q can't be the name of a cluster's state: names are RFC 1123 labels other than %q", opts.Name, leasesFolder)
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	water, err := openHighWater(opts.CacheDir, LocationHash(store), opts.Name)
	if err != nil {
		return nil, err
	}
	return &Cluster{store: store, opts: opts, key: stateKey(opts.Name), water: water, turn: make(chan struct{}, 1)}, nil
}

// enter waits until no other call is under way. Whoever came in leaves; an error says that nothing was done, since ctx ended before.
func (c *Cluster) enter(ctx context.Context) (leave func(), err error) {
	leave = func() { <-c.turn }
	select {
	case c.turn <- struct{}{}:
		return leave, nil
	default:
	}
	select {
	case c.turn <- struct{}{}:
		return leave, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for another call on the state of %s: %w", c.opts.Name, ctx.Err())
	}
}

func stateKey(cluster string) string { return cluster + "/state.json" }

// Load reads the state (cheaply when it has not changed) and returns a copy. Errors: [ErrNotFound], [*StateForgedError],
// [*StateRolledBackError], [ErrNewerSchema], [ErrUnavailable], [ErrPermission].
func (c *Cluster) Load(ctx context.Context) (*State, error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := c.read(ctx); err != nil {
		return nil, err
	}
	return c.copyState()
}

// Known is a copy of the state as it was last read or written by this handle, and its generation; nil when it never was, or could
// not be believed. It waits for no call.
func (c *Cluster) Known() (*State, uint64) {
	shown := c.shown.Load()
	if shown == nil {
		return nil, 0
	}
	var state State
	if json.Unmarshal(shown.content, &state) != nil {
		return nil, 0
	}
	return &state, shown.generation
}

// Checked says whether the seal of what was last read was checked. False without a Sealer: "seal not checked".
func (c *Cluster) Checked() bool {
	shown := c.shown.Load()
	return shown != nil && shown.checked
}

// IsWriter says whether this process was the writer when the state was last read or written.
func (c *Cluster) IsWriter() bool {
	leave, _ := c.enter(context.Background())
	defer leave()
	return c.writer.ID != ""
}

// Traces names what speaks of a past of this cluster: objects in its folder of the store (state, audit, inbox; the first few), or a
// generation that this machine's cache remembers. Empty: nothing does.
func (c *Cluster) Traces(ctx context.Context) ([]string, error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var traces []string
	if c.water.generation > 0 {
		traces = append(traces, fmt.Sprintf("this machine's cache remembers a state of generation %d", c.water.generation))
	}
	const enough = 10
	err = c.store.List(ctx, c.opts.Name+"/", "", func(info ObjectInfo) error {
		traces = append(traces, "the state's store holds "+info.Key)
		if len(traces) >= enough {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("looking for what is left of %s: %w", c.opts.Name, err)
	}
	return traces, nil
}

// read brings what is known up to the store's state. Nothing is known after an error.
func (c *Cluster) read(ctx context.Context) error {
	if err := c.water.retry(); err != nil {
		return err
	}
	object, err := c.store.Get(ctx, c.key, c.etag)
	switch {
	case errors.Is(err, ErrUnchanged) && c.record != nil:
		return c.stop
	case errors.Is(err, ErrNotFound):
		c.forget()
		return fmt.Errorf("the state of %s: %w", c.opts.Name, err)
	case err != nil:
		return fmt.Errorf("the state of %s: %w", c.opts.Name, err)
	}
	record, state, err := decodeState(c.opts.Sealer, c.key, object.Data)
	if err == nil {
		err = c.water.check(record)
	}
	if err != nil {
		c.forget()
		return err
	}
	c.stop = nil
	if err := c.adopt(record, state, object.ETag); err != nil {
		return err
	}
	return c.water.raise(record)
}

// forget drops what is known, after which nothing is written before a read.
func (c *Cluster) forget() {
	c.etag, c.record, c.state, c.content = "", nil, nil, nil
	c.shown.Store(nil)
}

// know takes a record as what is known.
func (c *Cluster) know(record *Record, state *State, content []byte, etag string) {
	c.etag, c.record, c.state, c.content = etag, record, state, content
	c.shown.Store(&shown{content: content, generation: record.Generation, checked: record.Checked})
}

// adopt takes a record that was read as what is known, and finds out whether this process is the writer still.
func (c *Cluster) adopt(record *Record, state *State, etag string) error {
	content, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encoding the state of %s: %w", c.opts.Name, err)
	}
	c.know(record, state, content, etag)
	// Which of another's events are objects isn't known; creating one again does no harm.
	c.flushed = state.Audit.Sequence - min(state.Audit.Sequence, uint64(len(state.Audit.Pending)))
	if c.writer.ID != "" && (state.Writer.ID != c.writer.ID || state.Writer.Epoch != c.writer.Epoch) {
		c.lost = fmt.Errorf("the state of %s: %w (%.64q, writer number %d); this process was number %d",
			c.opts.Name, ErrOtherWriter, state.Writer.ID, state.Writer.Epoch, c.writer.Epoch)
		c.writer = Writer{}
	}
	return nil
}

func (c *Cluster) copyState() (*State, error) {
	var state State
	if err := json.Unmarshal(c.content, &state); err != nil {
		return nil, fmt.Errorf("copying the state of %s: %w", c.opts.Name, err)
	}
	return &state, nil
}

// What a state may hold that is read without its seal, which may be anybody's: an empty entry of three bytes becomes a kilobyte in memory. The
// largest of an agent's holds a tenth of it.
const (
	mostEntries = 20_000
	mostFields  = 1_000_000
)

// decodeState opens the object of a state.
func decodeState(sealer *Sealer, key string, data []byte) (*Record, *State, error) {
	record, err := DecodeRecord(sealer, key, data)
	if err != nil {
		return nil, nil, err
	}
	if !record.Checked && (bytes.Count(record.Content, []byte("{")) > mostEntries || bytes.Count(record.Content, []byte(",")) > mostFields) {
		return nil, nil, fmt.Errorf("%s holds more than any state does, and is not read without its seal (at most %d entries)", key, mostEntries)
	}
	var version struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	if err := json.Unmarshal(record.Content, &version); err != nil {
		return nil, nil, fmt.Errorf("%s holds no state: %w", key, err)
	}
	switch {
	case version.SchemaVersion > SchemaVersion:
		return nil, nil, fmt.Errorf("%s has schemaVersion %d: %w; this one knows %d, and leaves it as it is",
			key, version.SchemaVersion, ErrNewerSchema, SchemaVersion)
	case version.SchemaVersion < 1:
		return nil, nil, fmt.Errorf("%s holds no state: its schemaVersion is %d", key, version.SchemaVersion)
	}
	var state State
	if err := decodeStrict(record.Content, &state); err != nil {
		// A field that is not known here would be lost by rewriting, and with it what it protects.
		return nil, nil, fmt.Errorf("%s holds what this ichor does not know (%w): %w", key, err, ErrNewerSchema)
	}
	if hole := state.hole(); hole != "" {
		return nil, nil, fmt.Errorf("%s holds no state that an agent wrote: there is nothing where %s should be", key, hole)
	}
	return record, &state, nil
}
