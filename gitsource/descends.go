package gitsource

import (
	"context"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
)

// Descends tells whether the commit tip is ancestor, or was made on top of it over any parents. An ancestor that the cache
// doesn't hold is none.
func (s *Source) Descends(ctx context.Context, tip, ancestor string) (bool, error) {
	if !isHash(tip) || !isHash(ancestor) {
		return false, fmt.Errorf("%.60q and %.60q are no pair of commits; want 40 lower-case hex digits each", tip, ancestor)
	}
	return s.history.descends(ctx, plumbing.NewHash(tip), plumbing.NewHash(ancestor))
}
