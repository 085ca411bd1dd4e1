package talos

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAMachineThatCannotBeDialledGivesNoSessionAtAll(t *testing.T) {
	type closer interface{ Close() error }
	machines := MachinesOf(NewClient(nil, ClientOptions{}), func(s *Session) closer { return s })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	session, err := machines.Dial(ctx, Target{Name: "cp-1", Endpoint: "127.0.0.1"})
	require.Error(t, err)
	require.True(t, session == nil, "a session that is nil would be closed")
	session, err = machines.DialMaintenance(ctx, Target{Name: "cp-1", Endpoint: "127.0.0.1"}, "")
	require.Error(t, err)
	require.True(t, session == nil, "a session that is nil would be closed")
}
