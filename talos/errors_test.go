package talos

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/internal/scrub"
)

func TestAConnectionThatBrokeIsSaidWithoutTheWordsOfItsLibrary(t *testing.T) {
	unavailable := func(words string) error {
		return status.Error(codes.Unavailable, fmt.Sprintf("connection error: desc = %q", words))
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"it is not made again":                  {unavailable("transport: Error while dialing: " + errReconnect.Error()), "the connection broke"},
		"it ended in its first words":           {unavailable("error reading server preface: io: read/write on closed pipe"), "the connection broke"},
		"it ended in an answer":                 {io.ErrUnexpectedEOF, "the connection broke"},
		"it was never there":                    {unavailable("transport: Error while dialing: context deadline exceeded"), "it could not be reached in time"},
		"the machine says something of its own": {status.Error(codes.Unavailable, "etcd: context deadline exceeded"), "etcd: context deadline exceeded"},
		"another code is the machine's":         {status.Error(codes.Unknown, "cat: "+io.ErrClosedPipe.Error()), "cat: io: read/write on closed pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			err := callError(scrub.New(), Target{Name: "cp-1"}, "reading its stage", test.err)
			require.EqualError(t, err, "cp-1: reading its stage: "+test.want)
			var failure *CallError
			require.True(t, errors.As(err, &failure))
			require.False(t, failure.NotSent)
		})
	}
}
