package statefile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
)

// Sizes and times of large objects.
const (
	// partSize is how much goes up in one request: an object up to this size in one PUT, a larger one in parts of it, of which S3
	// takes 10,000.
	partSize = 64 << 20
	// partTimeout bounds one of these requests: about 75 KB/s must get through.
	partTimeout = 15 * time.Minute
	// uploadAttempts is how often each request is made while the store is only unavailable.
	uploadAttempts = 4
	// digestMetadata is the metadata in which the SHA-256 (hex) of an uploaded object stands.
	digestMetadata = "sha256"
)

// ErrLocked: the object is under Object Lock and can't be deleted yet.
var ErrLocked = errors.New("the object is locked")

// Bucket is a bucket for objects of any size, beside the small ones of a [Store].
type Bucket struct {
	Store
	s3 *s3Store
	// part is how much goes up in one request, in bytes.
	part int64
}

// OpenBucket opens a bucket; it sends nothing yet.
func OpenBucket(ctx context.Context, config S3Config) (*Bucket, error) {
	store, err := OpenS3(ctx, config)
	if err != nil {
		return nil, err
	}
	return &Bucket{Store: store, s3: store.(*s3Store), part: partSize}, nil
}

// Stat is what the store says of an object.
type Stat struct {
	Size     int64
	ETag     string
	Modified time.Time
	// Metadata is what it was uploaded with, names in lower case.
	Metadata map[string]string
}

// Stat asks for an object: [ErrNotFound], [ErrUnavailable], [ErrPermission].
func (b *Bucket) Stat(ctx context.Context, key string) (Stat, error) {
	var found Stat
	err := b.s3.read(ctx, "looking at", key, func(ctx context.Context) error {
		info, err := b.s3.client.StatObject(ctx, b.s3.bucket, b.s3.prefix+key, minio.StatObjectOptions{})
		if err != nil {
			return headError(err)
		}
		if info.Size < 0 { // then nothing could tell a whole object from a part of one
			return errors.New("the store doesn't say how large the object is")
		}
		found = Stat{Size: info.Size, ETag: info.ETag, Modified: info.LastModified, Metadata: map[string]string{}}
		for name, value := range info.UserMetadata {
			found.Metadata[strings.ToLower(name)] = value
		}
		return nil
	})
	return found, err
}

// headError: the answer to a HEAD has no body, so the client makes S3's error up from the status. That an object isn't there is
// believed all the same here: nothing is deleted or made for it.
func headError(err error) error {
	if response := answer(err); response != nil && response.StatusCode == http.StatusNotFound && response.Code == minio.NoSuchKey {
		return ErrNotFound
	}
	return err
}

