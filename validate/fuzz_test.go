package validate

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzCron holds that what passes for a schedule in a rule comes round later, or never, and that a window that is always open is open when the next opens.
func FuzzCron(f *testing.F) {
	for _, text := range []string{"0 2 * * SAT", "*/5 * * * *", "0 0 30 2 *", "0 0 29 2 *", "@daily", "TZ=UTC 0 0 * * *", "0 0 * * 7", "1-0 * * * *", "*/0 * * * *", "* * * *", "? ? ? ? ?"} {
		f.Add(text, int64(4*time.Hour))
	}
	f.Fuzz(func(t *testing.T, text string, duration int64) {
		if len(text) > 200 {
			return
		}
		schedule, err := parseCron(text)
		if err != nil {
			return
		}
		now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
		next := schedule.Next(now)
		require.True(t, next.IsZero() || next.After(now))
		require.True(t, next.IsZero() || next.Location() == time.UTC)
		if alwaysOpen(schedule, time.Duration(duration)) {
			require.LessOrEqual(t, schedule.Next(next).Sub(next), time.Duration(duration))
		}
	})
}

// FuzzVersion holds the order of versions: what is read is equal to itself with and without its v, and comparing is the same from both sides.
func FuzzVersion(f *testing.F) {
	for _, pair := range [][2]string{{"v1.13.6", "1.13.6"}, {"v1.13.0-rc.1", "v1.13.0"}, {"1", "1.2"}, {"v01.2.3", "v1.2.3+build"}, {"vv1.2.3", ""}, {"18446744073709551616.0.0", "1.0.0"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		a, err := parseSemver(one)
		if err != nil {
			return
		}
		again, err := parseSemver(a.String())
		require.NoError(t, err)
		require.Zero(t, a.Compare(again.Version))
		if b, err := parseSemver(other); err == nil {
			require.Equal(t, a.Compare(b.Version), -b.Compare(a.Version))
		}
	})
}

// FuzzNetworks holds that which networks overlap doesn't depend on who is asked first, and that one overlaps itself.
func FuzzNetworks(f *testing.F) {
	for _, pair := range [][2]string{{"10.0.0.0/8", "10.96.0.0/12"}, {"10.1.2.3/8", "11.0.0.0/8"}, {"fd00::/8", "10.0.0.0/8"}, {"::ffff:10.0.0.0/104", "10.0.0.0/8"}, {"10.0.0.0/33", ""}, {"fe80::1%eth0/64", "0.0.0.0/0"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		there, back := overlapping([]string{one, other}), overlapping([]string{other, one})
		require.Equal(t, there == nil, back == nil)
		if _, err := netip.ParsePrefix(one); err == nil {
			require.NotNil(t, overlapping([]string{one, one}))
		}
		if prefix, err := netip.ParsePrefix(one); err == nil {
			inside := networkOf(prefix.Addr().WithZone("").String(), []string{other, one})
			require.Contains(t, []string{other, one}, inside, "an address lies in its own network")
		}
	})
}
