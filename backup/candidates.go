package backup

import (
	"fmt"
	"slices"
	"strings"
)

// EtcdStatus is what a control plane's etcd member says of itself.
type EtcdStatus struct {
	MemberID, Leader uint64
	Learner          bool
	// Errors are etcd's own: alarms, a missing leader.
	Errors []string
	DBSize int64
	// RaftIndex and RaftApplied tell whether the member has caught up.
	RaftIndex, RaftApplied uint64
}

// asked is a control plane with its answer about etcd, or why there is none.
type asked struct {
	node   Node
	status EtcdStatus
	err    error
}

// candidates orders control planes by how good it is to ask each for a snapshot: followers without errors first, so that the leader has
// its hands free, then a leader, then members that have errors and a leader, such as one that is out of space: that is when a snapshot is
// needed most. What is left out is said in reasons, one sentence each: a learner may lag behind for long, and a member that knows no leader
// may have been cut off from what the others wrote.
func candidates(members []asked) (order []Node, reasons []string) {
	rank := func(a asked) int {
		switch {
		case len(a.status.Errors) > 0:
			return 2
		case a.status.Leader == a.status.MemberID:
			return 1
		}
		return 0
	}
	var fit []asked
	for _, a := range members {
		switch {
		case a.err != nil:
			reasons = append(reasons, fmt.Sprintf("%s didn't say how its etcd is: %v", a.node.Name(), a.err))
		case a.status.Learner:
			reasons = append(reasons, fmt.Sprintf("%s is a learner and may lag behind", a.node.Name()))
		case a.status.Leader == 0:
			reasons = append(reasons, fmt.Sprintf("%s knows no leader: its etcd has no quorum, or was cut off from it%s", a.node.Name(),
				inBrackets(a.status.Errors)))
		default:
			fit = append(fit, a)
		}
	}
	slices.SortStableFunc(fit, func(a, b asked) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a.node.Name(), b.node.Name())
	})
	for _, a := range fit {
		order = append(order, a.node)
	}
	return order, reasons
}

func inBrackets(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, "; ") + ")"
}
