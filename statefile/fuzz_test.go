package statefile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func fuzzSealer(t testing.TB) *Sealer {
	t.Helper()
	sealer, err := NewSealer("cluster-id", "secretbox-secret", "")
	require.NoError(t, err)
	return sealer
}

// FuzzDecodeRecord feeds bytes as they might stand in a bucket. Nothing that was not sealed here may pass as checked.
func FuzzDecodeRecord(f *testing.F) {
	sealer := fuzzSealer(f)
	const key = "prod/state.json"
	content := []byte(`{"schemaVersion":1,"cluster":{"name":"prod","id":"x","bundleFingerprint":"y"},"writer":{"id":"w","epoch":3},` +
		`"revision":{},"ready":{"status":false,"reason":""},"audit":{"sequence":1,"hash":"h","pending":[{"nonce":"n","content":{"sequence":1}}]}}`)
	good, err := EncodeRecord(sealer, key, 7, "0123456789abcdef", content)
	require.NoError(f, err)
	f.Add(good)
	f.Add(bytes.Replace(good, []byte(`"generation":7`), []byte(`"generation":8`), 1))
	f.Add(bytes.Replace(good, []byte(`"generation":7`), []byte(`"generation":7.0`), 1))
	f.Add(bytes.Replace(good, []byte(`"epoch":3`), []byte(`"epoch": 3`), 1))
	f.Add(bytes.Replace(good, []byte(`"nonce":"0`), []byte(`"nonce":"x","nonce":"0`), 1))
	f.Add([]byte(`{"format":"ichor.maesh.dev/record/v2"}`))
	f.Add([]byte(`{"format":"ichor.maesh.dev/record/v1","key":"prod/state.json","generation":1,"nonce":"","seal":"","content":null}`))
	f.Add([]byte(`[[[[[[[[`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		record, err := DecodeRecord(sealer, key, data)
		if err == nil {
			if !record.Checked || record.Generation != 7 || record.Nonce != "0123456789abcdef" || !bytes.Equal(record.Content, content) {
				t.Fatalf("what was never sealed passed as checked: %q", data)
			}
		}
		var forged *StateForgedError
		if err != nil && !errors.As(err, &forged) && !errors.Is(err, ErrNewerSchema) {
			t.Fatalf("an error that says nothing of a seal: %v", err)
		}
		// Without the key it must not be checked, and whatever it holds must not hurt.
		record, state, err := decodeState(nil, key, data)
		if err != nil {
			return
		}
		if record.Checked {
			t.Fatal("checked without a key")
		}
		again, err := json.Marshal(state)
		require.NoError(t, err)
		var twice State
		require.NoError(t, json.Unmarshal(again, &twice))
	})
}

// FuzzDecodeLease feeds bytes as anyone might put them where a lease is; leases have no seal.
func FuzzDecodeLease(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"shard":0,"holder":"x","token":1,"generation":1,"nonce":"n","renewedAt":"2026-11-29T12:00:00Z"}`))
	f.Add([]byte(`{"schemaVersion":2}`))
	f.Add([]byte(`{"schemaVersion":1,"shard":-1,"nonce":"n"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		record, err := decodeLease("leases/0.json", data)
		if err == nil && (record.Shard != 0 || record.Nonce == "") {
			t.Fatalf("%+v is no lease of shard 0", record)
		}
	})
}

// FuzzParseS3Credentials feeds what someone might seal as credentials. No error may hold any of it.
func FuzzParseS3Credentials(f *testing.F) {
	f.Add("accessKeyID: CANARY\nsecretAccessKey: CANARY\n")
	f.Add("accessKeyID: CANARY")
	f.Add("CANARY: [CANARY")
	f.Add("&a [*a, CANARY]")
	f.Fuzz(func(t *testing.T, text string) {
		credentials, err := ParseS3Credentials([]byte(text))
		if err != nil {
			require.NotContains(t, err.Error(), "CANARY")
			return
		}
		require.NotEmpty(t, credentials.AccessKeyID)
		require.NotEmpty(t, credentials.SecretAccessKey)
		require.NotContains(t, credentials.String(), "CANARY")
	})
}

// oneObject is a store in which every key holds the same.
type oneObject struct {
	Store
	data []byte
}

func (s oneObject) Get(_ context.Context, key, _ string) (*Object, error) {
	return &Object{Key: key, Data: s.data, ETag: "etag"}, nil
}

