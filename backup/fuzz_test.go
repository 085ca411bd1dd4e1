package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// FuzzOpenSnapshot feeds bytes as they might stand in a bucket under a snapshot's name. Every refusal is one of those that are written down,
// and nothing that was not sealed with this passphrase opens to its end.
func FuzzOpenSnapshot(f *testing.F) {
	passphrase, err := NewPassphrase("cluster-id", "cluster-secret")
	require.NoError(f, err)
	plain := []byte(strings.Repeat("a snapshot ", 50))
	seal := func(passphrase Passphrase) []byte {
		var sealed bytes.Buffer
		w, err := Seal(&sealed, passphrase)
		require.NoError(f, err)
		_, err = w.Write(plain)
		require.NoError(f, errors.Join(err, w.Close()))
		return sealed.Bytes()
	}
	other, err := NewPassphrase("cluster-id", "another-secret")
	require.NoError(f, err)
	good := seal(passphrase)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(good[:30])
	f.Add(append(slices.Clone(good), 0))
	f.Add(seal(other))
	f.Add(bytes.Replace(good, []byte(" 10\n"), []byte(" 22\n"), 1))
	f.Add(bytes.Replace(good, []byte(" 10\n"), []byte(" 010\n"), 1))
	f.Add([]byte("age-encryption.org/v1\n-> X25519 abc\n"))
	f.Add([]byte("age-encryption.org/v1\n-> scrypt a 1\n" + strings.Repeat("-> x\n\n", 4000)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		opened, err := Open(bytes.NewReader(data), passphrase)
		if err == nil {
			var got []byte
			if got, err = io.ReadAll(opened); err == nil {
				require.Equal(t, plain, got, "what was never sealed opened")
				return
			}
		}
		known := slices.ContainsFunc([]error{ErrOtherBundle, ErrNoSnapshot, ErrDamaged, ErrHeavier}, func(target error) bool { return errors.Is(err, target) })
		require.True(t, known, "%v", err)
	})
}

// FuzzTrailer writes a stream in pieces of any size. It is whole exactly when its last 32 bytes are the SHA-256 of those before them and it has
// the length of a database with that behind it.
func FuzzTrailer(f *testing.F) {
	page := bytes.Repeat([]byte{7}, pageAlign)
	sum := sha256.Sum256(page)
	f.Add(append(slices.Clone(page), sum[:]...), uint16(1))
	f.Add(append(slices.Clone(page), sum[:]...), uint16(31))
	f.Add(append(slices.Clone(page), sum[:31]...), uint16(33))
	f.Add(append(append(slices.Clone(page), sum[:]...), 0), uint16(512))
	empty := sha256.Sum256(nil)
	f.Add(empty[:], uint16(7))
	f.Add([]byte{}, uint16(3))
	f.Fuzz(func(t *testing.T, data []byte, piece uint16) {
		whole := len(data)%pageAlign == sha256.Size
		if whole {
			body := data[:len(data)-sha256.Size]
			want := sha256.Sum256(body)
			whole = bytes.Equal(want[:], data[len(body):])
		}
		tr := newTrailer()
		for rest := data; len(rest) > 0; {
			n := min(int(piece)%1024+1, len(rest))
			written, err := tr.Write(rest[:n])
			require.NoError(t, err)
			require.Equal(t, n, written)
			rest = rest[n:]
		}
		if whole {
			require.NoError(t, tr.check())
		} else {
			require.ErrorIs(t, tr.check(), ErrTorn)
		}
	})
}

// FuzzDecodeIndex feeds the content of an index. What is read can be written, and read again as the same.
func FuzzDecodeIndex(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"clusterID":"x","snapshots":[{"name":"etcd-20261130T030000Z.snapshot.age","sha256":"00"},{"name":"a"}]}`))
	f.Add([]byte(`{"schemaVersion":2}`))
	f.Add([]byte(`{"schemaVersion":1,"unknown":1}`))
	f.Add([]byte(`{"schemaVersion":1,"snapshots":null}{"schemaVersion":1}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, content []byte) {
		var read index
		if err := decodeIndex(content, &read); err != nil {
			return
		}
		require.LessOrEqual(t, read.SchemaVersion, indexVersion)
		require.True(t, slices.IsSortedFunc(read.Snapshots, func(a, b Snapshot) int { return strings.Compare(a.Name, b.Name) }))
		if newest := read.newest(); newest != "" {
			require.NotNil(t, read.find(newest))
		}
		text, err := json.Marshal(read)
		require.NoError(t, err)
		var again index
		require.NoError(t, decodeIndex(text, &again))
		second, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(text), string(second))
	})
}

// FuzzSchedule holds that whatever passes for a schedule ends: its next time lies ahead, or there is none.
func FuzzSchedule(f *testing.F) {
	for _, text := range []string{"0 * * * *", "30 4 * * *", "*/7 1-5,9 1 JAN MON-FRI", "0 0 30 2 *", "0 0 29 2 *", "@hourly", "TZ=Europe/Berlin 0 0 * * *", "60 * * * *",
		"* * * *", "0 0 0 0 0", "1-0 * * * *", "*/0 * * * *", "0 * * * * *", "CRON_TZ=x", "? ? ? ? ?", "0 0 31 4,6,9,11 *"} {
		f.Add(text, int64(1_790_000_000))
	}
	f.Fuzz(func(t *testing.T, text string, at int64) {
		if len(text) > 200 {
			return
		}
		schedule, err := ParseSchedule(text)
		if err != nil {
			return
		}
		now := time.Unix(at%(1<<33), 0)
		next := schedule.Next(now)
		require.True(t, next.IsZero() || next.After(now), "%s is not after %s", next, now)
		require.Equal(t, next, schedule.Next(now), "the same each time")
		due := schedule.Due(History{LastAttempt: now, Failed: true})
		require.False(t, due.After(now.Add(retryAfter)), "a failure is tried again soon")
		if stale := schedule.StaleAt(now); !stale.IsZero() {
			require.True(t, stale.After(next))
		}
	})
}

// FuzzParseName holds that only the names that are given out are taken for snapshots.
func FuzzParseName(f *testing.F) {
	for _, name := range []string{ObjectName(time.Unix(1_790_000_000, 0)), "etcd-20261130T030000Z.snapshot.age", "etcd-20261330T030000Z.snapshot.age",
		"etcd-20261130T030000.5Z.snapshot.age", "etcd-+0261130T030000Z.snapshot.age", "etcd-restore.0123456789ab.snapshot.age", "etcd-index.json", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if at, is := ParseName(name); is {
			require.Equal(t, name, ObjectName(at))
		}
	})
}

// FuzzForeignRecord feeds whole objects where an index stands: nothing that isn't sealed by this cluster's bundle is believed.
func FuzzForeignRecord(f *testing.F) {
	sealer, err := statefile.NewSealer("cluster-id", "secretbox-secret", "")
	require.NoError(f, err)
	content := []byte(`{"schemaVersion":1,"clusterID":"x","snapshots":[]}`)
	good, err := statefile.EncodeRecord(sealer, indexKey, 3, "0123456789abcdef", content)
	require.NoError(f, err)
	f.Add(good)
	f.Add(bytes.Replace(good, []byte(`"clusterID":"x"`), []byte(`"clusterID":"y"`), 1))
	f.Add([]byte(`{"format":"ichor.maesh.dev/record/v1","key":"etcd-index.json","generation":1,"nonce":"","seal":"","content":{"schemaVersion":1}}`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		record, err := statefile.DecodeRecord(sealer, indexKey, data)
		if err != nil {
			return
		}
		require.Equal(t, string(content), string(record.Content))
	})
}
