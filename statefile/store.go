package statefile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// MaxObject is the largest object that a [Store] reads or writes, in bytes.
const MaxObject = 16 << 20

// Errors that callers of a [Store] act on. They are wrapped with what was being done to which object.
var (
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("there is no such object")
	// ErrUnchanged: the object is still the one whose ETag the caller knows.
	ErrUnchanged = errors.New("the object has not changed")
	// ErrConflict: a condition was not met (S3 answers 404, 409 or 412). Nothing was written by this call, unless the request
	// reached the store twice on its way: a read that shows the request's own nonce tells.
	ErrConflict = errors.New("someone else wrote the object first")
	// ErrUnacknowledged: a write was sent and its answer is missing or proves nothing. It may have been done, or not, or be
	// done later. Only a read that shows the request's own nonce proves that it was.
	ErrUnacknowledged = errors.New("the store did not acknowledge the write")
	// ErrUnavailable: the store could not be asked, or refused for the moment; it will pass by itself.
	ErrUnavailable = errors.New("the store can't be reached")
	// ErrPermission: the store refuses this action to these credentials or this user.
	ErrPermission = errors.New("the store does not permit it")
	// ErrTooLarge: the object is larger than [MaxObject].
	ErrTooLarge = errors.New("the object is larger than 16 MiB")
)

// Object is an object as it was read.
type Object struct {
	Key  string
	Data []byte
	// ETag names the content, so equal content has an equal ETag.
	ETag string
	// Modified is when the object was written, by the store's clock.
	Modified time.Time
}

// ObjectInfo is an entry of a listing.
type ObjectInfo struct {
	Key      string
	Size     int64
	Modified time.Time
	// ETag is as in [Object]; empty where the listing doesn't tell.
	ETag string
}

// If is the condition of a write. The zero value is no condition.
type If struct {
	etag   string
	absent bool
}

// IfAbsent is met when there is no object (S3: If-None-Match: *).
func IfAbsent() If { return If{absent: true} }

// IfMatch is met when the object has this ETag (S3: If-Match).
func IfMatch(etag string) If { return If{etag: etag} }

// Absent says whether the condition is that there be no object.
func (i If) Absent() bool { return i.absent }

// ETag is the ETag that the object must have, or empty.
func (i If) ETag() string { return i.etag }

// Store is a flat set of objects with conditional writes. Keys are relative to the store's root, with slashes, and pass
// [CheckKey].
//
// Every call has a deadline of its own within that of its context. Reads may be repeated within it; a write is sent once. A
// read that comes up short is an error, never a shorter object. Deleting has no condition, because servers ignore it: no
// safety may rest on it.
type Store interface {
	// Get reads a whole object. If known is its ETag still, it returns [ErrUnchanged], which costs little.
	// Other errors: [ErrNotFound], [ErrUnavailable], [ErrPermission], [ErrTooLarge].
	Get(ctx context.Context, key, known string) (*Object, error)
	// Put writes a whole object if the condition holds, and returns its new ETag.
	// Errors: [ErrConflict], [ErrUnacknowledged], [ErrPermission], [ErrTooLarge]; any other error means that nothing was written.
	Put(ctx context.Context, key string, data []byte, cond If) (etag string, err error)
	// Delete removes an object; that it was not there is no error.
	Delete(ctx context.Context, key string) error
	// List calls fn with each object whose key starts with prefix and sorts after the key after, in the order of their keys,
	// however many there are. An error of fn ends it and is returned.
	List(ctx context.Context, prefix, after string, fn func(ObjectInfo) error) error
	// Location says where the store is, the same on every machine that uses the same place. It holds no credentials.
	Location() string
	// Close gives up what the store holds (locks, connections).
	Close() error
}

// CheckKey says what is wrong with an object's key: keys have segments of letters, digits, '.', '-' and '_' that are neither
// empty nor start with a dot, parted by '/', and at most 512 bytes.
func CheckKey(key string) error {
	if len(key) > 512 {
		return fmt.Errorf("the key %.40q… is longer than 512 bytes", key)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "" || segment[0] == '.' {
			return fmt.Errorf("the key %q has a segment that is empty or starts with a dot", key)
		}
		for _, r := range segment {
			switch {
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			default:
				return fmt.Errorf("the key %q has a character other than letters, digits, '.', '-', '_' and '/'", key)
			}
		}
	}
	return nil
}
