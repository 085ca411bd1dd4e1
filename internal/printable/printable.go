// Package printable makes text that comes from a repository, a node, or a bucket safe to show on a terminal.
//
// Such text is written by others. A name in a YAML file may hold an escape sequence that clears the screen, a carriage
// return that overwrites a refusal with an approval, or a bidirectional override that shows a digest backwards. [Text]
// leaves what can be read and drops what only acts.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text gives s without control characters, terminal escape sequences, bidirectional controls and other invisible
// format characters. Line breaks and tabs become one space, so that one value stays on one line; bytes that are not
// UTF-8 become U+FFFD. Text that has none of these is returned as it is.
func Text(s string) string { return clean(s, false) }

// Lines is Text for text of several lines: line feeds and tabs stay. A carriage return before a line feed is dropped.
func Lines(s string) string { return clean(s, true) }

func clean(s string, keepLines bool) string {
	if isPlain(s) {
		return s
	}
	var out strings.Builder
	out.Grow(len(s))
	for i := 0; i < len(s); {
		if n := escapeLength(s[i:]); n > 0 {
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case r == '\n' || r == '\t':
			if keepLines {
				out.WriteRune(r)
			} else {
				out.WriteByte(' ')
			}
		case r == '\r':
			// Before a line feed it says nothing new; alone it would overwrite what stands on the line.
			if !strings.HasPrefix(s[i:], "\n") {
				out.WriteByte(' ')
			}
		case acts(r):
		default:
			out.WriteRune(r) // utf8.RuneError is written as U+FFFD
		}
	}
	return out.String()
}

// isPlain is the quick answer for nearly all text: printable ASCII only.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// acts says whether a rune changes how others are shown instead of showing something: C0 and C1 controls, DEL, and all
// format characters (bidirectional controls, zero-width characters, the soft hyphen, tags, the byte order mark), and
// the line and paragraph separators.
func acts(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' || isVariationSelector(r)
}

func isVariationSelector(r rune) bool {
	return r >= 0xfe00 && r <= 0xfe0f || r >= 0xe0100 && r <= 0xe01ef
}

const (
	escape = 0x1b
	bell   = 0x07
)

// escapeLength gives the length of the terminal escape sequence that s begins with, or 0. A sequence that doesn't end
// within s, or runs on for an unlikely time, loses its introducer only: the rest is text.
func escapeLength(s string) int {
	introducer, body := splitIntroducer(s)
	switch introducer {
	case 0:
		return 0
	case '[':
		return controlSequence(s, body)
	case ']', 'P', 'X', '^', '_':
		return stringSequence(s, body)
	default:
		return simpleEscape(s)
	}
}

// splitIntroducer gives the byte after ESC that says what kind of sequence this is, and where its body begins. The C1
// controls, encoded in UTF-8 as C2 80 to C2 9F, are the same with one character.
func splitIntroducer(s string) (kind byte, body int) {
	switch {
	case s[0] == escape && len(s) == 1:
		return ' ', 1
	case s[0] == escape:
		return s[1], 2
	case s[0] == 0xc2 && len(s) > 1 && s[1] >= 0x80 && s[1] <= 0x9f:
		switch c1 := s[1] - 0x40; c1 {
		case '[', ']', 'P', 'X', '^', '_':
			return c1, 2
		}
	}
	return 0, 0
}

// controlSequence is CSI: parameters 30-3F, intermediates 20-2F, one final byte 40-7E (ECMA-48, 5.4).
func controlSequence(s string, body int) int {
	i := body
	for i < len(s) && s[i] >= 0x20 && s[i] <= 0x3f {
		i++
	}
	if i < len(s) && s[i] >= 0x40 && s[i] <= 0x7e {
		return i + 1
	}
	return i
}

// stringSequence is OSC, DCS, SOS, PM or APC: up to BEL or ST.
func stringSequence(s string, body int) int {
	const longest = 4096
	for i := body; i < len(s) && i < longest; i++ {
		switch {
		case s[i] == bell:
			return i + 1
		case s[i] == escape && i+1 < len(s) && s[i+1] == '\\':
			return i + 2
		case s[i] == 0xc2 && i+1 < len(s) && s[i+1] == 0x9c:
			return i + 2
		case s[i] == '\n':
			return body
		}
	}
	return body
}

// simpleEscape is ESC, intermediates 20-2F, one final byte 30-7E.
func simpleEscape(s string) int {
	i := 1
	for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2f {
		i++
	}
	if i < len(s) && s[i] >= 0x30 && s[i] <= 0x7e {
		return i + 1
	}
	return 1
}
