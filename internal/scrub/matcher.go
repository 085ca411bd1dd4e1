package scrub

import (
	"encoding/binary"
	"slices"
	"strings"
)

// matcher finds many strings in one pass: a position is looked at closely only when the four bytes there begin a form.
type matcher struct {
	// first has a bit for each two bytes that begin a form: most positions of a text end there.
	first [1 << 16 / 64]uint64
	// byPrefix lists forms by their first four bytes, longest first.
	byPrefix map[uint32][]string
}

const prefixLength = 4

func newMatcher(forms map[string]struct{}) *matcher {
	m := &matcher{byPrefix: make(map[uint32][]string, len(forms))}
	for form := range forms {
		key := binary.LittleEndian.Uint32([]byte(form[:prefixLength]))
		m.byPrefix[key] = append(m.byPrefix[key], form)
		m.first[uint16(key)/64] |= 1 << (uint16(key) % 64)
	}
	for _, list := range m.byPrefix {
		slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	}
	return m
}

// replace puts Hidden in the place of every form. Forms that overlap or touch give one Hidden: nothing of either stays.
func (m *matcher) replace(text string) string {
	if len(text) < MinLength {
		return text
	}
	var out strings.Builder
	done := 0  // text before it is written or hidden
	from := -1 // start of the range that is being hidden, or -1
	until := 0 // end of that range
	flush := func() {
		if from >= 0 {
			out.WriteString(text[done:from])
			out.WriteString(Hidden)
			done, from = until, -1
		}
	}
	for n := 0; n+MinLength <= len(text); n++ {
		two := uint16(text[n]) | uint16(text[n+1])<<8
		if m.first[two/64]&(1<<(two%64)) == 0 {
			continue
		}
		length := m.longest(text[n:])
		if length == 0 {
			continue
		}
		if from >= 0 && n > until {
			flush()
		}
		if from < 0 {
			from = n
		}
		until = max(until, n+length)
	}
	flush()
	if done == 0 {
		return text
	}
	out.WriteString(text[done:])
	return out.String()
}

func (m *matcher) longest(text string) int {
	key := uint32(text[0]) | uint32(text[1])<<8 | uint32(text[2])<<16 | uint32(text[3])<<24
	for _, form := range m.byPrefix[key] {
		if strings.HasPrefix(text, form) {
			return len(form)
		}
	}
	return 0
}
