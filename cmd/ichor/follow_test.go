package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnAgentThatIsNoURLIsRefusedAsSuch(t *testing.T) {
	for _, agent := range []string{"localhost:4246", "127.0.0.1:4246", "/var/run/ichor", "http://", "http://a b"} {
		_, err := (&followFlags{agent: agent}).askAgent("prod")(t.Context())
		require.ErrorContains(t, err, "--agent is no URL", agent)
	}
}
