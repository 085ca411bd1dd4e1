package gitsource

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"ichor.maesh.dev/internal/wholefile"
)

const (
	// maxObjects bounds the objects of one pack: go-git holds some 300 bytes for each while it makes the index.
	maxObjects = 1_000_000
	// maxObject bounds one object of a pack, in bytes: go-git holds it whole while it makes the index.
	maxObject = 256 << 20
	// maxObjectSum bounds all objects of a pack together, in bytes: the time that unpacking takes.
	maxObjectSum = 32 << 30
)

// tooBigError says which bound a pack is over.
type tooBigError struct{ what string }

func (e *tooBigError) Error() string { return e.what }

// brokenPackError says that what the server sent is no whole pack.
type brokenPackError struct{ cause error }

func (e *brokenPackError) Error() string { return "the pack is broken: " + e.cause.Error() }
func (e *brokenPackError) Unwrap() error { return e.cause }

// receivePack asks for want and stores what comes in the repository folder: the whole pack with its index, or nothing.
func receivePack(ctx context.Context, from session, refs *packp.AdvRefs, want plumbing.Hash, haves []plumbing.Hash, repository string, limit int64) (err error) {
	request := packp.NewUploadPackRequestFromCapabilities(refs.Capabilities)
	// go-git's decoder does not understand these two.
	request.Capabilities.Delete(capability.MultiACK)
	request.Capabilities.Delete(capability.MultiACKDetailed)
	request.Capabilities.Delete(capability.ThinPack)
	if refs.Capabilities.Supports(capability.NoProgress) {
		if err := request.Capabilities.Set(capability.NoProgress); err != nil {
			return err
		}
	}
	request.Wants = []plumbing.Hash{want}
	request.Haves = haves
	response, err := from.UploadPack(ctx, request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Close() }()

	var pack io.Reader = response
	switch {
	case request.Capabilities.Supports(capability.Sideband64k):
		pack = sideband.NewDemuxer(sideband.Sideband64k, response)
	case request.Capabilities.Supports(capability.Sideband):
		pack = sideband.NewDemuxer(sideband.Sideband, response)
	}
	return storePack(ctx, pack, repository, limit)
}

