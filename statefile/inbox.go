package statefile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// inboxMost bounds the files that are read of an inbox: who can write the bucket must not keep the agent busy with it.
	inboxMost = 500
	// inboxListed bounds the names that are looked at for those: ten pages of a listing.
	inboxListed = 10_000
	// inboxLargest bounds a file that is read, and a signature, in bytes: all of an inbox is in memory at once. Operations have a smaller
	// bound of their own, with its reason.
	inboxLargest = 64 << 10
)

// ErrInInbox says that a name is taken in the inbox by other bytes.
var ErrInInbox = errors.New("the inbox holds another operation of that name")

// InboxFile is a file of an inbox: an operation that was given without Git.
type InboxFile struct {
	// Name is the file's without .yaml, Key its whole key.
	Name, Key string
	// Data is the file, Signature the one beside it; empty where there is none.
	Data, Signature []byte
	// Modified is when the file was put there, by the store's clock.
	Modified time.Time
	// Problem is why it can't be read; empty where it could.
	Problem string
}

func inboxPrefix(cluster string) string { return cluster + "/inbox/" }

// InboxKey is where the file of an operation stands in the inbox of a cluster. Its signature has .sig behind that.
func InboxKey(cluster, name string) string { return inboxPrefix(cluster) + name + ".yaml" }

// PutInbox puts an operation and its signature into the inbox of a cluster, and rings. The signature comes first: who sees the file sees the
// signature too. Putting the same bytes again is no error; other bytes under the name are [ErrInInbox], and nothing is replaced. After
// [ErrNotRung] the operation is there all the same.
func PutInbox(ctx context.Context, store Store, cluster, name string, data, signature []byte) error {
	if !clusterName.MatchString(cluster) || !clusterName.MatchString(name) {
		return fmt.Errorf("the inbox takes no operation %.80q of cluster %.80q: both names must be RFC 1123 labels", name, cluster)
	}
	key := InboxKey(cluster, name)
	if _, err := store.Get(ctx, key, ""); err != nil {
		if err := putOnce(ctx, store, key+".sig", signature); err != nil {
			return err
		}
	}
	if err := putOnce(ctx, store, key, data); err != nil {
		return err
	}
	return ring(ctx, store, cluster)
}

// putOnce creates an object. That it is there with the same bytes is as good.
func putOnce(ctx context.Context, store Store, key string, data []byte) error {
	_, err := store.Put(ctx, key, data, IfAbsent())
	if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnacknowledged) {
		if err != nil {
			return fmt.Errorf("putting %s into the inbox: %w", key, err)
		}
		return nil
	}
	object, readErr := store.Get(ctx, key, "")
	switch {
	case readErr != nil:
		return fmt.Errorf("putting %s into the inbox: %w (reading it back: %w)", key, err, readErr)
	case !bytes.Equal(object.Data, data):
		return fmt.Errorf("%s: %w", key, ErrInInbox)
	}
	return nil
}

// ReadInbox gives the files in the inbox of a cluster, sorted by name: the 500 that were put there last, and whether there are more. Nobody
// takes old ones away but people, and what was put there just now must not wait for them. A signature without its file is passed over.
func ReadInbox(ctx context.Context, store Store, cluster string) (files []InboxFile, more bool, err error) {
	sizes := map[string]int64{}
	seen := 0
	err = store.List(ctx, inboxPrefix(cluster), "", func(info ObjectInfo) error {
		if seen++; seen > inboxListed {
			more = true
			return errEnough
		}
		name, isFile := strings.CutSuffix(strings.TrimPrefix(info.Key, inboxPrefix(cluster)), ".yaml")
		if isFile && strings.Contains(name, "/") {
			return nil
		}
		sizes[info.Key] = info.Size
		if isFile {
			files = append(files, InboxFile{Name: name, Key: info.Key, Modified: info.Modified})
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, false, fmt.Errorf("listing the inbox of %s: %w", cluster, err)
	}
	if len(files) > inboxMost {
		slices.SortStableFunc(files, func(a, b InboxFile) int { return b.Modified.Compare(a.Modified) })
		files, more = files[:inboxMost], true
		slices.SortFunc(files, func(a, b InboxFile) int { return strings.Compare(a.Key, b.Key) })
	}
	kept := files[:0]
	for _, file := range files {
		found, err := file.read(ctx, store, sizes)
		if err != nil {
			return nil, false, err
		}
		if found {
			kept = append(kept, file)
		}
	}
	return kept, more, nil
}

// read fills a file in; false where it is gone again. sizes are those of the listing.
func (f *InboxFile) read(ctx context.Context, store Store, sizes map[string]int64) (bool, error) {
	object, size, err := readSmall(ctx, store, f.Key, sizes[f.Key])
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading the inbox: %w", err)
	case object == nil:
		f.Problem = fmt.Sprintf("it has %d bytes, and at most %d are read", size, inboxLargest)
		return true, nil
	}
	f.Data, f.Modified = object.Data, object.Modified
	signature, size, err := readSmall(ctx, store, f.Key+".sig", sizes[f.Key+".sig"])
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return false, fmt.Errorf("reading the inbox: %w", err)
	case signature == nil:
		f.Problem = fmt.Sprintf("its signature has %d bytes, and at most %d are read", size, inboxLargest)
	default:
		f.Signature = signature.Data
	}
	return true, nil
}

// readSmall reads an object that the listing gave that size. It is nil where it is too large, which may be known without reading it;
// then its size says so.
func readSmall(ctx context.Context, store Store, key string, listed int64) (*Object, int64, error) {
	if listed > inboxLargest {
		return nil, listed, nil
	}
	object, err := store.Get(ctx, key, "")
	switch {
	case errors.Is(err, ErrTooLarge): // it was replaced since
		return nil, MaxObject + 1, nil
	case err != nil:
		return nil, 0, err
	case len(object.Data) > inboxLargest:
		return nil, int64(len(object.Data)), nil
	}
	return object, int64(len(object.Data)), nil
}
