package statefile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrNoConditions: the store ignores If-Match or If-None-Match, so two agents could overwrite each other's work.
var ErrNoConditions = errors.New("the store does not honour conditional writes")

const probeKey = leasesFolder + "/probe.json"

// probeTries bounds how often the probe starts again because another agent probes at the same time.
const probeTries = 8

// ProbeResult is what a store was seen to do.
type ProbeResult struct {
	// Conditional: it honours conditions.
	Conditional bool
	// Missing are the permissions that it refused, of "read", "write", "list" and "delete".
	Missing []string
	// StoreTime is the store's clock at the time of the probe, to the second; LocalTime this machine's.
	StoreTime, LocalTime time.Time
}

type probeRecord struct {
	SchemaVersion int    `json:"schemaVersion"`
	Nonce         string `json:"nonce"`
}

type probe struct {
	store  Store
	key    string
	result *ProbeResult
	// refusal is the first refusal, in the store's words.
	refusal error
}

// Probe proves that a store honours conditions, by creating twice, by swapping with a stale ETag and by swapping what isn't
// there; and finds out which permission is missing. The error is [ErrNoConditions] (the result says more), [ErrPermission] naming
// what is missing of read, write and list, or why the store could not be asked; a missing right to delete is no error, since an agent
// doesn't need it. It leaves one object, leases/probe.json.
func Probe(ctx context.Context, store Store) (*ProbeResult, error) {
	return ProbeKey(ctx, store, probeKey, "the state's store")
}

// ProbeKey is [Probe] for another store: with the object key, and with what it is for errors.
func ProbeKey(ctx context.Context, store Store, key, what string) (*ProbeResult, error) {
	p := &probe{store: store, key: key, result: &ProbeResult{}}
	for _, step := range []func(context.Context) error{p.list, p.write, p.read, p.remove} {
		if err := step(ctx); err != nil {
			return p.result, fmt.Errorf("trying %s: %w", what, err)
		}
	}
	var needed []string
	for _, missing := range p.result.Missing {
		if missing != "delete" {
			needed = append(needed, missing)
		}
	}
	if len(needed) > 0 {
		return p.result, fmt.Errorf("%s refuses to %s; give these credentials the right to read, write and list: %w",
			what, strings.Join(needed, " and to "), p.refusal)
	}
	return p.result, nil
}

// refused notes a missing permission and says whether that was it.
func (p *probe) refused(err error, permission string) bool {
	if !errors.Is(err, ErrPermission) {
		return false
	}
	if p.refusal == nil {
		p.refusal = err
	}
	p.result.Missing = append(p.result.Missing, permission)
	return true
}

// folder is what the object's key starts with, up to the last slash.
func (p *probe) folder() string { return p.key[:strings.LastIndexByte(p.key, '/')+1] }

func (p *probe) list(ctx context.Context) error {
	enough := errors.New("one object is proof enough")
	err := p.store.List(ctx, p.folder(), "", func(ObjectInfo) error { return enough })
	if errors.Is(err, enough) {
		return nil
	}
	if p.refused(err, "list") {
		return nil
	}
	return err
}

// read reads what write left. Where nothing could be left, a store that may not be listed hides that there is nothing.
func (p *probe) read(ctx context.Context) error {
	_, err := p.store.Get(ctx, p.key, "")
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrPermission) && slices.Contains(p.result.Missing, "write") &&
		slices.Contains(p.result.Missing, "list") {
		return nil
	}
	if p.refused(err, "read") {
		return nil
	}
	return err
}

// write tries the conditions. Another agent may probe at the same time: what it breaks is tried again.
func (p *probe) write(ctx context.Context) error {
	_, _, err := p.put(ctx, p.key, IfAbsent())
	if p.refused(err, "write") {
		return nil
	}
	if err != nil && !errors.Is(err, ErrConflict) {
		return err
	}
	for range probeTries {
		done, err := p.swap(ctx)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s was written by others %d times meanwhile: %w", p.key, probeTries, ErrUnavailable)
}

// swap does one round; done is false when another agent came between.
func (p *probe) swap(ctx context.Context) (done bool, err error) {
	if _, _, err := p.put(ctx, p.key, IfAbsent()); err == nil {
		return true, fmt.Errorf("%w: it created %s although it was there (If-None-Match: *)", ErrNoConditions, p.key)
	} else if !errors.Is(err, ErrConflict) {
		return true, err
	}
	before, err := p.store.Get(ctx, p.key, "")
	if errors.Is(err, ErrPermission) {
		return true, nil // read says so
	}
	if err != nil {
		return true, err
	}
	data, etag, err := p.put(ctx, p.key, IfMatch(before.ETag))
	if errors.Is(err, ErrConflict) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	if _, _, err := p.put(ctx, p.key, IfMatch(before.ETag)); err == nil {
		return true, fmt.Errorf("%w: it replaced %s under a stale ETag (If-Match)", ErrNoConditions, p.key)
	} else if !errors.Is(err, ErrConflict) {
		return true, err
	}
	after, err := p.store.Get(ctx, p.key, "")
	if err != nil {
		return true, err
	}
	if after.ETag != etag || !bytes.Equal(after.Data, data) {
		return false, nil
	}
	p.result.StoreTime, p.result.LocalTime = after.Modified, time.Now()
	return true, p.swapAbsent(ctx, etag)
}

func (p *probe) swapAbsent(ctx context.Context, etag string) error {
	absent := p.folder() + "probe-" + NewNonce() + ".json"
	_, _, err := p.put(ctx, absent, IfMatch(etag))
	if err == nil {
		_ = p.store.Delete(ctx, absent)
		return fmt.Errorf("%w: it made an object that a swap should have found (If-Match)", ErrNoConditions)
	}
	if !errors.Is(err, ErrConflict) {
		return err
	}
	p.result.Conditional = true
	return nil
}

// remove deletes an object that never was, which needs the permission all the same.
func (p *probe) remove(ctx context.Context) error {
	err := p.store.Delete(ctx, p.folder()+"probe-"+NewNonce()+".json")
	if p.refused(err, "delete") {
		return nil
	}
	return err
}

func (p *probe) put(ctx context.Context, key string, cond If) (data []byte, etag string, err error) {
	data, err = json.Marshal(probeRecord{SchemaVersion: SchemaVersion, Nonce: NewNonce()})
	if err != nil {
		return nil, "", err
	}
	etag, err = p.store.Put(ctx, key, data, cond)
	return data, etag, err
}
