package safety

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/internal/talossim/apid"
	"ichor.maesh.dev/statefile"
)

// History is what there is to judge about one cluster.
type History struct {
	// Calls are every call that each machine got, by the machine's name.
	Calls map[string][]apid.Entry
	// Events are the cluster's audit, in order.
	Events []statefile.Event
	// ControlPlanes are the names of the machines that run etcd.
	ControlPlanes []string
	// Foreign says that a call is not the agents' but the test's own. Nil: all are theirs.
	Foreign func(machine string, call apid.Entry) bool
}

// Of is what was called on a farm whose machines are named as the cluster names them. The events are to be read after it: an intent
// stands in the audit before its call is made.
func Of(farm *talossim.Farm) History {
	h := History{Calls: map[string][]apid.Entry{}}
	for _, node := range farm.Nodes() {
		h.Calls[node.Name()] = node.Journal()
		if node.Role() == talossim.ControlPlane {
			h.ControlPlanes = append(h.ControlPlanes, node.Name())
		}
	}
	return h
}

// taken is a call that a machine took.
type taken struct {
	machine, method string
	apid.Entry
	// intent is what it was meant by; nil: nothing.
	intent *intent
}

func (t taken) String() string {
	return fmt.Sprintf("%s on %s at %s (boot %.8s)", t.method, t.machine, t.Time.Format("15:04:05.000"), t.BootID)
}

// Check says which promises were broken, in sentences. None means none.
func Check(h History) []string {
	calls := h.taken()
	broken := bootstraps(calls)
	intents := intentsOf(h.Events)
	broken = append(broken, writers(h.Events)...)
	broken = append(broken, meant(calls, intents)...)
	broken = append(broken, h.disruptions(calls)...)
	broken = append(broken, resets(calls)...)
	return append(broken, recoveries(calls)...)
}

// taken are the calls that change something and were taken, in the order of their time.
func (h History) taken() []taken {
	var calls []taken
	for machine, entries := range h.Calls {
		for _, e := range entries {
			// What a front passed on stands in the journal of the machine that did it.
			if e.Accepted && len(e.Forwarded) == 0 && (h.Foreign == nil || !h.Foreign(machine, e)) {
				calls = append(calls, taken{machine: machine, method: e.Method[strings.LastIndexByte(e.Method, '/')+1:], Entry: e})
			}
		}
	}
	slices.SortStableFunc(calls, func(a, b taken) int { return a.Time.Compare(b.Time) })
	return calls
}

func bootstraps(calls []taken) (broken []string) {
	first := ""
	for _, c := range calls {
		if recovering, _ := c.Request["recoverEtcd"].(bool); c.method != "Bootstrap" || recovering {
			continue
		}
		if first != "" {
			broken = append(broken, fmt.Sprintf("a second bootstrap: %s, after %s", c, first))
			continue
		}
		first = c.String()
	}
	return broken
}

// disruptive says whether a call takes its machine away for a while.
func (t taken) disruptive() bool {
	return slices.Contains([]string{"Reboot", "Shutdown", "Reset", "Upgrade"}, t.method)
}

// returned is when a machine answered in another boot than a call's, with a config; zero: it hasn't.
func (h History) returned(c taken) time.Time {
	for _, e := range h.Calls[c.machine] {
		if e.Time.After(c.Time) && e.BootID != "" && e.BootID != c.BootID && e.Code == "OK" {
			return e.Time
		}
	}
	return time.Time{}
}

// released is when, after a shutdown, the cluster lock was another's than the shutdown's; zero: it hasn't been.
func (h History) released(c taken) time.Time {
	lock := ""
	for _, e := range h.Events {
		switch {
		case e.Action != "Intent":
		case e.At.After(c.Time):
			if e.Details["lock"] != lock {
				return e.At
			}
		case e.Details["action"] == "shutdown" && e.Details["carrier"] == c.machine:
			lock = e.Details["lock"]
		}
	}
	return time.Time{}
}

// disruptions judges what was away at once. A machine that was shut down no longer holds the lock, and is missing all the same.
func (h History) disruptions(calls []taken) (broken []string) {
	var away []taken
	for _, c := range calls {
		if !c.disruptive() && c.method != "EtcdRemoveMemberByID" && c.method != "EtcdLeaveCluster" {
			continue
		}
		away = slices.DeleteFunc(away, func(a taken) bool { return before(h.returned(a), c.Time) })
		for _, a := range away {
			if a.machine != c.machine && !(a.method == "Shutdown" && before(h.released(a), c.Time)) && !sameRestore(a, c) {
				broken = append(broken, fmt.Sprintf("two disruptions at once: %s, while %s had not come back from %s", c, a.machine, a))
			}
		}
		if c.disruptive() {
			away = append(away, c)
		}
		if missing := h.quorumless(away); missing != "" && !c.wipesForRestore() {
			broken = append(broken, fmt.Sprintf("etcd without quorum after %s: %s", c, missing))
		}
	}
	return broken
}

func before(t, c time.Time) bool { return !t.IsZero() && !t.After(c) }

// quorumless says what is missing, when that is too much. The only member of an etcd may go away.
func (h History) quorumless(away []taken) string {
	gone := map[string]bool{}
	for _, a := range away {
		if slices.Contains(h.ControlPlanes, a.machine) {
			gone[a.machine] = true
		}
	}
	members := len(h.ControlPlanes)
	if left, quorum := members-len(gone), members/2+1; members > 1 && left < quorum {
		return fmt.Sprintf("%d of %d members are there, and %d have to be", left, members, quorum)
	}
	return ""
}

// Source gives what there is to judge now.
type Source func(ctx context.Context) (History, error)

// Watch judges again and again until ctx ends and then once more, and returns what is broken as soon as anything is. A history that
// can't be read at one time is read the next.
func Watch(ctx context.Context, every time.Duration, source Source) []string {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if h, err := source(ctx); err == nil {
			if broken := Check(h); len(broken) > 0 {
				return broken
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			h, err := source(context.WithoutCancel(ctx))
			if err != nil {
				return []string{"what was done can't be judged: " + err.Error()}
			}
			return Check(h)
		}
	}
}
