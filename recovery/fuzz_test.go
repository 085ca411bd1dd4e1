package recovery

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDecodeMarker feeds the content of a restore's marker. What is read is of a version and a kind that this program knows, loses nothing when it is
// written again, and can be asked for anything without harm.
func FuzzDecodeMarker(f *testing.F) {
	full := Marker{}
	text, err := json.Marshal(full)
	require.NoError(f, err)
	f.Add([]byte(text))
	f.Add([]byte(`{"schemaVersion":1,"kind":"` + markerKind + `","phase":"Wiping"}`))
	f.Add([]byte(`{"schemaVersion":99,"kind":"` + markerKind + `"}`))
	f.Add([]byte(`{"schemaVersion":1,"kind":"` + markerKind + `","intents":[{"nonce":"a","action":"reset","machine":"cp-1","at":"2026-11-30T03:00:00Z"}]}`))
	f.Add([]byte(`{"schemaVersion":1,"kind":"` + markerKind + `","unknown":true}`))
	f.Add([]byte(`{"schemaVersion":1,"kind":"` + markerKind + `"}{}`))
	f.Add([]byte(`{"schemaVersion":1,"kind":"another"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, content []byte) {
		m, err := DecodeMarker(content)
		if err != nil {
			return
		}
		require.Equal(t, markerKind, m.Kind)
		require.LessOrEqual(t, m.SchemaVersion, markerVersion)
		text, err := json.Marshal(m)
		require.NoError(t, err)
		again, err := DecodeMarker(text)
		require.NoError(t, err)
		second, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(text), string(second))
		require.Nil(t, m.find("a nonce that nobody made"))
		require.Nil(t, m.machine("no machine of that name, nor could there be one"))
		m.clone()
	})
}
