package backup

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Retention says which snapshots stay. A snapshot stays if any of the three wants it.
type Retention struct {
	// Last is how many of the newest stay.
	Last int
	// Daily is for how many days, of those that have a snapshot, the newest of the day stays; Weekly the same for ISO weeks. Days are UTC's.
	Daily, Weekly int
}

// Guard is what retention may not reach.
type Guard struct {
	// Past is when the cluster's etcd was last bootstrapped or restored. What is older is kept until a drill of a newer snapshot has
	// passed: until then nothing newer is known to be any good. Of an etcd that was adopted, it is when that happened.
	Past time.Time
	// Named are snapshots that a restore is to restore, by name, and what that restore is called.
	Named map[string]string
}

// Prune says which snapshots to delete, oldest first, and why others that the retention alone would let go stay. It looks only at what is
// listed in the index, in any order; other objects are never touched.
func Prune(list []Snapshot, r Retention, g Guard) (doomed []string, kept []string) {
	newestFirst := slices.Clone(list)
	slices.SortFunc(newestFirst, func(a, b Snapshot) int { return strings.Compare(b.Name, a.Name) })
	wanted := wantedBy(newestFirst, r)
	newest, drilled := newestOf(newestFirst)
	for _, s := range slices.Backward(newestFirst) {
		switch {
		case s.Deleting:
			doomed = append(doomed, s.Name)
		case wanted[s.Name]:
		case g.Named[s.Name] != "":
			kept = append(kept, fmt.Sprintf("%s stays: %s is to restore it", s.Name, g.Named[s.Name]))
		case s.Name == newest:
			kept = append(kept, fmt.Sprintf("%s stays: it is the newest", s.Name))
		case s.Name == drilled:
			kept = append(kept, fmt.Sprintf("%s stays: it is the newest that a drill has proved", s.Name))
		case s.Time.Before(g.Past) && !provedSince(newestFirst, g.Past):
			kept = append(kept, fmt.Sprintf("%s stays: it is older than the last bootstrap or restore (%s), and no newer one has been drilled",
				s.Name, g.Past.UTC().Format(time.RFC3339)))
		default:
			doomed = append(doomed, s.Name)
		}
	}
	return doomed, kept
}

// wantedBy applies the three rules.
func wantedBy(newestFirst []Snapshot, r Retention) map[string]bool {
	newestFirst = slices.DeleteFunc(slices.Clone(newestFirst), func(s Snapshot) bool { return s.Deleting })
	wanted := map[string]bool{}
	r.want(newestFirst, wanted)
	// One that is gone is said for as long as it would have stayed, and takes the place of none that is there.
	r.want(slices.DeleteFunc(slices.Clone(newestFirst), func(s Snapshot) bool { return s.Missing }), wanted)
	return wanted
}

// want adds those of a list that the three rules want.
func (r Retention) want(newestFirst []Snapshot, wanted map[string]bool) {
	for _, s := range newestFirst[:min(max(r.Last, 0), len(newestFirst))] {
		wanted[s.Name] = true
	}
	each := func(count int, period func(time.Time) string) {
		seen := map[string]bool{}
		for _, s := range newestFirst {
			if p := period(s.Time.UTC()); !seen[p] && len(seen) < count {
				seen[p] = true
				wanted[s.Name] = true
			}
		}
	}
	each(r.Daily, func(t time.Time) string { return t.Format(time.DateOnly) })
	each(r.Weekly, func(t time.Time) string {
		year, week := t.ISOWeek()
		return fmt.Sprintf("%d-W%02d", year, week)
	})
}

// newestOf gives the newest snapshot that is known to be there, and the newest of which a drill has passed.
func newestOf(newestFirst []Snapshot) (newest, drilled string) {
	for _, s := range newestFirst {
		if s.Missing || s.Deleting {
			continue
		}
		if newest == "" {
			newest = s.Name
		}
		if drilled == "" && s.Drill != nil && s.Drill.Passed {
			drilled = s.Name
		}
	}
	return newest, drilled
}

// provedSince says whether a snapshot that is younger, and still there, is known to be good.
func provedSince(newestFirst []Snapshot, past time.Time) bool {
	return slices.ContainsFunc(newestFirst, func(s Snapshot) bool {
		return s.Time.After(past) && s.Drill != nil && s.Drill.Passed && !s.Missing && !s.Deleting
	})
}
