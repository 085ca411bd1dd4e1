package main

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/addresses"
	"ichor.maesh.dev/talos"
)

func TestAnAddressIsAskedOnceMoreWhereItMayAnswerYet(t *testing.T) {
	found := talos.Observation{Mode: talos.ModeMaintenance, UUID: "4c4c4544-0039-4a10-8033-000000000001"}
	for name, test := range map[string]struct {
		first talos.Observation
		asked int
	}{
		"a machine in maintenance mode is found at once":    {found, 1},
		"one that was too busy to tell its UUID":            {talos.Observation{Mode: talos.ModeMaintenance, Problem: "reading its UUID: no answer"}, 2},
		"one whose port is open and that told nothing":      {talos.Observation{Problem: "10.0.0.1 can't be reached at 10.0.0.1:50000: no answer within 4s"}, 2},
		"one that took no connection in time":               {talos.Observation{Problem: noneInTime}, 2},
		"a port that is closed":                             {talos.Observation{Problem: noConnection}, 1},
		"a machine that is configured already":              {talos.Observation{Problem: "10.0.0.1 can't be reached at 10.0.0.1:50000: it " + wantsCertificate}, 1},
		"a machine that answers as one that was configured": {talos.Observation{Mode: talos.ModeConfigured}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := &app{terminal: &terminal{err: io.Discard}, clock: clock.RealClock{}}
			var mu sync.Mutex
			asked := map[string]int{}
			answers, _, err := a.askTwice(t.Context(), &discoverFlags{timeout: time.Second, parallel: 4}, []addresses.Address{{Text: "10.0.0.1"}, {Text: "10.0.0.2"}}, func(address string) talos.Observation {
				mu.Lock()
				defer mu.Unlock()
				if asked[address]++; address == "10.0.0.1" && asked[address] == 1 {
					return test.first
				}
				return found
			})
			require.NoError(t, err)
			require.Equal(t, map[string]int{"10.0.0.1": test.asked, "10.0.0.2": 1}, asked)
			if test.asked == 2 {
				require.Equal(t, found, answers[0])
			}
			looks := []talos.Observation{test.first, found}
			asked["alone"] = 0
			alone := onceMore(func() talos.Observation { asked["alone"]++; return looks[asked["alone"]-1] })
			require.Equal(t, looks[test.asked-1], alone)
			require.Equal(t, test.asked, asked["alone"])
		})
	}
}

func TestTheSilentOfANetworkAreAskedOnceMoreWhereThereIsTime(t *testing.T) {
	for name, test := range map[string]struct {
		addresses, parallel int
		timeout             time.Duration
		times               int
	}{
		"a /20":                                {4094, 64, 2 * time.Second, 2},
		"a /19":                                {8190, 64, 2 * time.Second, 1},
		"a /19, of which more are asked":       {8190, 128, 2 * time.Second, 2},
		"a /16":                                {65534, 64, 2 * time.Second, 1},
		"a /16, of which as many as may be":    {65534, 1024, 2 * time.Second, 2},
		"a /22 whose addresses are given 15 s": {1022, 64, 15 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := &app{terminal: &terminal{err: io.Discard}, clock: clock.RealClock{}}
			list := make([]addresses.Address, test.addresses)
			for i := range list {
				list[i].Text = fmt.Sprintf("10.0.%d.%d", i/256, i%256)
			}
			list[7].Named = true
			var mu sync.Mutex
			asked := map[string]int{}
			f := &discoverFlags{timeout: test.timeout, parallel: test.parallel}
			_, once, err := a.askTwice(t.Context(), f, list, func(address string) talos.Observation {
				mu.Lock()
				defer mu.Unlock()
				asked[address]++
				if address == "10.0.0.9" {
					return talos.Observation{Problem: "the connection broke"}
				}
				return talos.Observation{Problem: noneInTime}
			})
			require.NoError(t, err)
			require.Equal(t, test.times == 1, once)
			require.Len(t, asked, len(list))
			for address, times := range asked {
				want := test.times
				if address == "10.0.0.7" || address == "10.0.0.9" {
					want = 2 // it was named, or took a connection
				}
				require.Equal(t, want, times, address)
			}
		})
	}
}

func TestThatTheSilentWereAskedOnlyOnceIsSaidWithTheWayOut(t *testing.T) {
	f := &discoverFlags{timeout: 2 * time.Second, parallel: 64}
	require.Equal(t, "8188 addresses took no connection within 2s and were asked only once, since asking them again takes 4m16s: nothing is there, or they are slow; "+
		"--parallel asks more at once, and --timeout gives them longer", f.silentText(8188, true))
	require.Equal(t, "1 address took no connection within 2s, asked twice: nothing is there, or it is slow; --timeout gives it longer", f.silentText(1, false))
}