// FuzzReadEvent feeds bytes as they might stand in a bucket where an event of the audit does. With the key only what was sealed for this very place
// is an event; without it whatever is read has the number of its place.
func FuzzReadEvent(f *testing.F) {
	sealer := fuzzSealer(f)
	key := auditKey("prod", 7)
	content := []byte(`{"sequence":7,"previous":"","at":"2026-11-30T12:00:00Z","action":"Resolved","stateGeneration":9}`)
	good, err := EncodeRecord(sealer, key, 7, "0123456789abcdef", content)
	require.NoError(f, err)
	f.Add(good)
	elsewhere, err := EncodeRecord(sealer, auditKey("prod", 8), 7, "0123456789abcdef", content)
	require.NoError(f, err)
	f.Add(elsewhere)
	f.Add(bytes.Replace(good, []byte(`"sequence":7`), []byte(`"sequence":8`), 1))
	f.Add(bytes.Replace(good, []byte(`"action"`), []byte(`"later"`), 1))
	f.Add([]byte(`{"format":"ichor.maesh.dev/record/v1","key":"prod/audit/0000000007.json","generation":7,"nonce":"","seal":"","content":{"sequence":7}}`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		ctx := context.Background()
		if _, read, err := readEvent(ctx, oneObject{data: data}, sealer, key); err == nil && !bytes.Equal(read, content) {
			t.Fatalf("what was never sealed passed as an event: %q", data)
		}
		event, _, err := readEvent(ctx, oneObject{data: data}, nil, key)
		if err != nil {
			return
		}
		text, err := json.Marshal(event)
		require.NoError(t, err)
		var again Event
		require.NoError(t, json.Unmarshal(text, &again))
	})
}

// FuzzBegun feeds bytes as they might stand where it stands that an operation was begun. It is one's own only where one's own nonce is sealed
// in it for this very place; all else says that it was begun before.
func FuzzBegun(f *testing.F) {
	sealer := fuzzSealer(f)
	digest := strings.Repeat("ab", 32)
	key := onceKey("prod", digest)
	content := []byte(`{"name":"x","digest":"` + digest + `","at":"2026-11-30T12:00:00Z","writer":{"id":"w","epoch":3}}`)
	seal := func(key, nonce string) []byte {
		data, err := EncodeRecord(sealer, key, 1, nonce, content)
		require.NoError(f, err)
		return data
	}
	own, others := seal(key, "0123456789abcdef"), seal(key, "fedcba9876543210")
	f.Add(own)
	f.Add(others)
	f.Add(seal(onceKey("test", digest), "0123456789abcdef"))
	f.Add(bytes.Replace(others, []byte("fedcba9876543210"), []byte("0123456789abcdef"), 1))
	f.Add([]byte(`{"format":"ichor.maesh.dev/record/v2"}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Cluster{store: oneObject{data: data}, opts: Options{Name: "prod", Sealer: sealer}}
		err := c.begunBy(context.Background(), key, "0123456789abcdef", ErrConflict)
		var begun *AlreadyBegunError
		switch {
		case err == nil:
			record, err := DecodeRecord(sealer, key, data)
			require.NoError(t, err)
			require.Equal(t, string(content), string(record.Content), "what was never sealed here passed as one's own")
		case errors.As(err, &begun):
			require.Equal(t, key, begun.Key)
		default:
			require.ErrorIs(t, err, ErrNewerSchema)
		}
	})
}

// FuzzHighWater feeds bytes as they might stand in the cache folder: what was seen is read whole, or said to be unreadable.
func FuzzHighWater(f *testing.F) {
	f.Add([]byte(`{"generation":7,"nonce":"0123456789abcdef"}`))
	f.Add([]byte(`{"generation":18446744073709551616}`))
	f.Add([]byte(`{"generation":7}{}`))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		w := &highWater{cluster: "prod", file: filepath.Join(t.TempDir(), "prod.json")}
		require.NoError(t, os.WriteFile(w.file, data, 0o600))
		saved, err := w.load()
		if err != nil {
			require.Contains(t, err.Error(), "removing the file gives up the guard")
			return
		}
		w.generation, w.nonce = saved.Generation, saved.Nonce
		require.NoError(t, w.save())
		again, err := w.load()
		require.NoError(t, err)
		require.Equal(t, saved, again)
	})
}

// FuzzParseStoreURL holds that a state is in one place, and that what is refused is never quoted: it may hold a password.
func FuzzParseStoreURL(f *testing.F) {
	for _, text := range []string{"s3://bucket/prefix", "s3://bucket", "file:///path", "file://localhost/path", "s3://user:CANARY@bucket", "s3://", "file://host/path",
		"s3://bucket/?CANARY", "https://CANARY", "s3:bucket", "file:///", "s3://bucket/a/../b", "s3://bucket/%00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		where, err := ParseStoreURL(text)
		if err != nil {
			require.NotContains(t, err.Error(), "CANARY")
			return
		}
		require.NotEqual(t, where.Bucket == "", where.Folder == "")
		require.Equal(t, where.Prefix, trimmedPrefix(where.Prefix))
	})
}

func trimmedPrefix(prefix string) string { return string(bytes.Trim([]byte(prefix), "/")) }
