package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"ichor.maesh.dev/statefile"
)

// ErrReplaced: the object isn't the one that was stored.
var ErrReplaced = errors.New("it is not the object that the index lists: its SHA-256 differs, so it was replaced or damaged; take another snapshot, " +
	"and find out who can write the bucket")

// digest reads an object whole and gives the SHA-256 (hex), size and ETag of what is stored.
func (d *Destination) digest(ctx context.Context, name string) (digest string, size int64, etag string, err error) {
	body, stat, err := d.objects.Download(ctx, name)
	if err != nil {
		return "", 0, "", err
	}
	defer func() { _ = body.Close() }()
	sum := sha256.New()
	if size, err = io.Copy(sum, body); err != nil {
		return "", 0, "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), size, stat.ETag, nil
}

// isReplaced says whether an object that is listed is another one than was stored. Its size tells, and its ETag: one that changed may be
// that of a copy (a store gives its own to each, and to each way of uploading), so that the content is read then, once.
func (d *Destination) isReplaced(ctx context.Context, s Snapshot, object statefile.ObjectInfo) (bool, error) {
	if object.Size != s.SealedSize {
		return true, nil
	}
	if s.Deleting || s.ETag == "" || object.ETag == "" || s.ETag == object.ETag {
		return false, nil
	}
	key := s.Name + "@" + object.ETag
	if digest, ok := d.digests.Load(key); ok {
		return digest != s.SHA256, nil
	}
	digest, _, etag, err := d.digest(ctx, s.Name)
	switch {
	case errors.Is(err, statefile.ErrNotFound): // deleted meanwhile
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading %s, whose ETag changed: %w", s.Name, err)
	case etag == object.ETag:
		d.digests.Store(key, digest)
	}
	return digest != s.SHA256, nil
}

// Fetch gives a reader of a snapshot as it is stored, sealed. With a digest, an object with another one ends in [ErrReplaced] instead of
// the end: what was read before that proves nothing.
func (d *Destination) Fetch(ctx context.Context, name, digest string) (io.ReadCloser, error) {
	body, _, err := d.objects.Download(ctx, name)
	if err != nil || digest == "" {
		return body, err
	}
	return Check(body, digest), nil
}

// Checked is a sealed snapshot that is being read.
type Checked struct {
	body io.ReadCloser
	sum  hash.Hash
	want string
}

// Check hashes a sealed snapshot while it is read. With a digest (hex), one with another ends in [ErrReplaced] instead of the end.
func Check(sealed io.ReadCloser, digest string) *Checked {
	return &Checked{body: sealed, sum: sha256.New(), want: digest}
}

func (c *Checked) Read(p []byte) (int, error) {
	n, err := c.body.Read(p)
	c.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && c.want != "" && c.SHA256() != c.want {
		return n, ErrReplaced
	}
	return n, err
}

// SHA256 is of what was read so far, in hex.
func (c *Checked) SHA256() string { return hex.EncodeToString(c.sum.Sum(nil)) }

// Close gives up the reading.
func (c *Checked) Close() error { return c.body.Close() }

// Open gives a reader of a snapshot's plaintext: the database with its trailer. It ends well only when the object is the one with the
// digest (where one is given), opened to its end, and the trailer matches; what was read before that proves nothing.
// Errors: [ErrReplaced], [ErrOtherBundle], [ErrNoSnapshot], [ErrHeavier], [ErrDamaged], [ErrTorn], those of the store.
func (d *Destination) Open(ctx context.Context, name, digest string) (io.ReadCloser, error) {
	sealed, err := d.Fetch(ctx, name, digest)
	if err != nil {
		return nil, err
	}
	plain, err := OpenChecked(sealed, d.passphrase)
	if err != nil {
		_ = sealed.Close()
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, sealed}, nil
}

// OpenChecked is [Open] for a snapshot: at its end the trailer must match. What does not open is read on to its end if its digest is known,
// since that tells an object that was changed from one that never opened.
func OpenChecked(sealed io.Reader, passphrase Passphrase) (io.Reader, error) {
	plain, err := Open(sealed, passphrase)
	if err != nil {
		return nil, replacedOr(sealed, err)
	}
	return &whole{plain: plain, sealed: sealed, trailer: newTrailer()}, nil
}

// replacedOr reads on where a digest is known, and gives [ErrReplaced] if it is another.
func replacedOr(sealed io.Reader, err error) error {
	if c, ok := sealed.(*Checked); !ok || c.want == "" || !Bad(err) {
		return err
	}
	if _, after := io.Copy(io.Discard, sealed); errors.Is(after, ErrReplaced) {
		return after
	}
	return err
}

type whole struct {
	plain, sealed io.Reader
	trailer       *trailer
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.plain.Read(p)
	_, _ = w.trailer.Write(p[:n])
	if err != nil && !errors.Is(err, io.EOF) {
		return n, replacedOr(w.sealed, err)
	}
	if errors.Is(err, io.EOF) {
		if _, err := io.Copy(io.Discard, w.sealed); err != nil { // to its end, where its digest is checked
			return n, err
		}
		if err := w.trailer.check(); err != nil {
			return n, err
		}
	}
	return n, err
}

// Verify reads a snapshot whole, keeping nothing, and gives the size of its plaintext and its revision. Errors are those of
// [Destination.Open], and that it holds no etcd.
func (d *Destination) Verify(ctx context.Context, name, digest string) (size, revision int64, err error) {
	sealed, err := d.Fetch(ctx, name, digest)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = sealed.Close() }()
	size, revision, err = VerifySealed(sealed, d.passphrase)
	if err != nil {
		return 0, 0, fmt.Errorf("verifying %s: %w", name, err)
	}
	return size, revision, nil
}