// Upload stores an object under a key that must not be taken, whole or not at all, and looks at it afterwards: the store must report the
// size that was sent. Requests that get no answer are made again; an object with this very content that is there already is one's own.
// Metadata names are in lower case. Errors: [ErrConflict] when another object is there, [ErrUnavailable], [ErrUnacknowledged],
// [ErrPermission]; those of reading content come as they are.
func (b *Bucket) Upload(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (Stat, error) {
	if err := CheckKey(key); err != nil {
		return Stat{}, err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(content, 0, content.Size())); err != nil {
		return Stat{}, fmt.Errorf("reading what is to be uploaded: %w", err)
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	all := map[string]string{digestMetadata: digest}
	for name, value := range metadata {
		all[name] = value
	}
	send := b.uploadParts
	if content.Size() <= b.part {
		send = b.uploadOne
	}
	err := send(ctx, key, content, all)
	if err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnacknowledged) {
		return Stat{}, err
	}
	stat, statErr := b.Stat(ctx, key)
	switch {
	case statErr != nil && err != nil:
		return Stat{}, err
	case statErr != nil:
		return Stat{}, fmt.Errorf("the upload was answered OK, and could not be looked at: %w", statErr)
	case stat.Size != content.Size() || stat.Metadata[digestMetadata] != digest:
		return Stat{}, fmt.Errorf("uploading %s: another object of %d bytes stands there, not the one of %d bytes that was sent: %w",
			b.s3.name(key), stat.Size, content.Size(), ErrConflict)
	}
	return stat, nil
}

// uploadOne sends the object in one conditional request. It may be sent again: it is the same object, and only where there is none.
func (b *Bucket) uploadOne(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) error {
	opts := minio.PutObjectOptions{ContentType: "application/octet-stream", UserMetadata: metadata, DisableMultipart: true, DisableContentSha256: true}
	opts.SetMatchETagExcept("*")
	return b.attempt(ctx, "uploading", key, func(ctx context.Context) error {
		_, err := b.s3.core.PutObject(ctx, b.s3.bucket, b.s3.prefix+key, io.NewSectionReader(content, 0, content.Size()), content.Size(), "",
			metadata[digestMetadata], opts)
		return err
	})
}

// uploadParts sends the object in parts, each of them as often as it takes, and makes it appear with one conditional request.
func (b *Bucket) uploadParts(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (err error) {
	name := b.s3.prefix + key
	var id string
	err = b.attempt(ctx, "uploading", key, func(ctx context.Context) error {
		var err error
		id, err = b.s3.core.NewMultipartUpload(ctx, b.s3.bucket, name, minio.PutObjectOptions{ContentType: "application/octet-stream", UserMetadata: metadata})
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // what was sent would be kept, and paid for, where nobody sees it
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.s3.timeout)
			defer cancel()
			_ = b.s3.core.AbortMultipartUpload(ctx, b.s3.bucket, name, id)
		}
	}()
	var parts []minio.CompletePart
	for offset := int64(0); offset < content.Size(); offset += b.part {
		part := io.NewSectionReader(content, offset, min(b.part, content.Size()-offset))
		sum := sha256.New()
		if _, err := io.Copy(sum, part); err != nil {
			return fmt.Errorf("reading what is to be uploaded: %w", err)
		}
		number := len(parts) + 1
		err := b.attempt(ctx, "uploading", key, func(ctx context.Context) error {
			done, err := b.s3.core.PutObjectPart(ctx, b.s3.bucket, name, id, number, io.NewSectionReader(part, 0, part.Size()), part.Size(),
				minio.PutObjectPartOptions{Sha256Hex: hex.EncodeToString(sum.Sum(nil))})
			if err == nil {
				parts = append(parts, minio.CompletePart{PartNumber: number, ETag: done.ETag})
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	opts := minio.PutObjectOptions{}
	opts.SetMatchETagExcept("*")
	return b.attempt(ctx, "uploading", key, func(ctx context.Context) error {
		_, err := b.s3.core.CompleteMultipartUpload(ctx, b.s3.bucket, name, id, parts, opts)
		return err
	})
}

// attempt makes one request of an upload, again while the store is unavailable or gives no answer.
func (b *Bucket) attempt(ctx context.Context, verb, key string, call func(context.Context) error) error {
	if _, err := b.s3.creds.get(ctx); err != nil {
		return b.s3.wrap(verb, key, err)
	}
	for attempt := 1; ; attempt++ {
		var connected atomic.Bool
		limited, cancel, late := oneCall(httptrace.WithClientTrace(ctx,
			&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}), partTimeout)
		err := late(call(limited))
		cancel()
		if err == nil {
			return nil
		}
		err = classifyWrite(err, connected.Load())
		passing := errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnacknowledged)
		if !passing || attempt == uploadAttempts || !wait(ctx, time.Duration(attempt)*readBackoff) {
			return b.s3.wrap(verb, key, err)
		}
	}
}

// Remove deletes an object; that it was not there is no error. [ErrLocked]: Object Lock keeps it, and the text says until when.
func (b *Bucket) Remove(ctx context.Context, key string) error {
	if err := b.locked(ctx, key); err != nil {
		return err
	}
	return b.Delete(ctx, key)
}

// locked asks first, because deleting a locked object would hide it all the same: a versioned bucket puts a marker over it. Keys that may
// not see locks (s3:GetObjectRetention, s3:GetObjectLegalHold) see none, and the store itself refuses to delete what is locked for good.
func (b *Bucket) locked(ctx context.Context, key string) error {
	return b.s3.read(ctx, "asking for the lock of", key, func(ctx context.Context) error {
		info, err := b.s3.client.StatObject(ctx, b.s3.bucket, b.s3.prefix+key, minio.StatObjectOptions{})
		if err != nil {
			if response := answer(err); response != nil && (response.StatusCode == http.StatusNotFound || isDenied(response)) {
				return nil
			}
			return err
		}
		if strings.EqualFold(info.Metadata.Get("X-Amz-Object-Lock-Legal-Hold"), "ON") {
			return fmt.Errorf("%w by a legal hold, for as long as that stands", ErrLocked)
		}
		until, err := time.Parse(time.RFC3339, info.Metadata.Get("X-Amz-Object-Lock-Retain-Until-Date"))
		if err == nil && until.After(time.Now()) {
			return fmt.Errorf("%w until %s", ErrLocked, until.UTC().Format(time.RFC3339))
		}
		return nil
	})
}