func storePack(ctx context.Context, pack io.Reader, repository string, limit int64) (err error) {
	folder := filepath.Join(repository, "objects", "pack")
	temp, err := os.CreateTemp(folder, tempPrefix)
	if err != nil {
		return err
	}
	defer func() {
		_ = temp.Close()
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	if err := writePack(temp, pack, limit); err != nil {
		return err
	}
	if err := inspectPack(ctx, temp); err != nil {
		return err
	}
	index, checksum, err := indexPack(temp)
	if err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	// The index goes last: a pack without one is not looked at.
	name := filepath.Join(folder, "pack-"+checksum.String())
	if err := os.Rename(temp.Name(), name+".pack"); err != nil {
		return err
	}
	if err := wholefile.Write(name+".idx", index); err != nil {
		_ = os.Remove(name + ".pack")
		return err
	}
	return nil
}

// writePack writes pack and proves its checksum, which is its last 20 bytes.
func writePack(to io.Writer, pack io.Reader, limit int64) error {
	hasher := &trailerHash{hash: sha1.New()}
	written, err := io.Copy(io.MultiWriter(to, hasher), io.LimitReader(pack, limit+1))
	switch {
	case err != nil && written == 0 && errors.Is(err, io.EOF):
		return &brokenPackError{io.ErrUnexpectedEOF}
	case err != nil:
		return err
	case written > limit:
		return &tooBigError{fmt.Sprintf("its pack is bigger than %d MiB", limit>>20)}
	}
	return hasher.check()
}

// inspectPack reads every object's header and inflates it, before go-git makes room for what the headers promise.
func inspectPack(ctx context.Context, file io.ReadSeeker) (err error) {
	defer recoverBroken(&err)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	scanner := packfile.NewScanner(file)
	_, count, err := scanner.Header()
	if err != nil {
		return &brokenPackError{err}
	}
	if count > maxObjects {
		return &tooBigError{fmt.Sprintf("its pack holds %d objects and at most %d are taken", count, maxObjects)}
	}
	var sum int64
	for range count {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := scanner.NextObjectHeader()
		if err != nil {
			return &brokenPackError{err}
		}
		size := header.Length
		head := &headWriter{}
		if size >= 0 && size <= maxObject {
			if _, _, err := scanner.NextObject(head); err != nil {
				return &brokenPackError{err}
			}
			if header.Type.IsDelta() {
				size = max(size, head.targetSize())
			}
		}
		sum += size
		if size < 0 || size > maxObject || sum > maxObjectSum {
			return &tooBigError{fmt.Sprintf("it holds a file of more than %d MiB, or more than %d GiB of them", int64(maxObject)>>20, int64(maxObjectSum)>>30)}
		}
	}
	return nil
}

// headWriter keeps the first bytes of an inflated delta: the sizes of its base and of its target.
type headWriter struct{ head []byte }

func (w *headWriter) Write(p []byte) (int, error) {
	if room := 20 - len(w.head); room > 0 {
		w.head = append(w.head, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// targetSize gives the size of what a delta makes; more than any bound where that can't be read.
func (w *headWriter) targetSize() int64 {
	_, rest := deltaSize(w.head)
	size, _ := deltaSize(rest)
	return size
}

// deltaSize reads one little-endian base-128 number.
func deltaSize(data []byte) (size int64, rest []byte) {
	for i, b := range data {
		if i == 8 {
			break
		}
		size |= int64(b&0x7f) << (7 * i)
		if b&0x80 == 0 {
			return size, data[i+1:]
		}
	}
	return maxObject + 1, nil
}

func indexPack(file io.ReadSeeker) (_ []byte, _ plumbing.Hash, err error) {
	defer recoverBroken(&err)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, plumbing.ZeroHash, err
	}
	writer := &idxfile.Writer{}
	parser, err := packfile.NewParser(packfile.NewScanner(file), writer)
	if err != nil {
		return nil, plumbing.ZeroHash, &brokenPackError{err}
	}
	checksum, err := parser.Parse()
	if err != nil {
		return nil, plumbing.ZeroHash, &brokenPackError{err}
	}
	index, err := writer.Index()
	if err != nil {
		return nil, plumbing.ZeroHash, &brokenPackError{err}
	}
	var data bytes.Buffer
	if _, err := idxfile.NewEncoder(&data).Encode(index); err != nil {
		return nil, plumbing.ZeroHash, err
	}
	return data.Bytes(), checksum, nil
}

// recoverBroken makes a panic of go-git over foreign bytes an error: one bad server must not end the agent.
func recoverBroken(err *error) {
	if reason := recover(); reason != nil {
		*err = &brokenPackError{fmt.Errorf("%v", reason)}
	}
}

// trailerHash hashes all that is written to it but the last 20 bytes.
type trailerHash struct {
	hash interface {
		io.Writer
		Sum([]byte) []byte
	}
	tail []byte
}

func (t *trailerHash) Write(p []byte) (int, error) {
	t.tail = append(t.tail, p...)
	if over := len(t.tail) - sha1.Size; over > 0 {
		_, _ = t.hash.Write(t.tail[:over])
		t.tail = append(t.tail[:0], t.tail[over:]...)
	}
	return len(p), nil
}

func (t *trailerHash) check() error {
	if len(t.tail) < sha1.Size || !bytes.Equal(t.tail, t.hash.Sum(nil)) {
		return &brokenPackError{errors.New("its checksum is wrong, or it ended too early")}
	}
	return nil
}

// tempPrefix begins the name of a pack that isn't whole yet.
const tempPrefix = "tmp_pack_"

// sweepPacks removes what an interrupted fetch left, and packs without an index.
func sweepPacks(repository string) {
	folder := filepath.Join(repository, "objects", "pack")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name := entry.Name()
		base, isPack := strings.CutSuffix(name, ".pack")
		stray := false
		if isPack {
			_, err := os.Stat(filepath.Join(folder, base+".idx"))
			stray = errors.Is(err, os.ErrNotExist)
		}
		if stray || strings.HasPrefix(name, tempPrefix) || strings.HasPrefix(name, wholefile.Prefix) {
			_ = os.Remove(filepath.Join(folder, name))
		}
	}
}

// countPacks tells how many packs the clone is made of.
func countPacks(repository string) int { return len(packsOf(repository)) }

// packsOf names the indexes of the packs that a clone is made of.
func packsOf(repository string) []string {
	packs, _ := filepath.Glob(filepath.Join(repository, "objects", "pack", "pack-*.idx"))
	return packs
}
