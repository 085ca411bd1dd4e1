package statefile

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func readFormats(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/formats.md")
	require.NoError(t, err)
	return string(page)
}

func TestTheExampleOfTheFormatsPageIsSealedAsThePageSays(t *testing.T) {
	_, example, found := strings.Cut(readFormats(t), "<!-- example: state.json -->\n```json\n")
	require.True(t, found)
	example, _, _ = strings.Cut(example, "```")

	// With nothing but what the page says.
	key, err := hkdf.Key(sha256.New, []byte("example-secretbox-secret"), []byte("example-cluster-id"), "ichor.maesh.dev/state-mac/v1", 32)
	require.NoError(t, err)
	require.Contains(t, readFormats(t), "`"+hex.EncodeToString(key)+"`")
	lines := strings.Split(example, "\n")
	require.Len(t, lines, 3)
	content := strings.TrimSuffix(strings.TrimPrefix(lines[1], `"content":`), "}")
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("ichor.maesh.dev/record/v1\nprod/state.json\n7\n000102030405060708090a0b0c0d0e0f\n" + content))
	require.Contains(t, lines[0], `"seal":"hmac-sha256:`+hex.EncodeToString(mac.Sum(nil))+`"`)

	// With this package.
	sealer, err := NewSealer("example-cluster-id", "example-secretbox-secret", "")
	require.NoError(t, err)
	record, state, err := decodeState(sealer, "prod/state.json", []byte(example))
	require.NoError(t, err)
	require.True(t, record.Checked)
	require.Equal(t, uint64(7), record.Generation)
	require.Equal(t, "prod", state.Cluster.Name)
	again, err := EncodeRecord(sealer, "prod/state.json", 7, record.Nonce, record.Content)
	require.NoError(t, err)
	require.Equal(t, example, string(again))
}

func TestASealUsesTheOlderSecretWhereThereIsNoNewerOne(t *testing.T) {
	older, err := NewSealer("id", "", "aescbc")
	require.NoError(t, err)
	both, err := NewSealer("id", "secretbox", "aescbc")
	require.NoError(t, err)
	newer, err := NewSealer("id", "secretbox", "")
	require.NoError(t, err)
	seal := func(s *Sealer) string { return s.Seal("a", 1, "n", []byte("{}")) }
	require.NotEqual(t, seal(older), seal(newer))
	require.Equal(t, seal(both), seal(newer))
}

func TestEveryFieldIsOnTheFormatsPage(t *testing.T) {
	page := readFormats(t)
	seen := map[reflect.Type]bool{}
	var walk func(kind reflect.Type)
	walk = func(kind reflect.Type) {
		switch kind.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(kind.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[kind] || kind == reflect.TypeFor[time.Time]() {
			return
		}
		seen[kind] = true
		for field := range kind.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				require.True(t, field.Anonymous, "%s.%s has no name in JSON", kind, field.Name)
			} else if !strings.Contains(page, "`"+name+"`") {
				t.Errorf("docs/formats.md says nothing of `%s` (%s.%s)", name, kind, field.Name)
			}
			walk(field.Type)
		}
	}
	for _, root := range []reflect.Type{
		reflect.TypeFor[recordFile](), reflect.TypeFor[State](), reflect.TypeFor[Event](), reflect.TypeFor[leaseRecord](),
		reflect.TypeFor[shardsRecord](), reflect.TypeFor[probeRecord](), reflect.TypeFor[highWaterFile](), reflect.TypeFor[Once](),
	} {
		walk(root)
	}
	require.Greater(t, len(seen), 15)
}
