// Package bytesize writes numbers of bytes as people read them.
package bytesize

import "fmt"

// Text gives a size in the largest unit that it has, rounded, at least one of: 512 B, 1.5 KiB, 3.0 MiB.
func Text[N int64 | uint64](bytes N) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	value, unit := float64(bytes)/(1<<10), 0
	for value >= 1<<10-0.05 && unit < len(units)-1 {
		value, unit = value/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
