package gitsource

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/printable"
)

// packOf makes a pack of raw entries with a right checksum.
func packOf(count uint32, entries ...[]byte) []byte {
	data := append([]byte("PACK\x00\x00\x00\x02"), binary.BigEndian.AppendUint32(nil, count)...)
	for _, entry := range entries {
		data = append(data, entry...)
	}
	sum := sha1.Sum(data)
	return append(data, sum[:]...)
}

// header is an object's header: its type (3 is a file) and its size.
func header(kind byte, size uint64) []byte {
	b := kind<<4 | byte(size&0x0f)
	size >>= 4
	var out []byte
	for size > 0 {
		out = append(out, b|0x80)
		b = byte(size & 0x7f)
		size >>= 7
	}
	return append(out, b)
}

func storeInto(t testing.TB, pack []byte, limit int64) error {
	t.Helper()
	folder := t.TempDir()
	require.NoError(t, initRepository(filepath.Join(folder, "r")))
	err := storePack(t.Context(), bytes.NewReader(pack), filepath.Join(folder, "r"), limit)
	if err != nil {
		entries, readErr := os.ReadDir(filepath.Join(folder, "r", "objects", "pack"))
		require.NoError(t, readErr)
		require.Empty(t, entries, "nothing is half done")
	}
	return err
}

func TestPacksAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		pack  []byte
		limit int64
		want  string
	}{
		"more bytes than allowed":                   {packOf(0, make([]byte, 2<<20)), 1 << 20, "bigger than 1 MiB"},
		"more objects than go-git can hold":         {packOf(1 << 31), 1 << 20, "2147483648 objects"},
		"an object that says it is huge":            {packOf(1, header(3, 1<<40)), 1 << 20, "more than 256 MiB"},
		"an object whose size is beyond all bounds": {packOf(1, header(3, 1<<63)), 1 << 20, "overflow"},
		"fewer objects than it says":                {packOf(1), 1 << 20, "broken"},
		"not a pack":                                {append([]byte("JACK"), packOf(0)[4:]...), 1 << 20, "checksum is wrong"},
		"nothing":                                   {nil, 1 << 20, "ended too early"},
		"a wrong checksum":                          {append(packOf(0)[:31], 0), 1 << 20, "checksum is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			err := storeInto(t, c.pack, c.limit)
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("a delta that makes something huge of little", func(t *testing.T) {
		w := &headWriter{}
		_, _ = w.Write([]byte{0x05, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}) // 5 bytes to 2^35
		require.Equal(t, int64(1)<<35, w.targetSize())
		require.Greater(t, (&headWriter{head: bytes.Repeat([]byte{0xff}, 20)}).targetSize(), int64(maxObject))
	})
}

// fullDisk gives ENOSPC after some bytes.
type fullDisk struct{ room int }

func (f *fullDisk) Write(p []byte) (int, error) {
	if len(p) > f.room {
		n := f.room
		f.room = 0
		return n, &fs.PathError{Op: "write", Path: "/cache/x", Err: syscall.ENOSPC}
	}
	f.room -= len(p)
	return len(p), nil
}

func TestAFullDiskIsSaidAsSuch(t *testing.T) {
	err := writePack(&fullDisk{room: 10}, bytes.NewReader(packOf(0, make([]byte, 100))), 1<<20)
	require.ErrorIs(t, err, syscall.ENOSPC)
	p := &poll{source: &Source{config: Config{Cache: "/cache"}, location: location{shown: "https://host/x"}}}
	explained := p.explain(t.Context(), err)
	require.EqualError(t, explained, "the disk of the cache folder /cache is full; make room there: it goes on by itself")
}

func FuzzDecodeTree(f *testing.F) {
	hash := strings.Repeat("\x01", 20)
	f.Add([]byte("100644 a\x00" + hash + "40000 b\x00" + hash))
	f.Add([]byte("120000 ..\x00" + hash))
	f.Add([]byte("160000 sub\x00" + hash + "100755 .git\x00" + hash))
	f.Add([]byte("100644 a\x00short"))
	f.Add([]byte("100644"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decodeTree(data)
		if err != nil {
			return
		}
		for i, e := range d.entries {
			found, ok := d.find(e.name)
			require.True(t, ok)
			require.Equal(t, e.name, found.name)
			if d.refused == "" {
				require.NotEmpty(t, e.name)
				require.NotContains(t, e.name, "/")
				require.NotContains(t, []string{".", "..", ".git"}, e.name)
				require.True(t, i == 0 || d.entries[i-1].name < e.name, "names are sorted and stand once")
			}
		}
	})
}

func TestACommitOfAnyTimeHasOneThatCanBeWrittenDown(t *testing.T) {
	for when, want := range map[string]string{
		"1767225600 +0100":           "2026-01-01T00:00:00Z",
		"1767225600 +9900":           "2026-01-01T00:00:00Z",
		"9223372036854775807 +0000":  "9999-12-31T23:59:59Z",
		"253402300800 +0000":         "9999-12-31T23:59:59Z",
		"-1 +0000":                   "1970-01-01T00:00:00Z",
		"-9223372036854775808 -9959": "1970-01-01T00:00:00Z",
		"never":                      "1970-01-01T00:00:00Z",
	} {
		c, err := decodeCommit(plumbing.ZeroHash, []byte("tree "+strings.Repeat("a", 40)+"\nauthor A <a@x> "+when+"\ncommitter A <a@x> "+when+"\n\nx\n"))
		require.NoError(t, err, when)
		text, err := json.Marshal(c.committed)
		require.NoError(t, err, when)
		require.Equal(t, `"`+want+`"`, string(text), when)
	}
}

// FuzzDecodeCommit reads anything as a commit: it panics nowhere, its texts act on no terminal, and its time can be written down.
func FuzzDecodeCommit(f *testing.F) {
	f.Add([]byte("tree " + strings.Repeat("a", 40) + "\nparent " + strings.Repeat("b", 40) + "\nauthor A <a@x> 1767225600 +0000\ncommitter A <a@x> 9223372036854775807 +9900\n\nx\n"))
	f.Add([]byte("author \x1b[2J> <\ncommitter <> \n\n"))
	f.Add([]byte("gpgsig -----BEGIN\n x\nmergetag object\n tag \n\n"))
	f.Add([]byte("encoding \n\n\u009b"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeCommit(plumbing.ZeroHash, data)
		if err != nil {
			return
		}
		_, err = json.Marshal(c.committed)
		require.NoError(t, err)
		require.Equal(t, printable.Text(c.author), c.author)
		require.Equal(t, printable.Text(c.subject), c.subject)
		require.Less(t, len(c.author)+len(c.subject), 500)
	})
}

// FuzzServer feeds anything as what a Git server says, over pipes: its list of references, then its answer to what is asked for. Nothing panics.
func FuzzServer(f *testing.F) {
	const head = "0032" // the length of a line with a hash and a short name
	hash := strings.Repeat("a", 40)
	f.Add([]byte("003f"+hash+" HEAD\x00multi_ack side-band-64k\n003d"+hash+" refs/heads/main\n0000"), []byte("0008NAK\nPACK"))
	f.Add([]byte(head+hash+" HEAD\n0000"), []byte("0038ACK "+hash+" ready\n"))
	f.Add([]byte("0035shallow "+hash+"\n0000"), []byte("0001"))
	f.Add([]byte("0000"), []byte("ffff"))
	f.Add([]byte(""), []byte("\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, references, answer []byte) {
		s := &stream{in: discarded{}, out: io.MultiReader(bytes.NewReader(references), bytes.NewReader(answer)), kill: func() {}, wait: func() string { return "" }}
		refs, err := s.AdvertisedReferencesContext(t.Context())
		if err != nil {
			return
		}
		_, _ = refs.AllReferences()
		request := packp.NewUploadPackRequest()
		request.Wants = []plumbing.Hash{plumbing.NewHash(hash)}
		response, err := s.UploadPack(t.Context(), request)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, response)
		_ = response.Close()
		_ = packp.NewReportStatus().Decode(sideband.NewDemuxer(sideband.Sideband64k, bytes.NewReader(answer)))
	})
}

