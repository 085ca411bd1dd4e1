package backup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
)

// The parts of bbolt's file format (version 2) that lead to the last key of etcd's key space. Numbers are little-endian, as on
// everything that Talos runs on.
const (
	pageHeaderSize = 16 // id 8, flags 2, count 2, overflow 4
	elementSize    = 16 // of a branch: pos 4, ksize 4, page 8; of a leaf: flags 4, pos 4, ksize 4, vsize 4
	branchPageFlag = 0x01
	leafPageFlag   = 0x02
	metaPageFlag   = 0x04
	bucketFlag     = 0x01
	metaMagic      = 0xED0CDAED
	metaVersion    = 2
	metaSize       = 64
	bucketSize     = 16 // root page 8, sequence 8; an inline bucket's page follows
	minPageSize    = 512
	maxPageSize    = 64 << 10
	// maxDepth ends a walk over pages that lead in a circle.
	maxDepth = 64
)

// etcd keeps its key space in the bucket "key". A key of it is 8 bytes of revision (big-endian), '_', 8 bytes that count within the
// revision, and 't' where the entry is a deletion.
const (
	keySpace        = "key"
	revisionKeySize = 17
	revisionSize    = 8
	// firstRevision is what an etcd without a single key is at.
	firstRevision = 1
)

var errNoRevision = errors.New("no revision can be read from the snapshot: it isn't a bbolt file of etcd")

// revisionReader finds the revision of an etcd snapshot while its bytes pass, so that the plaintext needn't be stored to be asked. It
// notes where the last element of each page leads, and at the end goes down the right edge of the key space. It keeps 8 bytes a page of the
// file, so 16 MiB for an etcd of 8 GiB.
type revisionReader struct {
	pageSize int
	page     []byte // what came of the page that is being filled
	number   uint64 // of that page
	metas    []meta
	ends     ends
	// toward is, by branch page, the child under which the bucket of the key space would be.
	toward map[uint64]uint64
	// spaces is, by leaf page, the bucket of the key space that it holds.
	spaces map[uint64]space
	// waiting are last keys that begin beyond the page on which their leaf does, by the page on which they begin.
	waiting map[uint64][]wait
}

type meta struct{ root, transaction uint64 }

// space is where a key space begins; where it is too small for pages of its own, its revision itself.
type space struct {
	root, inline uint64
}

// wait is the last key of a leaf, or the rest of it, that stands on a later page, behind a long value.
type wait struct {
	leaf   uint64
	offset int // within the later page
	got    []byte
}

func newRevisionReader() *revisionReader {
	return &revisionReader{toward: map[uint64]uint64{}, spaces: map[uint64]space{}, waiting: map[uint64][]wait{}}
}

// ends are, by page, where its last element leads: the revision of a leaf's last key, or a branch's last child. It grows without being
// copied.
type ends struct{ blocks []*[1 << 16]uint64 }

const endIsPage = 1 << 63

func (e *ends) set(page, end uint64) {
	for uint64(len(e.blocks)) <= page>>16 {
		e.blocks = append(e.blocks, new([1 << 16]uint64))
	}
	e.blocks[page>>16][page&0xffff] = end
}

// get gives zero where nothing is known.
func (e *ends) get(page uint64) uint64 {
	if page>>16 >= uint64(len(e.blocks)) {
		return 0
	}
	return e.blocks[page>>16][page&0xffff]
}

// Write never fails: what can't be understood has no revision.
func (r *revisionReader) Write(p []byte) (int, error) {
	written := len(p)
	for len(p) > 0 {
		n := min(max(r.pageSize, minPageSize)-len(r.page), len(p))
		r.page = append(r.page, p[:n]...)
		p = p[n:]
		if r.pageSize == 0 && len(r.page) == minPageSize {
			if r.pageSize = readPageSize(r.page); r.pageSize == 0 {
				r.pageSize = maxPageSize // it is no bbolt file, and nothing will be found in it
			}
		}
		if r.pageSize > 0 && len(r.page) == r.pageSize {
			r.read()
			r.number++
			r.page = r.page[:0]
		}
	}
	return written, nil
}

func readPageSize(page []byte) int {
	body := page[pageHeaderSize:]
	size := int(binary.LittleEndian.Uint32(body[8:]))
	if binary.LittleEndian.Uint32(body) != metaMagic || size < minPageSize || size > maxPageSize || size&(size-1) != 0 {
		return 0
	}
	return size
}

// read notes what the page says. Pages that are free, or in the middle of a long value, may look like anything; nothing that lives leads
// to them.
func (r *revisionReader) read() {
	for _, w := range r.waiting[r.number] {
		r.readKey(w)
	}
	delete(r.waiting, r.number)
	if binary.LittleEndian.Uint64(r.page) != r.number {
		return
	}
	switch count := int(binary.LittleEndian.Uint16(r.page[10:])); binary.LittleEndian.Uint16(r.page[8:]) {
	case metaPageFlag:
		r.readMeta()
	case branchPageFlag:
		r.readBranch(count)
	case leafPageFlag:
		r.readLeaf(count)
	}
}

