package backup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"filippo.io/age"
)

// workFactor is scrypt's, as a power of two: the passphrase has 256 bits, so that stretching it adds nothing. A heavier one is refused
// when reading: it would only cost the reader time and memory.
const workFactor = 10

// headerLimit is how long the part of an age file before its payload may be. A snapshot's takes some 150 bytes.
const headerLimit = 4 << 10

// Errors about what a sealed snapshot holds. They are wrapped with what was being opened.
var (
	// ErrOtherBundle: the passphrase doesn't open it.
	ErrOtherBundle = errors.New("it was not sealed with this cluster's secrets bundle: it is another cluster's, or of a bundle from before the cluster " +
		"was made anew; give the bundle that the cluster had when it was taken")
	// ErrNoSnapshot: it is not an age file that a passphrase opens.
	ErrNoSnapshot = errors.New("it is no sealed snapshot")
	// ErrDamaged: it was sealed for this cluster and is not what was sealed any more.
	ErrDamaged = errors.New("it is damaged: it ends early, or bytes of it were changed; take another snapshot from the list")
	// ErrHeavier: its work factor is above what Ichor seals with.
	ErrHeavier = errors.New("it asks for more work than a snapshot of Ichor's does, so it is not opened; it was sealed by something else")
)

// Seal gives a writer whose content is sealed into w. Its Close ends the sealed file, not w.
func Seal(w io.Writer, passphrase Passphrase) (io.WriteCloser, error) {
	recipient, err := age.NewScryptRecipient(passphrase.text)
	if err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	recipient.SetWorkFactor(workFactor)
	sealing, err := age.Encrypt(w, recipient)
	if err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	return sealing, nil
}

// Open gives a reader of what was sealed. The header is read and checked here; errors of the reader are [ErrDamaged], or those of r.
func Open(r io.Reader, passphrase Passphrase) (io.Reader, error) {
	source := &origin{reader: r}
	buffered := bufio.NewReaderSize(source, headerLimit)
	if err := checkHeader(buffered); err != nil {
		return nil, source.or(err)
	}
	identity, err := age.NewScryptIdentity(passphrase.text)
	if err != nil {
		return nil, fmt.Errorf("opening: %w", err)
	}
	identity.SetMaxWorkFactor(workFactor)
	opened, err := age.Decrypt(buffered, identity)
	var noMatch *age.NoIdentityMatchError
	switch {
	case err == nil:
		return &opening{opened, source}, nil
	case errors.As(err, &noMatch):
		return nil, source.or(ErrOtherBundle)
	default:
		return nil, source.or(ErrDamaged)
	}
}

// checkHeader looks at the work factor before anything is computed, and tells what is no snapshot from what is a damaged one.
func checkHeader(r *bufio.Reader) error {
	start, err := r.Peek(headerLimit)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	magic := []byte("age-encryption.org/v1\n")
	if !bytes.HasPrefix(start, magic) {
		if len(start) < len(magic) && bytes.HasPrefix(magic, start) {
			return ErrDamaged
		}
		return ErrNoSnapshot
	}
	line, _, ended := bytes.Cut(start[len(magic):], []byte("\n"))
	if !ended && len(start) < headerLimit {
		return ErrDamaged
	}
	fields := bytes.Fields(line)
	if len(fields) != 4 || string(fields[0]) != "->" || string(fields[1]) != "scrypt" {
		return ErrNoSnapshot
	}
	factor, err := strconv.Atoi(string(fields[3]))
	switch {
	case err != nil || factor < 1:
		return ErrNoSnapshot
	case factor > workFactor:
		return ErrHeavier
	case bytes.Contains(start, []byte("\n---")):
		return nil
	case len(start) < headerLimit:
		return ErrDamaged
	}
	return ErrNoSnapshot // its header would be read into memory, however long
}

// origin remembers the error of the reader below: what couldn't be read isn't damaged.
type origin struct {
	reader io.Reader
	err    error
}

func (o *origin) Read(p []byte) (int, error) {
	n, err := o.reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		o.err = err
	}
	return n, err
}

func (o *origin) or(err error) error {
	if o.err != nil {
		return o.err
	}
	return err
}

type opening struct {
	opened io.Reader
	source *origin
}

func (o *opening) Read(p []byte) (int, error) {
	n, err := o.opened.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = o.source.or(ErrDamaged)
	}
	return n, err
}
