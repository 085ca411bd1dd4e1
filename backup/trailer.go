package backup

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
)

// pageAlign is what the length of a bbolt file is a multiple of, whatever its page size.
const pageAlign = 512

// ErrTorn: a stream ended before the snapshot did. Talos ends it with OK when its own reading broke off, so only the trailer tells.
var ErrTorn = errors.New("the stream ended early, or was changed on its way: its SHA-256 trailer doesn't match")

// trailer checks a snapshot while it is written: the last 32 bytes are the SHA-256 of all before them.
type trailer struct {
	sum    hash.Hash
	held   [sha256.Size]byte // the last bytes so far, which may be the trailer
	filled int
	size   int64
}

func newTrailer() *trailer { return &trailer{sum: sha256.New()} }

// Write never fails.
func (t *trailer) Write(p []byte) (int, error) {
	written := len(p)
	t.size += int64(written)
	if len(p) >= len(t.held) {
		t.sum.Write(t.held[:t.filled])
		cut := len(p) - len(t.held)
		t.sum.Write(p[:cut])
		t.filled = copy(t.held[:], p[cut:])
		return written, nil
	}
	if over := t.filled + len(p) - len(t.held); over > 0 {
		t.sum.Write(t.held[:over])
		t.filled = copy(t.held[:], t.held[over:t.filled])
	}
	t.filled += copy(t.held[t.filled:], p)
	return written, nil
}

// check says whether what was written is a whole snapshot: [ErrTorn].
func (t *trailer) check() error {
	switch {
	case t.size == 0:
		return fmt.Errorf("%w (not a byte came)", ErrTorn)
	case t.size%pageAlign != sha256.Size, t.filled != len(t.held), !bytes.Equal(t.sum.Sum(nil), t.held[:]):
		return fmt.Errorf("%w (%d bytes came)", ErrTorn, t.size)
	}
	return nil
}

// CheckTrailer reads a snapshot to its end, and gives its size in bytes if it is whole: [ErrTorn], or the error of r.
func CheckTrailer(r io.Reader) (int64, error) {
	t := newTrailer()
	if _, err := io.Copy(t, r); err != nil {
		return t.size, err
	}
	return t.size, t.check()
}