type discarded struct{}

func (discarded) Write(p []byte) (int, error) { return len(p), nil }
func (discarded) Close() error                { return nil }

func FuzzStorePack(f *testing.F) {
	f.Add(packOf(0))
	f.Add(packOf(1, header(3, 5), []byte("x\x9c\xcaH\xcd\xc9\xc9\x07\x04\x00\x00\xff\xff\x06,\x02\x15")))
	f.Add(packOf(1, header(7, 5), bytes.Repeat([]byte{1}, 20), []byte("x\x9c\x03\x00\x00\x00\x00\x01")))
	f.Add(packOf(1, header(6, 5), []byte{0x80, 0x00}))
	f.Add(packOf(1<<31, header(3, 1<<62)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 20 { // a right checksum, so that more than it is looked at
			sum := sha1.Sum(data[:len(data)-20])
			data = append(data[:len(data)-20:len(data)-20], sum[:]...)
		}
		_ = storeInto(t, data, 1<<20)
	})
}

func FuzzReadRecord(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"seen":"0123456789012345678901234567890123456789"}`))
	f.Add([]byte(`{"schemaVersion":1,"good":"../../x"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), "record.json")
		require.NoError(t, os.WriteFile(file, data, 0o600))
		r, err := readRecord(file)
		if err == nil {
			require.True(t, r.Seen == "" || isHash(r.Seen))
			require.NoError(t, r.write(file))
			again, err := readRecord(file)
			require.NoError(t, err)
			require.Equal(t, r, again)
		}
	})
}

func FuzzParseLocation(f *testing.F) {
	for _, seed := range []string{"https://user:secret@host/x", "git@host:x", "ssh://git@host:22/x", "file:///x", "/x", "https://h:99999/x", "://", "a@b:c:d", "https://[::1]/x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		l, err := parseLocation(raw)
		if err != nil {
			return
		}
		require.False(t, l.password != "" && len(l.password) > 8 && !strings.Contains(l.endpoint.Host+l.endpoint.Path, l.password) && strings.Contains(l.shown, l.password))
		require.Empty(t, l.endpoint.Password)
	})
}
