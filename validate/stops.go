package validate

import (
	"slices"

	"ichor.maesh.dev/schema"
)

// Stopped sorts findings by what they stop in the agent. Warnings stop nothing.
type Stopped struct {
	// All stop every cluster, because they belong to none.
	All []Finding
	// Clusters are those that stop one cluster, by its name.
	Clusters map[string][]Finding
	// Documents refuse the one document they stand in, and nothing else: the agent doesn't act on its kind yet, or it is a test, so
	// whatever is wrong with it changes nothing for its cluster.
	Documents []Finding
	// Held are left to the hold (RuleApprovalCap): they refuse nothing.
	Held []Finding
}

// Stops says what findings stop in the agent. It doesn't act yet on documents of the kinds leftAlone.
func Stops(findings []Finding, leftAlone ...string) Stopped {
	stopped := Stopped{Clusters: map[string][]Finding{}}
	for _, f := range findings {
		switch {
		case f.Severity == Warning:
		case f.Rule == RuleNotYet || f.Kind == schema.KindPolicyTest || slices.Contains(leftAlone, f.Kind):
			stopped.Documents = append(stopped.Documents, f)
		case f.Rule == RuleApprovalCap:
			stopped.Held = append(stopped.Held, f)
		case f.Cluster == "":
			stopped.All = append(stopped.All, f)
		default:
			stopped.Clusters[f.Cluster] = append(stopped.Clusters[f.Cluster], f)
		}
	}
	return stopped
}

// Of gives the findings that stop a cluster: its own and those that stop all. Empty: nothing stops it.
func (s Stopped) Of(cluster string) []Finding {
	own := s.Clusters[cluster]
	stopping := make([]Finding, 0, len(own)+len(s.All))
	return append(append(stopping, own...), s.All...)
}
