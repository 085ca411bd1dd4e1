package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/statefile"
)

const (
	// indexKey is the object that lists the snapshots of a destination. Only what it lists was stored by someone who holds the bundle:
	// every node of the cluster can compute the passphrase.
	indexKey = "etcd-index.json"
	// indexVersion is the version of its content.
	indexVersion = 1
	// indexRaces bounds how often a swap that others win is tried again.
	indexRaces = 10
)

// errIndex: the index was read, and is of no use here.
var errIndex = errors.New("the index can't be used")

// index is the content of etcd-index.json.
type index struct {
	SchemaVersion int    `json:"schemaVersion"`
	ClusterID     string `json:"clusterID"`
	// Snapshots are in the order of their names.
	Snapshots []Snapshot `json:"snapshots"`
}

func (i *index) find(name string) *Snapshot {
	at, found := slices.BinarySearchFunc(i.Snapshots, name, func(s Snapshot, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return nil
	}
	return &i.Snapshots[at]
}

// newest is the newest listed name, empty when there is none.
func (i *index) newest() string {
	if len(i.Snapshots) == 0 {
		return ""
	}
	return i.Snapshots[len(i.Snapshots)-1].Name
}

func (i *index) add(s Snapshot) {
	at, found := slices.BinarySearchFunc(i.Snapshots, s.Name, func(have Snapshot, name string) int { return strings.Compare(have.Name, name) })
	if found {
		i.Snapshots[at] = s
		return
	}
	i.Snapshots = slices.Insert(i.Snapshots, at, s)
}

func (i *index) drop(name string) {
	i.Snapshots = slices.DeleteFunc(i.Snapshots, func(s Snapshot) bool { return s.Name == name })
}

// indexAt is an index as it was read.
type indexAt struct {
	index
	record *statefile.Record // nil: there is none yet
	etag   string
}

// readIndex reads and checks the index: one with a wrong seal is a [*statefile.StateForgedError].
func (d *Destination) readIndex(ctx context.Context) (*indexAt, error) {
	object, err := d.objects.Get(ctx, indexKey, "")
	if errors.Is(err, statefile.ErrNotFound) {
		return &indexAt{index: index{SchemaVersion: indexVersion, ClusterID: d.clusterID}}, nil
	}
	if err != nil {
		return nil, err
	}
	record, err := statefile.DecodeRecord(d.sealer, d.sealedKey(indexKey), object.Data)
	if err != nil {
		return nil, err
	}
	k := &indexAt{record: record, etag: object.ETag}
	if err := decodeIndex(record.Content, &k.index); err != nil {
		return nil, fmt.Errorf("reading %s: %w: %w", indexKey, errIndex, err)
	}
	if k.ClusterID != d.clusterID {
		return nil, fmt.Errorf("%w: %s lists snapshots of the cluster with the ID %.40q, not of %s: two clusters must not share a prefix; give this "+
			"backup one of its own", errIndex, indexKey, k.ClusterID, d.clusterID)
	}
	return k, nil
}

func decodeIndex(content []byte, into *index) error {
	var probe struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	if err := json.Unmarshal(content, &probe); err != nil {
		return err
	}
	if probe.SchemaVersion > indexVersion {
		return fmt.Errorf("it has the version %d: %w; this one knows %d", probe.SchemaVersion, statefile.ErrNewerSchema, indexVersion)
	}
	decoder := json.NewDecoder(strings.NewReader(string(content)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	slices.SortFunc(into.Snapshots, func(a, b Snapshot) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// swapIndex changes the index by compare-and-swap. Change is called again with what stands there when another write came first.
func (d *Destination) swapIndex(ctx context.Context, change func(*index) error) error {
	for range indexRaces {
		have, err := d.readIndex(ctx)
		if err != nil {
			return err
		}
		before, err := json.Marshal(have.index)
		if err != nil {
			return fmt.Errorf("writing %s: %w", indexKey, err)
		}
		next := have.index
		next.Snapshots = slices.Clone(have.Snapshots)
		if err := change(&next); err != nil {
			return err
		}
		content, err := json.Marshal(next)
		if err != nil {
			return fmt.Errorf("writing %s: %w", indexKey, err)
		}
		if have.record != nil && string(before) == string(content) {
			return nil
		}
		done, err := d.writeIndex(ctx, have, content)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("writing %s: others wrote it %d times meanwhile: %w", indexKey, indexRaces, statefile.ErrConflict)
}

// writeIndex makes one write; done is false when another came first. After a write that got no answer, only a read that shows its
// own nonce tells that it was done.
func (d *Destination) writeIndex(ctx context.Context, have *indexAt, content []byte) (done bool, err error) {
	generation, condition := uint64(1), statefile.IfAbsent()
	if have.record != nil {
		generation, condition = have.record.Generation+1, statefile.IfMatch(have.etag)
	}
	nonce := statefile.NewNonce()
	data, err := statefile.EncodeRecord(d.sealer, d.sealedKey(indexKey), generation, nonce, content)
	if err != nil {
		return false, err
	}
	_, err = d.objects.Put(ctx, indexKey, data, condition)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, statefile.ErrConflict) && !errors.Is(err, statefile.ErrUnacknowledged) {
		return false, err
	}
	now, readErr := d.readIndex(ctx)
	switch {
	case readErr != nil:
		return false, fmt.Errorf("%w; and it could not be read back: %w", err, readErr)
	case now.record != nil && now.record.Nonce == nonce:
		return true, nil
	case errors.Is(err, statefile.ErrUnacknowledged) && sameRecord(have.record, now.record):
		return false, err // not there, and may come yet
	}
	return false, nil
}

func sameRecord(a, b *statefile.Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Nonce == b.Nonce
}
