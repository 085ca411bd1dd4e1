package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// originVerdict is what can be said about the past of a cluster whose state is young.
type originVerdict struct {
	origin statefile.Origin // empty: not known yet
	why    string
	// needBackups asks for a listing before the verdict.
	needBackups bool
}

// decideOrigin tells a cluster that is new from one whose state was lost. New needs proof: every wanted control plane was seen
// in maintenance mode, and no backup speaks of a past. Anything configured means that there was one. Until then nothing is
// done, because a lost state is not an empty past.
func decideOrigin(in *Input, wanted []string) originVerdict {
	if in.State.Origin != "" {
		return originVerdict{origin: in.State.Origin}
	}
	if len(wanted) == 0 {
		return originVerdict{why: "no control plane is approved; set spec.approved: true on one TalosMachine of role controlplane"}
	}
	var waiting []string
	for _, name := range wanted {
		seen, ok := in.see(name)
		switch {
		case ok && seen.Mode == talos.ModeConfigured:
			return originVerdict{origin: statefile.OriginLost,
				why: fmt.Sprintf("%s is configured already, so this cluster has a past that this state doesn't know", name)}
		case !ok || seen.Mode != talos.ModeMaintenance:
			waiting = append(waiting, fmt.Sprintf("%s (%s)", name, in.endpoint(name)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Seen)) {
		if in.Seen[name].Mode == talos.ModeConfigured && mayHoldEtcd(in, name) {
			return originVerdict{origin: statefile.OriginLost,
				why: fmt.Sprintf("the machine at %s (%s) is configured already, so this cluster has a past that this state doesn't know",
					in.endpoint(name), name)}
		}
	}
	if len(waiting) > 0 {
		return originVerdict{why: fmt.Sprintf("whether this cluster is new shows only once all %d wanted control planes have answered; "+
			"waiting for %s", len(wanted), strings.Join(waiting, ", "))}
	}
	past, why, need := speaksOfPast(in)
	switch {
	case need:
		return originVerdict{needBackups: true, why: "the backup destinations are not listed yet"}
	case past:
		return originVerdict{origin: statefile.OriginLost, why: why}
	case why != "":
		return originVerdict{why: why}
	}
	return originVerdict{origin: statefile.OriginNew,
		why: fmt.Sprintf("all %d wanted control planes are in maintenance mode and nothing speaks of a past", len(wanted))}
}

// speaksOfPast says whether a backup destination holds a snapshot or a marker. When one could not be listed, past is false
// and why says so: that destination may hold anything. need asks for a listing.
func speaksOfPast(in *Input) (past bool, why string, need bool) {
	if len(in.Cluster.Backups) == 0 {
		return false, "", false
	}
	if in.Backups == nil {
		return false, "", true
	}
	names := make([]string, 0, len(in.Cluster.Backups))
	for _, b := range in.Cluster.Backups {
		names = append(names, b.Metadata.Name)
	}
	sort.Strings(names)
	for _, name := range names {
		if found := slices.Concat(in.Backups.Snapshots[name], in.Backups.Markers[name]); len(found) > 0 {
			return true, fmt.Sprintf("the destination of backup %s holds %d objects of this cluster, among them %s, which prove a past",
				name, len(found), found[0]), false
		}
	}
	for _, name := range names {
		if problem := in.Backups.Problem[name]; problem != "" {
			return false, fmt.Sprintf("the destination of backup %s could not be listed, so it may hold a snapshot: %s", name, problem), false
		}
	}
	return false, "", false
}

func (in *Input) endpoint(name string) string {
	if m := in.Cluster.Machine(name); m != nil {
		return m.Spec.Endpoint
	}
	return in.remembered(name).Address
}
