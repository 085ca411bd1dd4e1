package talos

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneMachineMayWriteItsUUIDTwoWays(t *testing.T) {
	const uuid = "4c4c4544-0039-3510-8052-b4c04f4e3701"
	for other, same := range map[string]bool{
		uuid:                                   true,
		"4C4C4544-0039-3510-8052-B4C04F4E3701": true,
		"44454c4c-3900-1035-8052-b4c04f4e3701": true,
		"4c4c4544-0039-3510-8052-b4c04f4e3702": false,
		"":                                     false,
		"no UUID":                              false,
	} {
		require.Equal(t, same, SameUUID(uuid, other), other)
		require.Equal(t, same, SameUUID(other, uuid), other)
	}
	require.False(t, SameUUID("", ""), "an empty one is nobody's")
}