func (r *revisionReader) readMeta() {
	body := r.page[pageHeaderSize:]
	if r.number > 1 || binary.LittleEndian.Uint32(body) != metaMagic || binary.LittleEndian.Uint32(body[4:]) != metaVersion {
		return
	}
	sum := fnv.New64a()
	_, _ = sum.Write(body[:metaSize-8])
	if sum.Sum64() != binary.LittleEndian.Uint64(body[metaSize-8:]) {
		return
	}
	r.metas = append(r.metas, meta{root: binary.LittleEndian.Uint64(body[16:]), transaction: binary.LittleEndian.Uint64(body[48:])})
}

func (r *revisionReader) readBranch(count int) {
	for n := range count {
		at := pageHeaderSize + n*elementSize
		if at+elementSize > len(r.page) {
			return
		}
		child := binary.LittleEndian.Uint64(r.page[at+8:])
		from := at + int(binary.LittleEndian.Uint32(r.page[at:]))
		to := from + int(binary.LittleEndian.Uint32(r.page[at+4:]))
		if n == 0 || from <= to && to <= len(r.page) && bytes.Compare(r.page[from:to], []byte(keySpace)) <= 0 {
			r.toward[r.number] = child
		}
		if n == count-1 && child < endIsPage {
			r.ends.set(r.number, child|endIsPage)
		}
	}
}

func (r *revisionReader) readLeaf(count int) {
	for n := range count {
		at := pageHeaderSize + n*elementSize
		if at+elementSize > len(r.page) {
			return
		}
		flags, keySize := binary.LittleEndian.Uint32(r.page[at:]), binary.LittleEndian.Uint32(r.page[at+8:])
		key := at + int(binary.LittleEndian.Uint32(r.page[at+4:]))
		if flags&bucketFlag != 0 && keySize == uint32(len(keySpace)) {
			r.readSpace(key, int(binary.LittleEndian.Uint32(r.page[at+12:])))
		}
		if n < count-1 || keySize != revisionKeySize && keySize != revisionKeySize+1 {
			continue
		}
		if key < len(r.page) {
			r.readKey(wait{leaf: r.number, offset: key})
			continue
		}
		later := r.number + uint64(key/len(r.page))
		r.waiting[later] = append(r.waiting[later], wait{leaf: r.number, offset: key % len(r.page)})
	}
}

// readKey takes what this page holds of a key's revision.
func (r *revisionReader) readKey(w wait) {
	end := min(w.offset+revisionSize-len(w.got), len(r.page))
	w.got = append(w.got, r.page[w.offset:end]...)
	if len(w.got) < revisionSize {
		w.offset = 0
		r.waiting[r.number+1] = append(r.waiting[r.number+1], w)
		return
	}
	if revision := binary.BigEndian.Uint64(w.got); revision < endIsPage {
		r.ends.set(w.leaf, revision)
	}
}

// readSpace notes the bucket of the key space, with its revision where it has no page of its own.
func (r *revisionReader) readSpace(key, size int) {
	value := key + len(keySpace)
	if value+size > len(r.page) || size < bucketSize || string(r.page[key:value]) != keySpace {
		return
	}
	found := space{root: binary.LittleEndian.Uint64(r.page[value:])}
	if found.root == 0 {
		inline := r.page[value+bucketSize : value+size]
		if len(inline) < pageHeaderSize {
			return
		}
		found.inline = firstRevision
		if count := int(binary.LittleEndian.Uint16(inline[10:])); count > 0 {
			at := pageHeaderSize + (count-1)*elementSize
			if at+elementSize > len(inline) {
				return
			}
			key := at + int(binary.LittleEndian.Uint32(inline[at+4:]))
			if key+revisionSize > len(inline) {
				return
			}
			found.inline = binary.BigEndian.Uint64(inline[key:])
		}
	}
	r.spaces[r.number] = found
}

// revision gives the revision of the snapshot that was written.
func (r *revisionReader) revision() (int64, error) {
	var newest meta
	for _, m := range r.metas {
		if m.transaction >= newest.transaction {
			newest = m
		}
	}
	page := newest.root
	for range maxDepth {
		next, ok := r.toward[page]
		if !ok {
			break
		}
		page = next
	}
	found, ok := r.spaces[page]
	if !ok {
		return 0, errNoRevision
	}
	end := found.inline
	for range maxDepth {
		if found.root == 0 {
			break
		}
		if end = r.ends.get(found.root); end&endIsPage == 0 {
			break
		}
		found.root = end &^ endIsPage
	}
	if end == 0 || end >= endIsPage {
		return 0, errNoRevision
	}
	return int64(end), nil
}
