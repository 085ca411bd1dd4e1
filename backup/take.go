package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Timeouts of what a control plane is asked.
const (
	statusTimeout = 15 * time.Second
	// idleTimeout is how long a stream may bring nothing. Talos ends no stream whose etcd hangs.
	idleTimeout = 2 * time.Minute
)

// Node is a control plane that can be asked for a snapshot.
type Node interface {
	Name() string
	// EtcdStatus asks for the member's own status. It is bounded by ctx.
	EtcdStatus(ctx context.Context) (EtcdStatus, error)
	// EtcdSnapshot streams a snapshot of the member's data. Ending ctx ends the stream.
	EtcdSnapshot(ctx context.Context) (io.ReadCloser, error)
}

// Taken is a snapshot that came whole and is sealed, and not yet stored. Close gives it up.
type Taken struct {
	// Member is the control plane that it came from.
	Member string
	// At is when its stream was begun, by the caller's clock.
	At time.Time
	// Size is of the plaintext in bytes, with its trailer.
	Size int64
	// Revision is etcd's.
	Revision int64
	// SealedSize and SHA256 (hex) are of the sealed bytes, which are what is stored.
	SealedSize int64
	SHA256     string

	file *SpoolFile
}

// Sealed gives the sealed bytes; they can be read any number of times until Close.
func (t *Taken) Sealed() *io.SectionReader { return io.NewSectionReader(t.file, 0, t.SealedSize) }

// Close gives up the sealed bytes.
func (t *Taken) Close() error { return t.file.Close() }

// MemberError is why no control plane gave a snapshot: a sentence for each.
type MemberError struct {
	Reasons []string
	causes  []error
}

func (e *MemberError) Error() string {
	if len(e.Reasons) == 0 {
		return "no member of etcd could be asked for a snapshot: the cluster has no control plane that is approved and not being removed"
	}
	return "no member of etcd gave a snapshot: " + strings.Join(e.Reasons, "; ")
}

// Unwrap gives what the streams ended with, such as [ErrTorn].
func (e *MemberError) Unwrap() []error { return e.causes }

// Take asks the control planes how their etcd is, and one after the other for a snapshot, until one came whole and is sealed in the
// spool. The clock says when a stream was begun and when it has brought nothing for too long. Errors: [*MemberError]; any other is the
// spool's or ctx's.
func Take(ctx context.Context, nodes []Node, spool *Spool, passphrase Passphrase, clock clock.WithDelayedExecution) (*Taken, error) {
	order, reasons := candidates(askAll(ctx, nodes))
	failed := &MemberError{Reasons: reasons}
	for _, node := range order {
		taken, err := takeFrom(ctx, node, spool, passphrase, clock)
		var local *spoolError
		switch {
		case err == nil:
			return taken, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("taking a snapshot of %s: %w", node.Name(), ctx.Err())
		case errors.As(err, &local):
			return nil, err
		}
		failed.Reasons = append(failed.Reasons, fmt.Sprintf("%s: %v", node.Name(), err))
		failed.causes = append(failed.causes, err)
	}
	return nil, failed
}

func askAll(ctx context.Context, nodes []Node) []asked {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	all := make([]asked, len(nodes))
	var group sync.WaitGroup
	for n, node := range nodes {
		group.Go(func() {
			status, err := node.EtcdStatus(ctx)
			all[n] = asked{node, status, err}
		})
	}
	group.Wait()
	return all
}

// spoolError is an error of this machine's own disk: another member would meet it too.
type spoolError struct{ err error }

func (e *spoolError) Error() string { return e.err.Error() }
func (e *spoolError) Unwrap() error { return e.err }

func takeFrom(ctx context.Context, node Node, spool *Spool, passphrase Passphrase, clock clock.WithDelayedExecution) (_ *Taken, err error) {
	file, err := spool.File()
	if err != nil {
		return nil, &spoolError{err}
	}
	defer func() {
		if err != nil {
			_ = file.Close() // what it holds is worth nothing
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	taken := &Taken{Member: node.Name(), At: clock.Now(), file: file}
	// The watch begins with the call: a node whose etcd hangs may never answer at all.
	idle := clock.AfterFunc(idleTimeout, func() {
		cancel(fmt.Errorf("its stream brought nothing for %s", idleTimeout))
	})
	defer idle.Stop()
	caused := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	stream, err := node.EtcdSnapshot(ctx)
	if err != nil {
		return nil, caused(err)
	}
	defer func() { _ = stream.Close() }()
	sealedSum := sha256.New()
	besideSealed := beside(sealedSum)
	defer besideSealed.wait()
	out := &counter{w: io.MultiWriter(file, besideSealed)}
	sealing, err := Seal(out, passphrase)
	if err != nil {
		return nil, &spoolError{onDisk(err)}
	}
	whole, revisions := newTrailer(), newRevisionReader()
	besidePlain := beside(io.MultiWriter(whole, revisions))
	defer besidePlain.wait()
	if err := copyStream(besidePlain, sealing, &watchdog{reader: stream, timer: idle}, spool.room); err != nil {
		var local *spoolError
		if errors.As(err, &local) {
			return nil, err
		}
		return nil, caused(err)
	}
	besidePlain.wait()
	if err := whole.check(); err != nil {
		return nil, err
	}
	if taken.Revision, err = revisions.revision(); err != nil {
		return nil, err
	}
	if err := sealing.Close(); err != nil {
		return nil, &spoolError{onDisk(err)}
	}
	besideSealed.wait()
	taken.Size, taken.SealedSize, taken.SHA256 = whole.size, out.n, hex.EncodeToString(sealedSum.Sum(nil))
	return taken, nil
}

// copyStream copies a stream, and tells the errors of reading from those of the disk.
// room is asked now and then whether there is any left.
func copyStream(check, sealing io.Writer, stream io.Reader, room func() error) error {
	buffer := make([]byte, 64<<10)
	for unasked := 0; ; {
		n, err := stream.Read(buffer)
		if unasked += n; unasked >= roomEvery {
			unasked = 0
			if err := room(); err != nil {
				return &spoolError{err}
			}
		}
		if n > 0 {
			_, _ = check.Write(buffer[:n]) // never fails
			if _, err := sealing.Write(buffer[:n]); err != nil {
				return &spoolError{onDisk(err)}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("its stream broke off: %w", err)
		}
	}
}

// room says that a snapshot on its way has left too little of the disk free.
func (s *Spool) room() error {
	free, err := s.Free()
	if err == nil && free < keptFree {
		err = fmt.Errorf("spool: the snapshot is given up, because it left %d MiB free on the disk, and %d are kept for what else is there; make room in the spool folder, "+
			"or give another disk with --spool", free>>20, keptFree>>20)
	}
	return err
}

func onDisk(err error) error {
	return fmt.Errorf("spool: writing the sealed snapshot to disk: %w; make room in the spool folder", err)
}

// watchdog puts a timer off with each read that brings something.
type watchdog struct {
	reader io.Reader
	timer  clock.Timer
}

func (w *watchdog) Read(p []byte) (int, error) {
	n, err := w.reader.Read(p)
	if n > 0 {
		w.timer.Reset(idleTimeout)
	}
	return n, err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
