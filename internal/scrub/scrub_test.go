package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	canary = `s3cr3t/+"canary" & värde`
	pemKey = "-----BEGIN ED25519 PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIN6YTJ1N4rWqfXo9sGQ8mJ0kq2v7s3Yy0d1m4Zc5b6aA\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n-----END ED25519 PRIVATE KEY-----\n"
)

func TestASecretIsHiddenInEveryFormItTravelsIn(t *testing.T) {
	quoted, err := json.Marshal(canary)
	require.NoError(t, err)
	nested, err := json.Marshal(map[string]string{"config": canary})
	require.NoError(t, err)
	for name, form := range map[string]string{
		"as it is":                 canary,
		"in the middle of a word":  "a" + canary + "b",
		"query-escaped":            url.QueryEscape(canary),
		"path-escaped":             url.PathEscape(canary),
		"escaped in lower case":    lowerPercent(url.QueryEscape(canary)),
		"as a JSON string":         string(quoted),
		"inside a JSON document":   string(nested),
		"quoted by Go":             fmt.Sprintf("%q", canary),
		"quoted to ASCII by Go":    fmt.Sprintf("%+q", canary),
		"base64":                   base64.StdEncoding.EncodeToString([]byte(canary)),
		"base64 without padding":   base64.RawStdEncoding.EncodeToString([]byte(canary)),
		"base64 for URLs":          base64.URLEncoding.EncodeToString([]byte(canary)),
		"raw base64 for URLs":      base64.RawURLEncoding.EncodeToString([]byte(canary)),
		"inside base64, shifted 1": base64.StdEncoding.EncodeToString([]byte("x" + canary + "tail")),
		"inside base64, shifted 2": base64.StdEncoding.EncodeToString([]byte("xy" + canary + "tail")),
		"hexadecimal":              hex.EncodeToString([]byte(canary)),
		"with a control character": canary[:5] + "\x00" + canary[5:],
		"with a terminal escape":   canary[:5] + "\x1b[31m" + canary[5:],
	} {
		t.Run(name, func(t *testing.T) {
			clean := New(canary).Text("before " + form + " after")
			require.Contains(t, clean, "before ")
			require.Contains(t, clean, " after")
			require.Contains(t, clean, Hidden)
			requireNoTrace(t, clean)
		})
	}
}

// requireNoTrace fails when a run of the canary of eight bytes or more is left in any form.
func requireNoTrace(t *testing.T, text string) {
	t.Helper()
	for _, form := range []string{canary, url.QueryEscape(canary), hex.EncodeToString([]byte(canary)), base64.StdEncoding.EncodeToString([]byte(canary))} {
		for from := 0; from+8 <= len(form); from++ {
			require.NotContains(t, text, form[from:from+8])
		}
	}
}

func TestAKeyIsHiddenLineByLine(t *testing.T) {
	s := New(pemKey)
	for _, line := range strings.Split(strings.TrimSpace(pemKey), "\n")[1:3] {
		require.NotContains(t, s.Text("      "+line+"\r\n"), line)
	}
	require.NotContains(t, s.Text("error near "+strings.ReplaceAll(pemKey, "\n", `\n`)), "MC4CAQAw")
	require.NotContains(t, s.Text(base64.StdEncoding.EncodeToString([]byte(pemKey))), "TUM0Q0FRQXd")
}

func TestOverlappingSecretsLeaveNothingOfEither(t *testing.T) {
	require.Equal(t, "<"+Hidden+">", New("abcdef-ghijkl", "ghijkl-mnopqr").String("<abcdef-ghijkl-mnopqr>"))
	require.Equal(t, "<"+Hidden+">", New("abcdefgh", "abcdefghijkl").String("<abcdefghijkl>"))
	require.Equal(t, Hidden+" "+Hidden, New("abcdefgh").String("abcdefgh abcdefgh"))
}

