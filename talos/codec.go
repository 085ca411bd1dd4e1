package talos

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/siderolabs/talos/pkg/machinery/api/common"

	"ichor.maesh.dev/internal/wirecount"
)

// maxReplyValues bounds what one message may hold: the longest that Talos sends, the list of its services with their events, has some
// thousands of values.
const maxReplyValues = 50_000

// boundedCodec is gRPC's own, and refuses a message that would become far larger than it is, which is 8 MiB at most, before it is decoded.
type boundedCodec struct{ encoding.CodecV2 }

func newBoundedCodec() boundedCodec { return boundedCodec{encoding.GetCodecV2(proto.Name)} }

func (c boundedCodec) Unmarshal(data mem.BufferSlice, into any) error {
	if _, plain := into.(*common.Data); !plain { // bytes of a file or a snapshot, which are not looked into
		whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer whole.Free()
		if wirecount.Values(whole.ReadOnlyData(), maxReplyValues) > maxReplyValues {
			return fmt.Errorf("it holds more than %d values", maxReplyValues)
		}
	}
	return c.CodecV2.Unmarshal(data, into)
}
