package statefile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errEnough ends a listing early.
var errEnough = errors.New("enough")

// Clusters names the clusters that have a state in the store, sorted. It reads no state, and skips what else is in their folders, which
// may be many audit events.
func Clusters(ctx context.Context, store Store) ([]string, error) {
	var names []string
	after := ""
	for {
		first, err := firstKey(ctx, store, "", after)
		if err != nil {
			return nil, fmt.Errorf("listing the clusters of the state: %w", err)
		}
		if first == "" {
			slices.Sort(names) // "a-2/" comes before "a/"
			return names, nil
		}
		after = first
		name, _, folder := strings.Cut(first, "/")
		if !folder {
			continue
		}
		after = name + "0" // the character after the slash: past everything in the folder
		if !clusterName.MatchString(name) || name == leasesFolder {
			continue
		}
		found, err := firstKey(ctx, store, stateKey(name), "")
		if err != nil {
			return nil, fmt.Errorf("listing the clusters of the state: %w", err)
		}
		if found == stateKey(name) {
			names = append(names, name)
		}
	}
}

// firstKey is the first key with a prefix after another, or empty.
func firstKey(ctx context.Context, store Store, prefix, after string) (string, error) {
	first := ""
	err := store.List(ctx, prefix, after, func(info ObjectInfo) error {
		first = info.Key
		return errEnough
	})
	if err != nil && !errors.Is(err, errEnough) {
		return "", err
	}
	return first, nil
}
