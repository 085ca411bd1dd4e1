package cleartext

import (
	"bytes"
	"encoding/base64"
	"io"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// What is a kind of secret, in words that follow "holds".
type What string

// The kinds of secret.
const (
	Bundle        What = "a Talos secrets bundle"
	MachineConfig What = "a Talos machine config with keys"
	Talosconfig   What = "a talosconfig with its key"
	Kubeconfig    What = "a kubeconfig with a key or token"
	S3Credentials What = "S3 credentials"
	AgeIdentity   What = "an age identity"
	SSHKey        What = "an SSH private key"
	PrivateKey    What = "a private key"
)

// Found is a secret in the clear: what it is and where it begins. Line and Column count from 1.
type Found struct {
	What         What
	Line, Column int
	// More is how many more secrets of that kind stand in the same document.
	More int
}

// Bounds of one search.
const (
	// MaxSearched is how many bytes of a file are looked at.
	MaxSearched = 8 << 20
	// maxLooks is how many places are looked at closely, maxFound how many secrets are placed.
	maxLooks = 100_000
	maxFound = 1000
	// maxDecoded is how many bytes are decoded from base64, maxNested how deep base64 in base64 is followed.
	maxDecoded = 4 << 20
	maxNested  = 2
	// minEncoded is the shortest text in base64 that is decoded: the head of a private key.
	minEncoded = 40
)

// Read searches a file. Whole is false when the file has more than MaxSearched bytes.
func Read(r io.Reader) (found []Found, whole bool, err error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxSearched+1))
	if err != nil {
		return nil, false, err
	}
	whole = len(data) <= MaxSearched
	return Search(data[:min(len(data), MaxSearched)]), whole, nil
}

// Search finds the secrets in a text, in the order of their places; of one kind in one document it gives the first.
func Search(data []byte) []Found {
	data = fromUTF16(bytes.TrimPrefix(data, []byte("\ufeff")))
	s := &search{looks: maxLooks, decoded: maxDecoded}
	t := newText(data)
	hits := s.inText(t, 0)
	slices.SortStableFunc(hits, func(a, b hit) int { return a.at - b.at })
	return place(t, hits)
}

// search is what is left of the bounds.
type search struct {
	looks, decoded int
}

// hit is a secret at an offset.
type hit struct {
	what What
	at   int
}

// in finds the secrets in a text; depth counts how often it was decoded.
func (s *search) in(data []byte, depth int) []hit {
	t := newText(data)
	return s.inText(t, depth)
}

func (s *search) inText(t *text, depth int) []hit {
	var hits []hit
	binary := isBinary(t.data)
	for _, shape := range shapes {
		if binary && !shape.inBinary {
			continue
		}
		for _, needle := range shape.needles {
			hits = s.each(t, []byte(needle), shape, hits)
		}
	}
	if depth < maxNested {
		hits = s.encoded(t, depth, hits)
	}
	return hits
}

// each looks at every place where a needle stands.
func (s *search) each(t *text, needle []byte, shape shape, hits []hit) []hit {
	for from := 0; ; {
		next := bytes.Index(t.lower[from:], needle)
		if next < 0 {
			return hits
		}
		begin := from + next
		from = begin + len(needle)
		if s.looks--; s.looks < 0 || len(hits) >= maxFound {
			return hits
		}
		if what, ok := shape.secret(t, begin, from); ok {
			hits = append(hits, hit{what, begin})
		}
	}
}

// encoded looks into what is written in base64.
func (s *search) encoded(t *text, depth int, hits []hit) []hit {
	for begin := 0; begin < len(t.data); {
		if !isBase64(t.data[begin]) {
			begin++
			continue
		}
		end := begin
		for end < len(t.data) && isBase64(t.data[end]) {
			end++
		}
		if end-begin < minEncoded {
			begin = end
			continue
		}
		if s.looks--; s.looks < 0 || len(hits) >= maxFound {
			return hits
		}
		inside, after := s.decode(t.data, begin, end)
		if len(inside) > 0 {
			for _, found := range s.in(inside, depth+1) {
				hits = append(hits, hit{t.around(begin).label(found.what), begin})
			}
		}
		begin = after
	}
	return hits
}

// decode decodes a run of base64, and the lines of base64 that follow it, in comments too, if it begins as a text does.
func (s *search) decode(data []byte, begin, end int) (decoded []byte, after int) {
	const head = 36 // a whole number of groups of four
	var first [head]byte
	n, err := base64.StdEncoding.Decode(first[:], data[begin:begin+head])
	if err != nil || !isText(first[:n]) {
		return nil, end
	}
	encoded := bytes.Clone(data[begin:min(end, begin+maxDecoded)])
	after = end
	for len(encoded) < maxDecoded {
		next := after
		for next < len(data) && (data[next] == '\n' || data[next] == '\r' || data[next] == ' ' || data[next] == '\t' || data[next] == '#' || data[next] == '>') {
			next++
		}
		stop := next
		for stop < len(data) && isBase64(data[stop]) {
			stop++
		}
		if next == after || stop == next || stop < len(data) && data[stop] == ':' { // no further line, or a key
			break
		}
		encoded = append(encoded, data[next:min(stop, next+maxDecoded)]...)
		after = stop
	}
	encoded = encoded[:len(encoded)/4*4]
	if s.decoded -= len(encoded); s.decoded < 0 {
		return nil, after
	}
	decoded = make([]byte, base64.StdEncoding.DecodedLen(len(encoded)))
	n, _ = base64.StdEncoding.Decode(decoded, encoded) // what was decoded before a fault is enough to judge
	return decoded[:n], after
}

func isBase64(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/'
}

// isText says whether bytes are such as a text begins with.
func isText(data []byte) bool {
	for _, c := range data {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' || c >= 0x7f {
			return false
		}
	}
	return true
}

// isBinary says whether data is no text, as Git does: by a NUL in its first part.
func isBinary(data []byte) bool {
	return bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0
}

// lowered gives data with ASCII letters in lower case, so that offsets stay the same.
func lowered(data []byte) []byte {
	lower := make([]byte, len(data))
	for n, c := range data {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[n] = c
	}
	return lower
}

// fromUTF16 gives a text that begins with the byte order mark of UTF-16, as Windows writes it, in UTF-8.
func fromUTF16(data []byte) []byte {
	if len(data) < 2 || !(data[0] == 0xff && data[1] == 0xfe || data[0] == 0xfe && data[1] == 0xff) {
		return data
	}
	little := data[0] == 0xff
	out := make([]byte, 0, len(data)/2)
	for n := 2; n+1 < len(data); n += 2 {
		unit := uint16(data[n])<<8 | uint16(data[n+1])
		if little {
			unit = uint16(data[n+1])<<8 | uint16(data[n])
		}
		r := rune(unit)
		if utf16.IsSurrogate(r) {
			r = utf8.RuneError
		}
		out = utf8.AppendRune(out, r)
	}
	return out
}

// place gives lines and columns to hits that are in order, and makes one of those of a kind in a document.
func place(t *text, hits []hit) []Found {
	type group struct {
		document int
		what     What
	}
	groups := map[group]int{}
	var found []Found
	line, lineStart, at := 1, 0, 0
	for _, h := range hits {
		for ; at < h.at; at++ {
			if t.data[at] == '\n' {
				line, lineStart = line+1, at+1
			}
		}
		key := group{t.at(h.at).number, h.what}
		if n, known := groups[key]; known {
			found[n].More++
			continue
		}
		groups[key] = len(found)
		found = append(found, Found{What: h.what, Line: line, Column: utf8.RuneCount(t.data[lineStart:h.at]) + 1})
	}
	return found
}