// VerifySealed is [Destination.Verify] for a snapshot that is read from anywhere.
func VerifySealed(sealed io.Reader, passphrase Passphrase) (size, revision int64, err error) {
	plain, err := OpenChecked(sealed, passphrase)
	if err != nil {
		return 0, 0, err
	}
	revisions := newRevisionReader()
	if size, err = io.Copy(revisions, plain); err != nil {
		return 0, 0, err
	}
	if revision, err = revisions.revision(); err != nil {
		return 0, 0, err
	}
	return size, revision, nil
}

// Bad says whether an error means that the snapshot itself is no good, or not this cluster's. Any other error says that nobody knows.
func Bad(err error) bool {
	for _, kind := range []error{ErrTorn, ErrReplaced, ErrDamaged, ErrOtherBundle, ErrNoSnapshot, ErrHeavier, errNoRevision, errDiffers} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Find gives the listed snapshot of a name; with an empty name, the newest that is there.
func (c Contents) Find(name string) (Snapshot, error) {
	for _, s := range c.Snapshots {
		switch {
		case name == s.Name && s.Missing:
			size, there := c.Sizes[name]
			if there && size == s.SealedSize {
				return Snapshot{}, fmt.Errorf("the snapshot %s: %w", name, ErrReplaced)
			}
			if there {
				return Snapshot{}, fmt.Errorf("the snapshot %s has %d bytes in the bucket, and %d in the index: %w", name, size, s.SealedSize, ErrReplaced)
			}
			return Snapshot{}, fmt.Errorf("the snapshot %s is listed, and the bucket doesn't hold it any more; take another from the list, and find out who "+
				"can delete from the bucket: %w", name, statefile.ErrNotFound)
		case name == s.Name, name == "" && !s.Missing && !s.Deleting:
			return s, nil
		}
	}
	if name == "" {
		return Snapshot{}, fmt.Errorf("there is no snapshot yet: %w", statefile.ErrNotFound)
	}
	return Snapshot{}, fmt.Errorf("the index lists no snapshot %s: %w", name, statefile.ErrNotFound)
}
