package validate

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// The tests of this file compare the rules and Propose with a second, plain account of what they must say, over random fleets
// and random changes of them. The account knows nothing of package validate: it is maps and loops.

// place of an object: its kind, cluster and name.
type plainKey struct{ kind, cluster, name string }

// plain is an object. Which fields mean something depends on its kind.
type plain struct {
	file string // of no meaning to anyone
	// of a cluster
	count       int
	schedulable bool
	// of a machine
	controlPlane, approved, allowDelete bool
	uuid, hostname                      string
	decided                             time.Duration // 0: no time is given
	// of a remove
	machine string
	made    time.Duration
	gone    bool
}

type plainFleet map[plainKey]plain

// text gives the fleet in the language of fleetOf, in a random order.
func (f plainFleet) text(random *rand.Rand) string {
	var lines []string
	for k, o := range f {
		line := ""
		switch k.kind {
		case "cluster":
			line = fmt.Sprintf("cluster %s count=%d schedulable=%t", k.cluster, o.count, o.schedulable)
		case "machine":
			line = fmt.Sprintf("machine %s/%s uuid=%s endpoint=%s-%s", k.cluster, k.name, o.uuid, k.cluster, k.name)
			for word, is := range map[string]bool{"controlplane": o.controlPlane, "approved": o.approved, "allow-delete": o.allowDelete,
				"decided=" + o.decided.String(): o.decided != 0, "hostname=" + o.hostname: o.hostname != ""} {
				if is {
					line += " " + word
				}
			}
		case "remove":
			line = fmt.Sprintf("remove %s/%s name=%s uuid=%s made=%s", k.cluster, o.machine, k.name, o.uuid, o.made)
			if o.gone {
				line += " gone"
			}
		}
		if o.file != "" {
			line += " file=" + o.file
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	random.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	return strings.Join(lines, "\n")
}

// change makes one random edit.
func (f plainFleet) change(random *rand.Rand) {
	pick := func(kind string) (plainKey, bool) {
		keys := slices.SortedFunc(maps.Keys(f), func(a, b plainKey) int {
			return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.name, b.name))
		})
		keys = slices.DeleteFunc(keys, func(k plainKey) bool { return k.kind != kind })
		if len(keys) == 0 {
			return plainKey{}, false
		}
		return keys[random.IntN(len(keys))], true
	}
	cluster := []string{"prod", "test"}[random.IntN(2)]
	hours := func() time.Duration { return time.Duration(random.IntN(9)-2) * time.Hour }
	switch what := random.IntN(20); {
	case what < 2:
		k := plainKey{"cluster", cluster, cluster}
		o, known := f[k]
		if !known || random.IntN(2) == 0 {
			o.count = []int{1, 1, 3, 3, 5}[random.IntN(5)]
		}
		if !known || random.IntN(2) == 0 {
			o.schedulable = !o.schedulable
		}
		f[k] = o
	case what == 2 && random.IntN(6) == 0:
		delete(f, plainKey{"cluster", cluster, cluster})
	case what < 7:
		name := fmt.Sprintf("m-%d", random.IntN(7))
		k := plainKey{"machine", cluster, name}
		if _, known := f[k]; !known {
			f[k] = plain{uuid: "uuid-" + cluster + name, controlPlane: random.IntN(4) > 0, approved: random.IntN(4) > 0, decided: hours() * time.Duration(random.IntN(2))}
		}
	case what < 8:
		if k, ok := pick("machine"); ok {
			delete(f, k)
		}
	case what < 15:
		k, ok := pick("machine")
		if !ok {
			return
		}
		o := f[k]
		switch random.IntN(8) {
		case 0, 1, 2:
			o.approved = !o.approved || random.IntN(3) == 0
		case 3:
			o.controlPlane = !o.controlPlane
		case 4:
			o.decided = hours() * time.Duration(random.IntN(2))
		case 5:
			o.hostname = fmt.Sprintf("host-%d", random.IntN(100))
		case 6:
			o.allowDelete = !o.allowDelete
		case 7: // it moves to the other cluster
			delete(f, k)
			k.cluster = map[string]string{"prod": "test", "test": "prod"}[k.cluster]
		}
		f[k] = o
	case what < 17:
		if k, ok := pick("machine"); ok {
			f[plainKey{"remove", k.cluster, fmt.Sprintf("remove-%d", random.IntN(40))}] = plain{machine: k.name,
				uuid: []string{f[k].uuid, f[k].uuid, "other"}[random.IntN(3)], made: hours(), gone: random.IntN(3) == 0}
		}
	case what < 18:
		if k, ok := pick("remove"); ok {
			delete(f, k)
		}
	default: // a file moves
		if k, ok := pick([]string{"cluster", "machine", "remove"}[random.IntN(3)]); ok {
			o := f[k]
			o.file = fmt.Sprintf("somewhere/%d.yaml", random.IntN(100))
			if k.kind == "remove" { // an operation's file keeps its name
				o.file = fmt.Sprintf("somewhere/%d/%s.yaml", random.IntN(100), k.name)
			}
			f[k] = o
		}
	}
}

