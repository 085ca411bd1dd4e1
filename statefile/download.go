package statefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/minio/minio-go/v7"
)

const (
	// stallTimeout is how long a download may bring nothing before its request is made again.
	stallTimeout = time.Minute
	// downloadAttempts is how often in a row a request may bring nothing.
	downloadAttempts = 5
)

// Download reads an object from its beginning to its end. A connection that breaks off is taken up again where it stopped, as long as the
// object is the same; one that was changed meanwhile is [ErrConflict]. Errors of the first request come from Download itself:
// [ErrNotFound], [ErrUnavailable], [ErrPermission].
func (b *Bucket) Download(ctx context.Context, key string) (io.ReadCloser, Stat, error) {
	stat, err := b.Stat(ctx, key)
	if err != nil {
		return nil, Stat{}, err
	}
	d := &download{ctx: ctx, bucket: b, key: key, stat: stat}
	if err := d.open(); err != nil {
		d.stop()
		return nil, Stat{}, err
	}
	return d, stat, nil
}

type download struct {
	ctx     context.Context //nolint:containedctx // a reader has no other way to know of it
	bucket  *Bucket
	key     string
	stat    Stat
	offset  int64
	body    io.ReadCloser
	cancel  context.CancelFunc
	stalled *time.Timer
	// barren counts the requests in a row that brought nothing.
	barren int
}

// open makes the request for what is still to come.
func (d *download) open() error {
	d.stop()
	ctx, cancel := context.WithCancel(d.ctx)
	d.cancel = cancel
	d.stalled = time.AfterFunc(stallTimeout, cancel)
	var opts minio.GetObjectOptions
	if d.stat.ETag != "" { // a store that gives none can't be asked for the same object
		if err := opts.SetMatchETag(d.stat.ETag); err != nil {
			return d.wrap(err)
		}
	}
	if d.offset > 0 {
		if err := opts.SetRange(d.offset, 0); err != nil {
			return d.wrap(err)
		}
	}
	body, _, _, err := d.bucket.s3.core.GetObject(ctx, d.bucket.s3.bucket, d.bucket.s3.prefix+d.key, opts)
	if err != nil {
		if response := answer(err); response != nil && response.StatusCode == 412 {
			err = fmt.Errorf("it was replaced while it was read: %w", ErrConflict)
		} else {
			err = classifyRead(err)
		}
		return d.wrap(err)
	}
	d.body = body
	return nil
}

func (d *download) wrap(err error) error { return d.bucket.s3.wrap("downloading", d.key, err) }

func (d *download) stop() {
	if d.body != nil {
		_ = d.body.Close()
		d.body = nil
	}
	if d.cancel != nil {
		d.stalled.Stop()
		d.cancel()
	}
}

// Read reads on, over as many requests as it takes.
func (d *download) Read(p []byte) (int, error) {
	for {
		if d.offset >= d.stat.Size {
			return 0, io.EOF
		}
		if err := d.ctx.Err(); err != nil {
			return 0, d.wrap(err)
		}
		n, err := d.some(p)
		if n > 0 {
			d.barren = 0
			return n, nil
		}
		if err == nil {
			continue
		}
		d.barren++
		passing := errors.Is(err, ErrUnavailable) || errors.Is(err, io.ErrUnexpectedEOF)
		if !passing || d.barren >= downloadAttempts || !wait(d.ctx, time.Duration(d.barren)*readBackoff) {
			return 0, err
		}
	}
}

// some reads from the request that is open, or opens one.
func (d *download) some(p []byte) (int, error) {
	if d.body == nil {
		if err := d.open(); err != nil {
			return 0, err
		}
	}
	n, err := d.body.Read(p[:min(int64(len(p)), d.stat.Size-d.offset)])
	d.offset += int64(n)
	d.stalled.Reset(stallTimeout)
	if err == nil || n > 0 && d.offset == d.stat.Size {
		return n, nil
	}
	d.stop()
	if n > 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return 0, d.wrap(fmt.Errorf("%w: it broke off after %d of %d bytes: %w", ErrUnavailable, d.offset, d.stat.Size, hint(err)))
}

// Close ends the download.
func (d *download) Close() error {
	d.stop()
	return nil
}
