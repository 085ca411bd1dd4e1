package reconcile

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// claimant is who takes one of the count+1 places of a control plane.
type claimant struct {
	name   string
	member bool
	at     time.Time
}

// hold recounts the control planes before anything is touched, since two pull requests may each pass and together exceed the
// cap. Places go to etcd members first, their YAML gone or not, then to approvals by time, ties by name. The machines past the
// first count+1 are held; the sentence says why. The hold changes nothing anywhere and lifts by itself.
func hold(in *Input, etcd etcdView) map[string]string {
	places := in.Cluster.Object.Spec.ControlPlane.Count + 1
	var claims []claimant
	for _, m := range in.Cluster.Machines {
		name := m.Metadata.Name
		if !isControlPlane(m) || in.remembered(name).Removed {
			continue
		}
		member := isMember(in, etcd, name)
		if m.Spec.Approved || member {
			claims = append(claims, claimant{name: name, member: member, at: approvedAt(in, m)})
		}
	}
	for _, stranger := range strangers(in, etcd) {
		claims = append(claims, claimant{name: stranger, member: true})
	}
	sort.Slice(claims, func(i, j int) bool {
		a, b := claims[i], claims[j]
		if a.member != b.member {
			return a.member
		}
		if !a.at.Equal(b.at) {
			return a.at.Before(b.at)
		}
		return a.name < b.name
	})
	if len(claims) <= places {
		return nil
	}
	held := map[string]string{}
	var first []string
	for _, c := range claims[:places] {
		first = append(first, c.name)
	}
	for _, c := range claims[places:] {
		held[c.name] = fmt.Sprintf("%s is held: count is %d, so at most %d control planes may be approved, and %s come before it; "+
			"raise spec.controlPlane.count in %s or remove one first", c.name, places-1, places, strings.Join(first, ", "),
			fileOr(in.Cluster.Object))
	}
	return held
}

func fileOr(c *schema.TalosCluster) string {
	if c.Source.File == "" {
		return "the TalosCluster"
	}
	return c.Source.File
}

// isMember says whether a machine counts as an etcd member: etcd lists it, or it holds data, or it was a member when last
// seen and no list has said otherwise.
func isMember(in *Input, etcd etcdView, name string) bool {
	if etcd.known {
		_, listed := etcd.member[name]
		return listed
	}
	seen, ok := in.see(name)
	return ok && seen.Etcd.Data == talos.Yes || in.remembered(name).MemberID != ""
}

// strangers are members that no machine in Git explains: by the name of the machine that the state remembers, else by theirs.
func strangers(in *Input, etcd etcdView) []string {
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, m := range etcd.members {
		name := etcd.machine[m.ID]
		if name == "" {
			add("member " + hexID(m.ID))
		} else if in.Cluster.Machine(name) == nil {
			add(name)
		}
	}
	if !etcd.known {
		for name, m := range in.State.Machines {
			if in.Cluster.Machine(name) == nil && m.MemberID != "" && !m.Removed {
				add(name)
			}
		}
	}
	return names
}

// approvedAt is when a machine was approved: approvalDecision.at, else the committer time of the commit that approved it,
// which the state keeps. A machine of which neither is known comes last.
func approvedAt(in *Input, m *schema.TalosMachine) time.Time {
	if m.Spec.ApprovalDecision != nil && !m.Spec.ApprovalDecision.At.IsZero() {
		return m.Spec.ApprovalDecision.At.UTC()
	}
	if at := in.remembered(m.Metadata.Name).FirstApproved; !at.IsZero() {
		return at
	}
	return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
}

// wantedControlPlanes are those that are approved, not held, not removed and not being removed, sorted.
func wantedControlPlanes(in *Input, held map[string]string) []string {
	var names []string
	for _, m := range in.Cluster.Machines {
		_, isHeld := held[m.Metadata.Name]
		if isControlPlane(m) && m.Spec.Approved && !isHeld && !in.remembered(m.Metadata.Name).Removed && removing(in.State, m.Metadata.Name) == nil {
			names = append(names, m.Metadata.Name)
		}
	}
	sort.Strings(names)
	return names
}
