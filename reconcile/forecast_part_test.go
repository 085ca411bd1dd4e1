package reconcile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAForecastInPartsIsTheOneThatLooksAtAllMachines foretells what comes of random clusters and changes twice: with a part of the machines at a time,
// and with all of them at every step. All is equal but since when something is said of a machine: in some passes little is decided, and then
// less is said of those that are looked at.
func TestAForecastInPartsIsTheOneThatLooksAtAllMachines(t *testing.T) {
	fewer := 0
	for seed := range uint64(60) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			in := changedAtRandom(t, rand.New(rand.NewPCG(seed, 11)))
			parts, whole := foretell(in, true), foretell(in, false)
			if parts.looks*3 < whole.looks*2 {
				fewer++
			}
			for _, f := range []*Forecast{&parts, &whole} {
				f.looks = 0
				for _, memory := range f.End.Next.Machines {
					memory.Ready.Since = time.Time{}
				}
			}
			require.Equal(t, foretold(whole), foretold(parts))
			require.Equal(t, reasons(whole.End.Next), reasons(parts.End.Next))
			require.True(t, reflect.DeepEqual(whole, parts), "the forecasts differ")
		})
	}
	require.Greater(t, fewer, 20, "few forecasts looked at a part of the machines")
}

// changedAtRandom is a cluster in which some machines are in trouble, and all have a change before them.
func changedAtRandom(t *testing.T, random *rand.Rand) Input {
	s := &story{t: t}
	s.do(fmt.Sprintf("machines %d %d", 1+2*random.IntN(2), 20+random.IntN(40)))
	s.do("kubernetes pods=0")
	s.do("run")
	require.Equal(t, "Ready", s.drive.state.Ready.Reason)
	s.do("git reboots " + []string{"automatic", "manual", "window schedule=0_10_*_*_* duration=2m", "window schedule=0_2_*_*_* duration=4h"}[random.IntN(4)])
	s.do("git max-unavailable-workers " + []string{"1", "2", "20%"}[random.IntN(3)])
	s.do("git config config-2")
	reboots, troubles := random.IntN(3), random.IntN(4)
	for _, name := range s.drive.model.names() {
		if reboots > 0 && random.IntN(reboots) == 0 {
			s.do("machine " + name + " reboot-because=machine.files")
		}
		if name[0] == 'w' && random.IntN(6) < troubles {
			s.do(fmt.Sprintf([]string{"machine %s power=off", "machine %s cordoned=yes", "machine %s maintenance=yes", "machine %s owner=other", "machine %s persistent=config-9",
				"git machine %s approved=no", "git machine %s pause=mending", "git delete %s", "machine %s ready=no", "machine %s active=config-2"}[random.IntN(10)], name))
		}
	}
	for range random.IntN(3) {
		s.do("pass")
	}
	s.drive.overlay = s.overlay
	return s.drive.input()
}

// TestLooksOfAForecastGrowLessThanWithTheSquareOfTheMachines counts how many machines the decisions look at, for a change to each of them.
func TestLooksOfAForecastGrowLessThanWithTheSquareOfTheMachines(t *testing.T) {
	for _, reboots := range []bool{false, true} {
		few, many := Foretell(changedCluster(100, reboots)), Foretell(changedCluster(400, reboots))
		require.False(t, few.Unfinished || many.Unfinished)
		require.GreaterOrEqual(t, len(many.Steps), 2*400)
		// A square would make it 16 times as many; in proportion it would be 4 times.
		require.Less(t, float64(many.looks)/float64(few.looks), 9.0)
	}
}

// TestAMachineThatWasBroughtUpInThoughtRebootsIntoAnotherBoot foretells reboots of machines whose boots were imagined by another forecast.
func TestAMachineThatWasBroughtUpInThoughtRebootsIntoAnotherBoot(t *testing.T) {
	in := changedCluster(5, true)
	f := Foretell(in)
	require.Len(t, foretold(f), 5*5, "each is staged, cordoned, emptied, rebooted and uncordoned")
	for name, seen := range f.Seen {
		require.NotEqual(t, in.Seen[name].BootID, seen.BootID)
	}
	require.Equal(t, "Ready", f.End.Next.Ready.Reason)
	require.Less(t, f.End.Next.Ready.Since.Sub(in.Now), 5*time.Minute, "each reboot was waited for until it was given up")
}

// changedCluster has three control planes and workers that stand as they should, and a change to each.
func changedCluster(machines int, reboots bool) Input {
	m := newModel(3, machines-3)
	in := newDrive(m, 3).input()
	in.TrustedNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	wanted := map[string]ConfigView{}
	for _, machine := range in.Cluster.Machines {
		wanted[machine.Metadata.Name] = ConfigView{Wanted: "config-1"}
	}
	settled := Settled(in, wanted)
	for name, seen := range settled.Seen {
		seen.Config.Wanted, seen.Config.NeedsReboot = "config-2", reboots
		settled.Seen[name] = seen
	}
	return settled
}
