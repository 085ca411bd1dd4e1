package talos

import (
	"encoding/hex"
	"slices"
	"strings"
)

// SameUUID says whether two UUIDs are of one machine: some firmware writes the first three parts the other way round, and the kernel
// and Talos don't always agree on which it is. An empty one is nobody's.
func SameUUID(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	return strings.EqualFold(a, b) || strings.EqualFold(a, swapped(b))
}

func swapped(uuid string) string {
	parts := strings.Split(uuid, "-")
	if len(parts) != 5 {
		return uuid
	}
	for n := range 3 {
		raw, err := hex.DecodeString(parts[n])
		if err != nil {
			return uuid
		}
		slices.Reverse(raw)
		parts[n] = hex.EncodeToString(raw)
	}
	return strings.Join(parts, "-")
}
