package schema

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/printable"
)

// FuzzDecode holds what must be true of any bytes: decoding ends, every problem is a printable line with a place in the
// file, an object is either whole or named as broken, and what is whole can be written as JSON and is the same each time.
func FuzzDecode(f *testing.F) {
	for _, document := range strings.Split(fullYAML, "\n---\n") {
		f.Add([]byte(document))
	}
	for _, c := range refusals() {
		f.Add([]byte(c.document))
	}
	for _, text := range []string{"", "---\n---\n", fullYAML, billionLaughs(clusterYAML), "a: &a [*a]", "? - ? -", "%TAG ! x\n--- !a b", "\xef\xbb\xbfa: b",
		"<<: {kind: Policy}\n", "kind: &k TalosMachine\nmetadata: {name: *k}", "\"\\x1b[31m\": 1", "a: |2\n  x", "- !!binary x", "a: 0x1_0", "2001-01-01: 1"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 64<<10 {
			return
		}
		began := time.Now()
		fleet, problems := Decode("dir/a.yaml", data)
		require.Less(t, time.Since(began), time.Minute)
		lastLine := strings.Count(string(data), "\n") + 2
		for _, p := range problems {
			require.Equal(t, "dir/a.yaml", p.File)
			require.NotEmpty(t, p.Message)
			require.LessOrEqual(t, p.Line, lastLine)
			for _, text := range []string{p.Message, p.Kind, p.Name, p.Cluster} {
				require.Equal(t, printable.Text(text), text)
				require.Less(t, len(text), 4096)
			}
		}
		if len(fleet.Broken) > 0 {
			require.NotEmpty(t, problems, "what is broken has a reason")
		}
		first, err := json.Marshal(fleet)
		require.NoError(t, err)
		again, _ := Decode("dir/a.yaml", data)
		second, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(first), string(second))
	})
}
