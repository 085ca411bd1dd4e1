package reconcile

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/statefile"
)

// mutations are the calls of a restore.
func mutations() []string {
	return []string{"Reset", "EtcdLeaveCluster", "EtcdRecover", "Bootstrap", "Reboot", "EtcdRemoveMemberByID", "ApplyConfiguration", "Shutdown"}
}

// hooked runs an agent that calls hook at each of its points, on the agent's own goroutines: what a hook can't do ends the agent, and then the test.
func (l *restoreLab) hooked(hook func(point string) error, stop func(Report) bool) Report {
	l.t.Helper()
	l.agents++
	p, failed := newTap(nil), make(chan error, 1)
	p.freeze = func(point string) {
		if err := hook(point); err != nil {
			select {
			case failed <- fmt.Errorf("%s: %w", point, err):
			default: // the first one is told
			}
		}
	}
	report := l.runFor(tapped(l.config(fmt.Sprintf("agent-%d", l.agents)), p), aRestore, func(r Report) bool { return len(failed) > 0 || stop(r) })
	select {
	case err := <-failed:
		require.NoError(l.t, err)
	default:
	}
	return report
}

// at is a hook that does something the first time a point is met.
func at(point string, do func() error) func(string) error {
	var once sync.Once
	return func(met string) (err error) {
		if strings.HasPrefix(met, point) {
			once.Do(func() { err = do() })
		}
		return err
	}
}

// killed runs an agent that dies at a point.
func (l *restoreLab) killed(point string) {
	l.t.Helper()
	l.killedWhile(point, func(Report) bool { return false })
}

// killedWhile is killed with a look at each report meanwhile.
func (l *restoreLab) killedWhile(point string, look func(Report) bool) {
	l.t.Helper()
	l.agents++
	dead, _ := l.runUntilKilled(l.config(fmt.Sprintf("agent-%d", l.agents)), look, func(at string) bool { return strings.HasPrefix(at, point) })
	require.True(l.t, dead, "%s was not met", point)
}

// turning turns the clocks, once, when an operation says something.
func (l *restoreLab) turning(name, says string, by time.Duration, stop func(Report) bool) func(Report) bool {
	turned := false
	return func(r Report) bool {
		for _, c := range r.Clusters {
			if op := operationNamed(c.State, name); op != nil && !turned && strings.Contains(op.Message, says) {
				turned = true
				l.turn(by)
			}
		}
		return stop(r)
	}
}

// resumed is whole for a restore that was paused: that pause is not one to stop at.
func resumed(before *statefile.OperationState) func(Report) bool {
	return func(r Report) bool {
		for _, c := range r.Clusters {
			if op := operationNamed(c.State, before.Name); op != nil && op.Phase == statefile.OperationPaused {
				return op.Pause > before.Pause
			}
		}
		return inPhase(before.Name, statefile.OperationCompleted)(r) && allReady(r)
	}
}

// settle runs an agent until the cluster is Ready.
func (l *restoreLab) settle() {
	l.t.Helper()
	report := l.agent(allReady)
	require.True(l.t, allReady(report), "%v", report.Problems())
}

// loseData takes a control plane's power and its etcd data, and gives it its power back.
func (l *restoreLab) loseData(name string) {
	l.t.Helper()
	node := l.farm.Node(name)
	require.NoError(l.t, node.PowerOff())
	require.NoError(l.t, node.LoseEtcdData())
	node.PowerOn()
}

// quorumless waits until a control plane's etcd answers nothing any more.
func (l *restoreLab) quorumless(name string) {
	l.t.Helper()
	l.etcd(name, func(ctx context.Context, client *clientv3.Client) {
		require.Eventually(l.t, func() bool {
			reading, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := client.Get(reading, "health")
			return err != nil
		}, ample, 100*time.Millisecond)
	})
}

// follower is a control plane that doesn't lead.
func (l *restoreLab) follower() string {
	leads := l.leader()
	for _, name := range l.controlPlanes() {
		if name != leads {
			return name
		}
	}
	return ""
}

// met wants a hook to have done what it is there for.
func met(l *restoreLab, did <-chan struct{}) {
	l.t.Helper()
	select {
	case <-did:
	default:
		require.Fail(l.t, "the point that a hook waits for was not met")
	}
}

// startedLearner is the control plane whose member is a learner that runs; empty while there is none.
func (l *restoreLab) startedLearner() (name string) {
	l.etcd(l.target(), func(ctx context.Context, client *clientv3.Client) {
		listing, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		list, err := client.MemberList(listing)
		if err != nil {
			return
		}
		for _, member := range list.Members {
			if member.IsLearner {
				name = member.Name
			}
		}
	})
	return name
}

// memberOf gives the member that a machine is in the etcd that answers on another one, and whether it has started.
func (l *restoreLab) memberOf(on, name string) (id uint64, started bool) {
	l.etcd(on, func(ctx context.Context, client *clientv3.Client) {
		listing, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		list, err := client.MemberList(listing)
		if err != nil {
			return
		}
		url := "http://" + l.farm.Node(name).Address() + ":2380"
		for _, member := range list.Members {
			if len(member.PeerURLs) > 0 && member.PeerURLs[0] == url {
				id, started = member.ID, member.Name != ""
			}
		}
	})
	return id, started
}

// failed is a wipe that fails, and with it the reset: the machine reboots as it was.
func failed() talossim.Fault {
	return talossim.Fault{Method: talossim.BeforeWipe, Kind: talossim.Fail, Times: 1, Text: "the partition is busy"}
}

func refusedOnce() talossim.Fault {
	return talossim.Fault{Method: "Reset", Kind: talossim.Fail, Code: codes.Unavailable, Text: "no connection to machined", Times: 1}
}
