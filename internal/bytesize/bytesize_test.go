package bytesize

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASizeIsInTheLargestUnitThatItHas(t *testing.T) {
	for size, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1 << 10: "1.0 KiB", 1536: "1.5 KiB", 3 << 20: "3.0 MiB", 3 << 29: "1.5 GiB", 20 << 40: "20.0 TiB", 5 << 50: "5.0 PiB",
		1<<20 - 1: "1.0 MiB", 1<<20 - 103: "1023.9 KiB", 1<<30 - 1: "1.0 GiB", 5 << 60: "5120.0 PiB",
	} {
		require.Equal(t, want, Text(size))
	}
	require.Equal(t, "16384.0 PiB", Text(uint64(1<<64-1)))
}
