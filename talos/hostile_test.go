package talos

import (
	"context"
	"testing"
	"time"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// unreadable is a machine whose answers no decoder foresaw.
type unreadable struct{ cosiv1alpha1.StateClient }

func (unreadable) Get(context.Context, *cosiv1alpha1.GetRequest, ...grpc.CallOption) (*cosiv1alpha1.GetResponse, error) {
	panic("a decoder fell over what it read")
}

func TestAnAnswerThatNoDecoderForesawTakesNoProcessDown(t *testing.T) {
	target := Target{Name: "cp-1", Endpoint: "10.0.0.1", ControlPlane: true}
	client := NewClient(nil, ClientOptions{})
	channel, err := grpc.NewClient("passthrough:///nobody", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	client.links[linkKey{target.Address(), RoleReader, true}] = &link{&Session{target: target, maintenance: true, state: unreadable{}, channel: channel}, time.Now().Add(time.Hour)}
	seen := client.Observe(t.Context(), target)
	require.Equal(t, ModeUnknown, seen.Mode)
	require.Contains(t, seen.Problem, "cp-1: looking at it: what it sent could not be handled (panic: a decoder fell over what it read)")
	require.Empty(t, client.links, "the connection is not used again")
}
