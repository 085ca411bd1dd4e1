package wirecount

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

const most = 1000

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	require.NoError(t, err)
	return data
}

func TestValuesAreCountedInEverythingThatCouldBeAMessage(t *testing.T) {
	nested := func(levels int) (data []byte) {
		for range levels {
			data = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), data)
		}
		return data
	}
	for name, c := range map[string]struct {
		message []byte
		want    int
	}{
		"nothing":                            {nil, 0},
		"one number":                         {[]byte{0x08, 0x01}, 1},
		"empty messages":                     {bytes.Repeat([]byte{0x0a, 0x00}, 500), 500},
		"more than are counted":              {bytes.Repeat([]byte{0x0a, 0x00}, 5000), most + 1},
		"empty messages before a break":      {append(bytes.Repeat([]byte{0x0a, 0x00}, 500), 0xff), 500},
		"a field that says it is longer":     {[]byte{0x0a, 0x7f, 0x0a}, 1},
		"messages in messages":               {nested(100), 100},
		"messages deeper than a decoder is":  {nested(20_000), most + 1},
		"a text that is no message":          {encoded(t, structpb.NewStringValue(strings.Repeat("machine:\n", 1000))), 2},
		"zeros":                              {make([]byte, 1<<20), 0},
		"a group, which no message has here": {[]byte{0x0b, 0x08, 0x01, 0x0c}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a text that is no message" { // a few of its letters may look like fields
				require.Less(t, Values(c.message, most), c.want+10)
				return
			}
			require.Equal(t, c.want, Values(c.message, most))
		})
	}
}

// made counts the values that a decoder made.
func made(m protoreflect.Message) int {
	count := 0
	one := func(field protoreflect.FieldDescriptor, value protoreflect.Value) {
		count++
		if field.Message() != nil {
			count += made(value.Message())
		}
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			value.Map().Range(func(_ protoreflect.MapKey, value protoreflect.Value) bool {
				one(field.MapValue(), value)
				return true
			})
		case field.IsList():
			for n := range value.List().Len() {
				one(field, value.List().Get(n))
			}
		default:
			one(field, value)
		}
		return true
	})
	return count
}

// FuzzValues holds that a decoder never makes more values than were counted, whatever it is given and wherever it gives up.
func FuzzValues(f *testing.F) {
	list, err := structpb.NewStruct(map[string]any{"a": []any{1, "x", nil, map[string]any{"b": true}}, "": ""})
	require.NoError(f, err)
	f.Add(encoded(f, list))
	f.Add(bytes.Repeat([]byte{0x0a, 0x00}, 300))
	f.Add([]byte{0x0a, 0x02, 0x12, 0x00, 0xff})
	f.Add([]byte("machine:\n  type: worker\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		counted := Values(data, 1<<30)
		require.LessOrEqual(t, counted, len(data))
		for _, into := range []proto.Message{&structpb.Struct{}, &structpb.ListValue{}, &structpb.Value{}} {
			_ = proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(data, into)
			require.LessOrEqual(t, made(into.ProtoReflect()), counted)
		}
	})
}