func (f plainFleet) changed(random *rand.Rand, edits int) plainFleet {
	made := maps.Clone(f)
	for range edits {
		made.change(random)
	}
	return made
}

// removedBy says whether one of this fleet's removes means that machine, as it stands there.
func (f plainFleet) removedBy(k plainKey, m plain) bool {
	for other, op := range f {
		if other.kind == "remove" && other.cluster == k.cluster && op.machine == k.name && op.uuid == m.uuid && (m.decided == 0 || m.decided <= op.made) {
			return true
		}
	}
	return false
}

// left counts the approved machines of a cluster with a role that no remove takes away.
func (f plainFleet) left(cluster string, controlPlane bool) int {
	n := 0
	for k, m := range f {
		if k.kind == "machine" && k.cluster == cluster && m.approved && m.controlPlane == controlPlane && !f.removedBy(k, m) {
			n++
		}
	}
	return n
}

// judged is what must be found about a step, by the rules on transitions.
func judged(old, proposed plainFleet) []string {
	var found []string
	for k, o := range proposed {
		c, hasCluster := proposed[plainKey{"cluster", k.cluster, k.cluster}]
		was, existed := old[k]
		say := func(rule string) { found = append(found, rule+" "+k.cluster+"/"+k.name) }
		switch k.kind {
		case "cluster":
			if hasCluster && existed && was.schedulable && !o.schedulable && proposed.left(k.cluster, false) == 0 {
				say("schedulable-needs-worker")
			}
		case "machine":
			if o.approved && old.removedBy(k, o) && proposed.removedBy(k, o) && !(existed && was.approved && old.removedBy(k, was)) {
				say("approval-is-later")
			}
			if !hasCluster {
				continue
			}
			isNow := o.approved && o.controlPlane && !proposed.removedBy(k, o)
			wasBefore := existed && was.approved && was.controlPlane
			backAgain := wasBefore && old.removedBy(k, was) && !old.removedBy(k, o)
			if isNow && (!wasBefore || backAgain) && proposed.left(k.cluster, true) > c.count+1 {
				say("approval-cap")
			}
			if existed && was.approved && !old.removedBy(k, was) && !(o.approved && o.controlPlane == was.controlPlane) {
				if was.controlPlane && !was.allowDelete && tooFew(old, proposed, k.cluster) {
					say("control-plane-count")
				}
				if !was.controlPlane && !c.schedulable && proposed.left(k.cluster, false) == 0 {
					say("last-worker")
				}
			}
		case "remove":
			target := plainKey{"machine", k.cluster, o.machine}
			m, known := old[target]
			alone := plainFleet{k: o}
			was.file, o.file = "", ""
			unchanged := existed && was == o
			if is, there := proposed[target]; !unchanged && there && is.uuid == o.uuid && is.approved && !alone.removedBy(target, is) {
				say("removal-is-later")
			}
			if !hasCluster || unchanged || !known || !m.approved || old.removedBy(target, m) || !alone.removedBy(target, m) {
				continue
			}
			switch {
			case m.controlPlane && !o.gone && !m.allowDelete && tooFew(old, proposed, k.cluster):
				say("control-plane-count")
			case m.controlPlane && proposed.left(k.cluster, true) == 0:
				say("last-control-plane")
			}
			if !m.controlPlane && !c.schedulable && proposed.left(k.cluster, false) == 0 {
				say("last-worker")
			}
		}
	}
	for k, was := range old {
		_, still := proposed[k]
		c, hasCluster := proposed[plainKey{"cluster", k.cluster, k.cluster}]
		if k.kind != "machine" || still || !hasCluster || !was.approved || old.removedBy(k, was) || proposed.removedBy(k, was) {
			continue
		}
		if was.controlPlane && !was.allowDelete && tooFew(old, proposed, k.cluster) {
			found = append(found, "control-plane-count "+k.cluster+"/"+k.name)
		}
		if !was.controlPlane && !c.schedulable && proposed.left(k.cluster, false) == 0 {
			found = append(found, "last-worker "+k.cluster+"/"+k.name)
		}
	}
	return found
}