func TestTextWithoutSecretsIsLeftAlone(t *testing.T) {
	s := New(canary)
	for _, text := range []string{"", "a", "cp-1 can't be reached", "värde"} {
		require.Equal(t, text, s.Text(text))
	}
	require.Equal(t, "short secrets: true", New("true").Text("short secrets: true"))
	var none *Scrubber
	require.Equal(t, "plain text", none.Text("plain\ntext"))
	none.Add("ignored-secret")
}

func TestAnErrorKeepsItsIdentityAndLosesItsSecret(t *testing.T) {
	cause := fmt.Errorf("reading %s: %w", canary, io.ErrUnexpectedEOF)
	err := New(canary).Error(cause)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	requireNoTrace(t, err.Error())
	require.NoError(t, New(canary).Error(nil))
}

type speaker struct{ secret string }

func (s speaker) String() string { return "speaker " + s.secret }

type lazy struct{}

func (lazy) LogValue() slog.Value { return slog.GroupValue(slog.String("inner", canary)) }

func TestNoRecordLetsASecretThrough(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			var out bytes.Buffer
			var next slog.Handler = slog.NewTextHandler(&out, nil)
			if format == "json" {
				next = slog.NewJSONHandler(&out, nil)
			}
			s := New()
			early := slog.New(s.Handler(next)).With("early", canary).WithGroup("g").With("more", errors.New(canary))
			s.Add(canary) // known only after With
			early.Info("message "+canary,
				"string", canary, "error", fmt.Errorf("wrapped: %w", errors.New(canary)), "stringer", speaker{canary},
				"bytes", []byte(canary), "struct", struct{ Field string }{canary}, "map", map[string]string{canary: canary},
				"lazy", lazy{}, slog.Group("group", "inner", canary), canary, 1, "number", 42, "took", 1500000000)
			requireNoTrace(t, out.String())
			require.Contains(t, out.String(), "42")
			require.Contains(t, out.String(), Hidden)
		})
	}
}

func TestControlCharactersNeverReachTheLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(New().Handler(slog.NewTextHandler(&out, nil)))
	log.Info("\x1b[2Jcleared", "from", "node\r\n\x1b]0;title\x07")
	require.NotContains(t, strings.TrimSuffix(out.String(), "\n"), "\n")
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), `\x1b`)
}

func TestAPanicIsReportedWithoutSecrets(t *testing.T) {
	s := New(canary)
	var report string
	func() {
		defer s.Recover(func(text string) { report = text })
		panic(fmt.Errorf("unexpected %s", canary))
	}()
	require.True(t, strings.HasPrefix(report, "panic: unexpected "), report)
	require.Contains(t, report, "scrub_test.go", "the stack tells where")
	requireNoTrace(t, report)
	func() {
		defer s.Recover(func(string) { t.Error("no panic, nothing to report") })
	}()
}

func FuzzNothingOfASecretIsLeft(f *testing.F) {
	f.Add("hunter2-hunter2", "prefix", "suffix")
	f.Add(canary, "\x1b[", "=")
	f.Fuzz(func(t *testing.T, secret, before, after string) {
		if len(secret) < MinLength || strings.Contains(Hidden, secret) {
			return // too short to be looked for
		}
		s := New(secret)
		require.NotContains(t, strings.ReplaceAll(s.String(before+secret+after), Hidden, "\x00"), secret)
		encoded := base64.StdEncoding.EncodeToString([]byte(before + secret + after))
		require.NotEqual(t, encoded, s.String(encoded))
	})
}

func BenchmarkScrubbingALogLine(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	var secrets []string
	for range 500 {
		secret := make([]byte, 40)
		for n := range secret {
			secret[n] = byte(random.IntN(94) + 33)
		}
		secrets = append(secrets, string(secret))
	}
	s := New(secrets...)
	line := strings.Repeat("cp-1 can't be reached at 10.0.0.11:50000: no answer in time. ", 4)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		s.Text(line)
	}
}
