package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
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