// tooFew says that fewer control planes than wanted are left, where as many as wanted were there. The lower count counts.
func tooFew(old, proposed plainFleet, cluster string) bool {
	wanted := proposed[plainKey{"cluster", cluster, cluster}].count
	if before, existed := old[plainKey{"cluster", cluster, cluster}]; existed {
		wanted = min(wanted, before.count)
	}
	return proposed.left(cluster, true) < wanted && old.left(cluster, true) >= wanted
}

// onTransitions keeps the findings of the rules that judged knows.
func onTransitions(findings []Finding) []string {
	var kept []string
	for _, f := range findings {
		switch f.Rule {
		case RuleApprovalCap, "approval-is-later", "removal-is-later", "schedulable-needs-worker", "last-worker", "control-plane-count", "last-control-plane":
			kept = append(kept, f.Rule+" "+f.Cluster+"/"+f.Name)
		}
	}
	return kept
}

func TestTheRulesAgreeWithAPlainAccountOfThem(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	seen := map[string]int{}
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 3))
		fleet := plainFleet{}.changed(random, 25)
		for range 8 {
			next := fleet.changed(random, 1+random.IntN(5))
			before, after := fleet.text(random), next.text(random)
			findings := engine.Check(fleetOf(t, before), fleetOf(t, after))
			for _, f := range findings {
				require.NotContains(t, f.Message, "could not be judged")
				seen[f.Rule]++
			}
			want := judged(fleet, next)
			require.ElementsMatch(t, want, onTransitions(findings), "seed %d\n%s\n---\n%s", seed, before, after)
			seen["passes"] += min(1, max(0, 1-len(want)))
			fleet = next
		}
	}
	for _, rule := range []string{RuleApprovalCap, "approval-is-later", "removal-is-later", "schedulable-needs-worker", "last-worker", "control-plane-count", "last-control-plane", "passes"} {
		require.Greater(t, seen[rule], 5, "%s was hardly tried: %v", rule, seen)
	}
}

// laidOver applies what changed from fork to branch to the base, and names what the base changed otherwise.
func laidOver(fork, base, branch plainFleet) (plainFleet, []string) {
	merged := maps.Clone(base)
	var conflicts []string
	same := func(a, b plainFleet, k plainKey) bool {
		x, inA := a[k]
		y, inB := b[k]
		x.file, y.file = "", ""
		return inA == inB && x == y
	}
	everywhere := maps.Clone(fork)
	maps.Copy(everywhere, branch)
	for k := range everywhere {
		if same(fork, branch, k) {
			continue
		}
		if !same(fork, base, k) && !same(base, branch, k) {
			conflicts = append(conflicts, k.cluster+"/"+k.name)
			if _, kept := branch[k]; !kept {
				continue
			}
		}
		if o, kept := branch[k]; kept {
			merged[k] = o
		} else {
			delete(merged, k)
		}
	}
	return merged, conflicts
}

