package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"ichor.maesh.dev/statefile"
)

// MarkerDone is the phase of a marker whose restore has ended. Every marker's content is a JSON object with a field "phase".
const MarkerDone = "done"

// Marker is the handle on a restore's marker: one sealed object, swapped by whoever drives the restore, and kept for ever. It is for one
// goroutine.
type Marker struct {
	store  statefile.Store
	sealer *statefile.Sealer
	// sealedKey is the key that the seal covers.
	sealedKey string

	read   bool
	record *statefile.Record // nil: there is none
	etag   string
}

// Marker gives the handle on the marker beside the snapshots. It sends nothing.
func (d *Destination) Marker() *Marker {
	return &Marker{store: d.objects, sealer: d.sealer, sealedKey: d.sealedKey(MarkerKey)}
}

// NewMarker gives the handle on a marker that stands alone in a store, where a cluster has no bucket. It sends nothing.
func NewMarker(store statefile.Store, sealer *statefile.Sealer) *Marker {
	return &Marker{store: store, sealer: sealer, sealedKey: MarkerKey}
}

// Location says where the marker is, without credentials.
func (m *Marker) Location() string { return m.store.Location() + "/" + MarkerKey }

// Read gives the marker's content, nil where there is none. Errors: [*statefile.StateForgedError], [statefile.ErrNewerSchema], those of the
// store.
func (m *Marker) Read(ctx context.Context) (json.RawMessage, error) {
	m.read = false
	object, err := m.store.Get(ctx, MarkerKey, "")
	if errors.Is(err, statefile.ErrNotFound) {
		m.read, m.record, m.etag = true, nil, ""
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the restore's marker: %w", err)
	}
	record, err := statefile.DecodeRecord(m.sealer, m.sealedKey, object.Data)
	if err != nil {
		return nil, fmt.Errorf("reading the restore's marker: %w", err)
	}
	m.read, m.record, m.etag = true, record, object.ETag
	return record.Content, nil
}

// Swap replaces what [Marker.Read] or Swap last showed; a marker that wasn't there then is made. A nil error means that this content is, or
// was, there. Errors: [statefile.ErrConflict] when another wrote it meanwhile; [statefile.ErrUnacknowledged] when it may be written, or be
// written yet; those of the store. After any error it must be read before it is swapped again.
func (m *Marker) Swap(ctx context.Context, content json.RawMessage) error {
	if !m.read {
		return errors.New("the restore's marker is swapped without having been read")
	}
	m.read = false
	generation, condition := uint64(1), statefile.IfAbsent()
	if m.record != nil {
		generation, condition = m.record.Generation+1, statefile.IfMatch(m.etag)
	}
	nonce := statefile.NewNonce()
	data, err := statefile.EncodeRecord(m.sealer, m.sealedKey, generation, nonce, content)
	if err != nil {
		return err
	}
	etag, err := m.store.Put(ctx, MarkerKey, data, condition)
	if err == nil {
		m.read, m.etag = true, etag
		m.record = &statefile.Record{Key: m.sealedKey, Generation: generation, Nonce: nonce, Content: content, Checked: true}
		return nil
	}
	if !errors.Is(err, statefile.ErrConflict) && !errors.Is(err, statefile.ErrUnacknowledged) {
		return fmt.Errorf("writing the restore's marker: %w", err)
	}
	// Only a record with this very write's nonce is it.
	if now, readErr := m.Read(ctx); readErr == nil && now != nil && m.record.Nonce == nonce && bytes.Equal(now, content) {
		return nil
	}
	m.read = false
	return fmt.Errorf("writing the restore's marker: %w", err)
}

// ended says whether a marker's content is of a restore that has ended.
func ended(content json.RawMessage) bool {
	var marker struct {
		Phase string `json:"phase"`
	}
	return json.Unmarshal(content, &marker) == nil && marker.Phase == MarkerDone
}
