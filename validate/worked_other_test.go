//go:build !unix

package validate

import "time"

var began = time.Now()

// worked is how long this process runs, where it isn't known how busy it was.
func worked() time.Duration { return time.Since(began) }