// withoutFiles is what a fleet says.
func (f plainFleet) withoutFiles() plainFleet {
	clean := plainFleet{}
	for k, o := range f {
		o.file = ""
		clean[k] = o
	}
	return clean
}

// spoken gives each object of a fleet as text, whatever file it stands in.
func spoken(f *schema.Fleet) []string {
	var all []string
	for _, c := range f.Clusters {
		o := *c
		o.Source = schema.Source{}
		all = append(all, fmt.Sprintf("%s %+v %v", o.Metadata.Name, o.Spec.ControlPlane.Count, *o.Spec.ControlPlane.Schedulable))
	}
	for _, m := range f.Machines {
		o := *m
		o.Source, o.Spec.ApprovalDecision = schema.Source{}, nil
		all = append(all, fmt.Sprintf("%+v %v", o, m.Spec.ApprovalDecision))
	}
	for _, op := range f.Operations {
		all = append(all, fmt.Sprintf("%s %s %+v %s", op.Spec.ClusterRef.Name, op.Metadata.Name, *op.Spec.Node, op.Spec.CreatedAt))
	}
	slices.Sort(all)
	return all
}

// A history of merged branches, each forked somewhere back: what validate says of a branch before its merge is what the agent
// says of the merge, commit after commit along the first parents.
func TestWhatIsSaidBeforeTheMergeIsWhatIsSaidAfterIt(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	behind, refused, clashed := 0, 0, 0
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 7))
		mainline := []plainFleet{plainFleet{}.changed(random, 20)}
		for range 8 {
			tip := mainline[len(mainline)-1]
			at := random.IntN(min(4, len(mainline))) + 1
			fork := mainline[len(mainline)-at]
			branch := fork.changed(random, 1+random.IntN(4))
			want, conflicts := laidOver(fork, tip, branch)
			base := fleetOf(t, tip.text(random))
			proposal := Propose(fleetOf(t, fork.text(random)), base, fleetOf(t, branch.text(random)), nil)
			require.Equal(t, spoken(fleetOf(t, want.withoutFiles().text(random))), spoken(proposal.Fleet), "seed %d", seed)
			var clashes []string
			for _, f := range proposal.Findings {
				clashes = append(clashes, f.Cluster+"/"+f.Name)
			}
			require.ElementsMatch(t, conflicts, clashes, "seed %d", seed)

			// Files mean nothing here, and to operation-file they do.
			before := engine.Check(base, proposal.Fleet, Without("operation-file"))
			after := engine.Check(base, fleetOf(t, want.text(random)), Without("operation-file"))
			require.ElementsMatch(t, saying(before), saying(after), "seed %d", seed)
			require.ElementsMatch(t, judged(tip, want), onTransitions(before), "seed %d", seed)
			behind += min(1, at-1)
			refused += min(1, len(onTransitions(before)))
			clashed += min(1, len(conflicts))
			mainline = append(mainline, want)
		}
	}
	require.Greater(t, behind, 60)
	require.Greater(t, refused, 30)
	require.Greater(t, clashed, 10)
}

// saying gives which rule speaks of which name. The cluster of a machine whose TalosCluster isn't there follows from its file,
// which means nothing here.
func saying(findings []Finding) []string {
	var all []string
	for _, f := range findings {
		all = append(all, f.Rule+" "+f.Name)
	}
	return all
}

// A branch that changed nothing proposes the base, whatever happened there since.
func TestABranchWithoutChangesProposesItsBase(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 11))
		fork := plainFleet{}.changed(random, 20)
		tip := fork.changed(random, 10)
		base := fleetOf(t, tip.text(random))
		proposal := Propose(fleetOf(t, fork.text(random)), base, fleetOf(t, fork.text(random)), nil)
		require.Empty(t, proposal.Findings)
		require.Equal(t, spoken(base), spoken(proposal.Fleet))
	}
}
