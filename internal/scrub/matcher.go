package scrub

import (
	"encoding/binary"
	"strings"
)

// matcher finds many strings in one pass: a position is looked at closely only when the four bytes there begin a form. Its zero value finds
// nothing.
type matcher struct {
	// first has a bit for each two bytes that begin a form: most positions of a text end there.
	first [1 << 16 / 64]uint64
	// byPrefix lists forms by their first four bytes.
	byPrefix map[uint32][]string
}

const prefixLength = 4

// add makes a form known, at a cost that doesn't grow with those that are known already.
func (m *matcher) add(form string) {
	if m.byPrefix == nil {
		m.byPrefix = map[uint32][]string{}
	}
	key := binary.LittleEndian.Uint32([]byte(form[:prefixLength]))
	m.byPrefix[key] = append(m.byPrefix[key], form)
	m.first[uint16(key)/64] |= 1 << (uint16(key) % 64)
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

// longest is the length of the longest form that text begins with.
func (m *matcher) longest(text string) int {
	key := uint32(text[0]) | uint32(text[1])<<8 | uint32(text[2])<<16 | uint32(text[3])<<24
	longest := 0
	for _, form := range m.byPrefix[key] {
		if len(form) > longest && strings.HasPrefix(text, form) {
			longest = len(form)
		}
	}
	return longest
}
