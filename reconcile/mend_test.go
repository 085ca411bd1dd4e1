package reconcile

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// TestAMachinePowerCycledOnItsWayIntoEtcdIsMended cuts the power of cp-2 while it joins: Talos promotes a learner only in the boot
// that added it, and retries nothing where the member was added and the data never written.
func TestAMachinePowerCycledOnItsWayIntoEtcdIsMended(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, first string
		cut         func(ctx context.Context, l *lab)
	}{
		{"before it has a name", "127.0.53.1", func(ctx context.Context, l *lab) { l.cutNameless(ctx, "cp-2") }},
		{"as a learner, before its promotion", "127.0.53.11", func(ctx context.Context, l *lab) { l.cutLearner(ctx, "cp-2") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, test.first, 3, 0, 20)
			ctx, cancel := context.WithTimeout(context.Background(), ample)
			defer cancel()
			cut := make(chan struct{})
			go func() {
				defer close(cut)
				test.cut(ctx, l)
			}()
			config := l.config("agent-1")
			leap := &leapClock{}
			config.Clock, config.Clocks = leap, turnedTimes{statefile.SystemClocks(), &leap.ahead}
			leapt := false
			report := l.run(config, func(r Report) bool {
				select {
				case <-cut:
				default:
					return false
				}
				if !leapt && joining(r, "cp-2") {
					// Nobody promotes it and nobody names it any more: the grace is over all at once.
					leap.by(max(config.Timing.LearnerGrace, config.Timing.NamelessGrace))
					leapt = true
				}
				return leapt && allReady(r)
			})
			require.NoError(t, ctx.Err(), "cp-2 was never seen on its way")
			require.True(t, allReady(report), "%v", report.Problems())
			l.oneEtcdOfThree()
			require.Equal(t, map[string]int{"cp-1": 1}, l.accepted("Bootstrap"))
			t.Logf("removals %v, resets %v, reboots %v", l.accepted("EtcdRemoveMemberByID"), l.accepted("Reset"), l.accepted("Reboot"))
			require.Equal(t, 1, l.accepted("EtcdRemoveMemberByID")["cp-1"]+l.accepted("EtcdRemoveMemberByID")["cp-3"], "one member was removed by ID")
		})
	}
}

// cutNameless power-cycles a machine once its member was added, before it starts and has a name.
func (l *lab) cutNameless(ctx context.Context, name string) {
	reached := make(chan struct{}, 1)
	node := l.farm.Node(name)
	node.Inject(talossim.Fault{Method: talossim.AfterMemberAdd, Kind: talossim.Hang, Times: 1, Reached: reached})
	select {
	case <-reached:
		node.PowerCycle()
	case <-ctx.Done():
	}
}

// cutLearner power-cycles a machine once its member is a started learner that nobody has promoted yet.
func (l *lab) cutLearner(ctx context.Context, name string) {
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	defer client.Close()
	node := l.farm.Node(name)
	reached := make(chan struct{}, 1)
	node.Inject(talossim.Fault{Method: talossim.BeforePromotion, Kind: talossim.Hang, Times: 1, Reached: reached})
	select {
	case <-reached:
	case <-ctx.Done():
		return
	}
	first := l.farm.Nodes()[0]
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		o := client.Observe(ctx, talos.Target{Name: first.Name(), Endpoint: first.Address(), ControlPlane: true})
		for _, m := range o.Etcd.Members {
			if memberHosts(m)[0] == node.Address() && m.Name != "" && m.Learner {
				node.PowerCycle()
				return
			}
		}
		<-ticker.C
	}
}

// joining says whether a machine's member is known as one that hasn't joined.
func joining(r Report, machine string) bool {
	if len(r.Clusters) == 0 || r.Clusters[0].State == nil {
		return false
	}
	for _, join := range r.Clusters[0].State.Joins {
		if join.Machine == machine {
			return true
		}
	}
	return false
}

// leapClock is the real clock until it leaps ahead.
type leapClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *leapClock) by(d time.Duration) { c.ahead.Add(int64(d)) }

func (c *leapClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *leapClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
