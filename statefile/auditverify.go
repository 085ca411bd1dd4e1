package statefile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// verifyParallel is how many events are read at once.
const verifyParallel = 8

// AuditReport is what VerifyAudit found.
type AuditReport struct {
	// Events are those that could be read, in order.
	Events []Event
	// Waiting is how many of them are in the state only, their objects not yet written.
	Waiting int
	// Checked says that seals were checked; without a Sealer they are not.
	Checked bool
	// Problems are sentences; none means that the chain is whole from its first event to the one that the state names.
	Problems []string
}

// VerifyAudit reads a cluster's audit and its state, and says what is missing, changed, out of order or not sealed. The error is why
// it could not be looked at.
func VerifyAudit(ctx context.Context, store Store, sealer *Sealer, cluster string) (*AuditReport, error) {
	report := &AuditReport{Checked: sealer != nil}
	found := map[uint64]foundEvent{}
	last, err := report.readEvents(ctx, store, sealer, cluster, found, "", math.MaxUint64)
	if err != nil {
		return nil, err
	}
	// The state is read after the events, and then those that came in between: an agent that works on must not look like a state that was
	// rolled back.
	head, err := report.readHead(ctx, store, sealer, cluster)
	if err != nil {
		return nil, err
	}
	if head != nil {
		if _, err := report.readEvents(ctx, store, sealer, cluster, found, last, head.Sequence); err != nil {
			return nil, err
		}
	}
	slices.Sort(report.Problems)
	report.addWaiting(cluster, head, found)
	report.checkChain(cluster, head, found)
	return report, nil
}

type foundEvent struct {
	event *Event // nil: it can't be read, and a problem says why
	hash  string
}

func (r *AuditReport) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// readHead reads the state's end of the chain, nil when there is none that can be believed.
func (r *AuditReport) readHead(ctx context.Context, store Store, sealer *Sealer, cluster string) (*AuditHead, error) {
	object, err := store.Get(ctx, stateKey(cluster), "")
	if errors.Is(err, ErrNotFound) {
		r.problem("%s is gone, so the end of the audit can't be checked: its last events may be missing", stateKey(cluster))
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the state of %s: %w", cluster, err)
	}
	_, state, err := decodeState(sealer, stateKey(cluster), object.Data)
	if err != nil {
		r.problem("%v", err)
		return nil, nil
	}
	return &state.Audit, nil
}

// readEvents puts the events after a key, up to a number, into found, and gives the key of the last one.
func (r *AuditReport) readEvents(ctx context.Context, store Store, sealer *Sealer, cluster string, found map[uint64]foundEvent, after string,
	upTo uint64) (last string, err error) {
	last = after
	var keys []string
	err = store.List(ctx, cluster+"/audit/", after, func(info ObjectInfo) error {
		if auditName.MatchString(info.Key) && sequenceOfKey(info.Key) <= upTo {
			keys = append(keys, info.Key)
			last = info.Key
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("listing the audit of %s: %w", cluster, err)
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx) // a store that doesn't answer isn't asked for each of the others
	group.SetLimit(verifyParallel)
	for _, key := range keys {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			event, content, err := readEvent(ctx, store, sealer, key)
			mu.Lock()
			defer mu.Unlock()
			var forged *StateForgedError
			switch {
			case errors.As(err, &forged), errors.Is(err, ErrNewerSchema):
				r.problem("%v", err)
				found[sequenceOfKey(key)] = foundEvent{}
			case err != nil:
				return err
			default:
				found[event.Sequence] = foundEvent{event: event, hash: hashOf(content)}
			}
			return nil
		})
	}
	return last, group.Wait()
}

func sequenceOfKey(key string) uint64 {
	var sequence uint64
	_, _ = fmt.Sscanf(key[len(key)-len("0000000000.json"):], "%d.json", &sequence)
	return sequence
}

// addWaiting takes the events that are in the state only as found.
func (r *AuditReport) addWaiting(cluster string, head *AuditHead, found map[uint64]foundEvent) {
	if head == nil {
		return
	}
	for _, waiting := range head.Pending {
		var event Event
		if err := decodeStrict(waiting.Content, &event); err != nil {
			r.problem("an event that waits in the state of %s can't be read: %v", cluster, err)
			continue
		}
		object, there := found[event.Sequence]
		switch {
		case !there:
			found[event.Sequence] = foundEvent{event: &event, hash: hashOf(waiting.Content)}
			r.Waiting++
		case object.event != nil && object.hash != hashOf(waiting.Content):
			r.problem("%s is another event than the one that the state holds", auditKey(cluster, event.Sequence))
		}
	}
}

// checkChain goes from the first event to the last and says where it breaks.
func (r *AuditReport) checkChain(cluster string, head *AuditHead, found map[uint64]foundEvent) {
	previous, known := "", true
	var last uint64
	for _, sequence := range slices.Sorted(maps.Keys(found)) {
		if sequence > last+1 {
			r.missing(cluster, last+1, sequence-1)
			known = false
		}
		last = sequence
		entry := found[sequence]
		if entry.event == nil {
			known = false
			continue
		}
		if known && entry.event.Previous != previous {
			r.problem("%s does not follow the event before it: that one was changed, or this one was made for another chain",
				auditKey(cluster, sequence))
		}
		r.Events = append(r.Events, *entry.event)
		previous, known = entry.hash, true
	}
	switch {
	case head == nil:
	case last < head.Sequence:
		r.missing(cluster, last+1, head.Sequence)
	case last > head.Sequence:
		r.problem("the audit of %s goes on to event %d, and the state knows of %d: the state was rolled back", cluster, last, head.Sequence)
	case known && previous != head.Hash:
		r.problem("the last event of %s, %d, is not the one that the state names", cluster, last)
	}
}

func (r *AuditReport) missing(cluster string, from, to uint64) {
	if from == to {
		r.problem("%s is missing", auditKey(cluster, from))
		return
	}
	r.problem("%s to %s are missing (%d events)", auditKey(cluster, from), auditKey(cluster, to), to-from+1)
}
