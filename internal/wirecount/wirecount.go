// Package wirecount counts what a protobuf message may hold before it is decoded. A message of two bytes can become one of a thousand in
// memory, so that a reply which is small enough to be read can still be too large to be decoded.
package wirecount

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// maxDepth is how deep messages may stand in each other; decoders of protobuf themselves give up there.
const maxDepth = protowire.DefaultRecursionLimit

// Values counts the values in a message, and in everything in it that could be a message in turn: which field is one only its decoder
// knows. So it never counts fewer than a decoder makes, also of a message that is broken somewhere; numbers that are packed into one field
// count as one, and take eight times their size at most. It stops once it has counted more than most.
func Values(message []byte, most int) int {
	c := counter{most: most}
	c.message(message, 0)
	return c.counted
}

type counter struct{ counted, most int }

func (c *counter) message(data []byte, depth int) {
	if depth > maxDepth {
		c.counted = c.most + 1
	}
	for len(data) > 0 && c.counted <= c.most {
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return
		}
		data = data[size:]
		c.counted++
		if kind == protowire.BytesType {
			inner, size := protowire.ConsumeBytes(data)
			if size < 0 {
				return
			}
			c.message(inner, depth+1)
			data = data[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(number, kind, data); size < 0 {
			return
		}
		data = data[size:]
	}
}
