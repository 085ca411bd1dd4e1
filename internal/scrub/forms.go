package scrub

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"ichor.maesh.dev/internal/printable"
)

// minLine is the length of the shortest line of a secret of several lines that is looked for by itself.
const minLine = 16

// forms gives the ways in which a secret may stand in a text, each once.
func forms(secret string) []string {
	var all []string
	for _, value := range parts(secret) {
		all = append(all, value)
		all = append(all, escaped(value)...)
		all = append(all, encoded([]byte(value))...)
	}
	slices.Sort(all) // most ways to write a secret without odd characters are the same
	return slices.DeleteFunc(slices.Compact(all), func(form string) bool { return len(form) < MinLength })
}

// parts gives the secret, the secret without its outer white space, and each long line of it: a text that is wrapped or
// indented shows a PEM key line by line.
func parts(secret string) []string {
	all := []string{secret}
	if trimmed := strings.TrimSpace(secret); trimmed != secret {
		all = append(all, trimmed)
	}
	if strings.ContainsAny(secret, "\n\r") {
		for _, line := range strings.FieldsFunc(secret, func(r rune) bool { return r == '\n' || r == '\r' }) {
			line = strings.TrimSpace(line)
			if len(line) >= minLine && !strings.HasPrefix(line, "-----") {
				all = append(all, line)
			}
		}
		// As Text leaves it.
		all = append(all, printable.Text(secret), strings.TrimSpace(printable.Text(secret)))
	}
	return all
}

func escaped(value string) []string {
	all := []string{url.QueryEscape(value), url.PathEscape(value), lowerPercent(url.QueryEscape(value)), lowerPercent(url.PathEscape(value))}
	if quoted, err := json.Marshal(value); err == nil {
		all = append(all, string(quoted[1:len(quoted)-1]))
	}
	var plain strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(value) == nil {
		quoted := strings.TrimSuffix(plain.String(), "\n")
		all = append(all, quoted[1:len(quoted)-1])
	}
	for _, quoted := range []string{strconv.Quote(value), strconv.QuoteToASCII(value)} {
		all = append(all, quoted[1:len(quoted)-1])
	}
	return append(all, strings.ReplaceAll(value, "'", "''"))
}

// lowerPercent writes the digits of percent escapes in lower case, as some clients do.
func lowerPercent(text string) string {
	var out strings.Builder
	for n := 0; n < len(text); n++ {
		if text[n] == '%' && n+2 < len(text) {
			out.WriteString(strings.ToLower(text[n : n+3]))
			n += 2
			continue
		}
		out.WriteByte(text[n])
	}
	return out.String()
}

// longValue is the length in bytes above which a value (a key) is looked for in its usual encodings only: an authority's key
// would else take a hundred times its size in memory.
const longValue = 256

// encoded gives hexadecimal and base64 forms. In base64 a secret looks different at each of three alignments; what is
// given is the part of each that depends on the secret alone, so padding and neighbours don't matter.
func encoded(value []byte) []string {
	var all []string
	encodings := []*base64.Encoding{base64.RawStdEncoding}
	if len(value) <= longValue {
		all = append(all, hex.EncodeToString(value), strings.ToUpper(hex.EncodeToString(value)))
		encodings = append(encodings, base64.RawURLEncoding)
	}
	for shift := range 3 {
		shifted := append(make([]byte, shift), value...)
		from := (shift*8 + 5) / 6
		until := len(shifted) * 8 / 6
		for _, encoding := range encodings {
			text := encoding.EncodeToString(shifted)
			if from < until {
				all = append(all, text[from:until])
			}
		}
	}
	return all
}
