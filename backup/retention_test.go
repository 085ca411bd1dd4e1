package backup

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hourly makes n snapshots, one an hour, the newest at the given time.
func hourly(newest time.Time, n int) []Snapshot {
	var list []Snapshot
	for k := range n {
		t := newest.Add(-time.Duration(k) * time.Hour)
		list = append(list, Snapshot{Name: ObjectName(t), Time: t})
	}
	return list
}

func kept(list []Snapshot, doomed []string) int { return len(list) - len(doomed) }

func TestRetentionKeepsWhatAnyRuleWants(t *testing.T) {
	newest := At("2026-11-29 10:00:00")
	list := hourly(newest, 24*30)
	past := Guard{Past: At("2026-01-01 00:00:00")}
	for _, c := range []struct {
		name string
		rule Retention
		want int
	}{
		{"the last 24", Retention{Last: 24}, 24},
		{"more than there are", Retention{Last: 10_000}, len(list)},
		{"7 days: the newest of each", Retention{Daily: 7}, 7},
		{"4 weeks", Retention{Weekly: 4}, 4},
		{"24 and 7 days: today's and yesterday's newest are among the 24", Retention{Last: 24, Daily: 7}, 24 + 5},
		{"all three", Retention{Last: 24, Daily: 7, Weekly: 4}, 24 + 5 + 3},
		{"nothing at all: the newest stays", Retention{}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			doomed, _ := Prune(list, c.rule, past)
			require.Equal(t, c.want, kept(list, doomed))
			require.NotContains(t, doomed, list[0].Name)
			require.IsIncreasing(t, append([]string{""}, doomed...), "the oldest goes first")
		})
	}
}

func TestWhatRetentionMayNotReach(t *testing.T) {
	newest := At("2026-11-29 10:00:00")
	old := At("2026-11-29 07:30:00")
	t.Run("the newest that a drill has proved stays", func(t *testing.T) {
		list := hourly(newest, 5)
		list[3].Drill = &DrillResult{Passed: true}
		list[2].Drill = &DrillResult{Passed: false}
		doomed, why := Prune(list, Retention{Last: 1}, Guard{Past: At("2026-01-01 00:00:00")})
		require.Equal(t, []string{list[4].Name, list[2].Name, list[1].Name}, doomed)
		require.Contains(t, why[0], "the newest that a drill has proved")
	})
	t.Run("what is older than a restore stays until a newer one is drilled", func(t *testing.T) {
		list := hourly(newest, 6) // 10, 9, 8, then before: 7, 6, 5
		doomed, why := Prune(list, Retention{Last: 1}, Guard{Past: old})
		require.Equal(t, []string{list[2].Name, list[1].Name}, doomed)
		require.Len(t, why, 3)
		list[0].Drill = &DrillResult{Passed: true}
		doomed, _ = Prune(list, Retention{Last: 1}, Guard{Past: old})
		require.Len(t, doomed, 5)
	})
	t.Run("the drill of one that is gone since proves nothing about what is left", func(t *testing.T) {
		list := hourly(newest, 6)
		list[1].Drill, list[1].Missing = &DrillResult{Passed: true}, true
		doomed, why := Prune(list, Retention{Last: 1}, Guard{Past: old})
		require.Equal(t, []string{list[2].Name, list[1].Name}, doomed)
		require.Len(t, why, 3)
	})
	t.Run("a drill of an older one proves nothing about the newer", func(t *testing.T) {
		list := hourly(newest, 6)
		list[4].Drill = &DrillResult{Passed: true}
		doomed, _ := Prune(list, Retention{Last: 1}, Guard{Past: old})
		require.Equal(t, []string{list[2].Name, list[1].Name}, doomed)
	})
	t.Run("one that is gone from the bucket doesn't count as the newest", func(t *testing.T) {
		list := hourly(newest, 3)
		list[0].Missing = true
		doomed, _ := Prune(list, Retention{}, Guard{Past: At("2026-01-01 00:00:00")})
		require.NotContains(t, doomed, list[1].Name)
	})
	t.Run("those that are gone from the bucket take no other with them", func(t *testing.T) {
		for name, c := range map[string]struct {
			rule Retention
			stay []int
		}{
			"the last":      {Retention{Last: 3}, []int{0, 1, 2, 3, 4}},
			"of each day":   {Retention{Daily: 2}, []int{0, 2, 11}},
			"of each week":  {Retention{Weekly: 1}, []int{0, 2}},
			"nothing asked": {Retention{}, []int{2}},
		} {
			t.Run(name, func(t *testing.T) {
				list := hourly(newest, 20)
				list[0].Missing, list[1].Missing = true, true
				doomed, _ := Prune(list, c.rule, Guard{Past: At("2026-01-01 00:00:00")})
				var stay []int
				for n, s := range list {
					if !slices.Contains(doomed, s.Name) {
						stay = append(stay, n)
					}
				}
				require.Equal(t, c.stay, stay, "and what is gone is said for as long as it would have stayed")
			})
		}
	})
	t.Run("what was let go before is let go again, and counts for nothing", func(t *testing.T) {
		list := hourly(newest, 4)
		list[1].Deleting = true
		doomed, _ := Prune(list, Retention{Last: 2}, Guard{Past: At("2026-01-01 00:00:00")})
		require.Equal(t, []string{list[3].Name, list[1].Name}, doomed)
	})
}
