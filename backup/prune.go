package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"ichor.maesh.dev/statefile"
)

// Pruned is what pruning did.
type Pruned struct {
	// Deleted are gone now. Kept are sentences on what stays although the retention alone would let it go.
	Deleted, Kept []string
	// Problems are sentences on what could not be deleted. They are no failure of the backup.
	Problems []string
}

// ForeignError: another cluster's snapshots are under the prefix.
type ForeignError struct{ Names []string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%d snapshots under the prefix are not this cluster's, first %s: nothing is pruned; move them away, or give this backup a prefix "+
		"of its own", len(e.Names), e.Names[0])
}

// Prune deletes what the retention lets go and the guard doesn't hold. The index says so first, so that a deletion that is cut off is
// neither forgotten nor taken for a loss; before that, intend (where it is not nil) is told what will go, and its error ends it.
// [*ForeignError] when another cluster's snapshots are there.
func (d *Destination) Prune(ctx context.Context, retention Retention, guard Guard, intend func(doomed []string) error) (Pruned, error) {
	contents, err := d.Contents(ctx)
	if err != nil {
		return Pruned{}, err
	}
	if len(contents.Foreign) > 0 {
		return Pruned{}, &ForeignError{Names: contents.Foreign}
	}
	doomed, keep := Prune(contents.Snapshots, retention, guard)
	result := Pruned{Kept: keep}
	if len(doomed) == 0 {
		return result, nil
	}
	if intend != nil {
		if err := intend(doomed); err != nil {
			return result, err
		}
	}
	if err := d.mark(ctx, doomed); err != nil {
		return result, err
	}
	var spared []string
	for _, name := range doomed {
		err := d.objects.Remove(ctx, name)
		switch {
		case err == nil:
			result.Deleted = append(result.Deleted, name)
			continue
		case errors.Is(err, statefile.ErrLocked), errors.Is(err, statefile.ErrPermission):
			spared = append(spared, name) // it is there, and stays
		case ctx.Err() != nil:
			return result, err
		}
		result.Problems = append(result.Problems, fmt.Sprintf("%s could not be pruned: %v", name, err))
	}
	err = d.swapIndex(ctx, func(i *index) error {
		for _, name := range result.Deleted {
			i.drop(name)
		}
		for _, name := range spared {
			if have := i.find(name); have != nil {
				have.Deleting = false
			}
		}
		return nil
	})
	return result, err
}

func (d *Destination) mark(ctx context.Context, doomed []string) error {
	return d.swapIndex(ctx, func(i *index) error {
		for n := range i.Snapshots {
			if slices.Contains(doomed, i.Snapshots[n].Name) {
				i.Snapshots[n].Deleting = true
			}
		}
		return nil
	})
}
