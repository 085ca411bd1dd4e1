package validate

import (
	"fmt"
	"reflect"

	"ichor.maesh.dev/schema"
)

// RuleBothSides is the rule of an object that the branch and its base both changed.
const RuleBothSides = "changed-on-both-sides"

// Proposal is the fleet that a merge would give.
type Proposal struct {
	Fleet *schema.Fleet
	// Findings name the objects that were changed on both sides, each in its own way.
	Findings []Finding
	// Problems are those of the branch that the merge would bring.
	Problems []schema.Problem
}

// Propose lays what a branch changed since it left its base (at fork) over the tip of the base, object by object. So a branch
// that is behind its base deletes nothing, and takes nothing back. An object that can't be read on the branch counts as
// unchanged there: its problem says the rest.
func Propose(fork, base, branch *schema.Fleet, problems []schema.Problem) Proposal {
	merged := *branch // with its files, its broken objects and its folders
	p := Proposal{Fleet: &merged}
	tree := newOverlay(fork.Tree, base.Tree, branch.Tree)
	merged.Tree = tree
	m := &merge{fork: fork, base: base, branch: branch, broken: map[brokenObject]bool{}, brokenFiles: map[string]bool{}}
	merged.Broken = nil
	for _, b := range branch.Broken {
		if tree.fromBase(b.File) && !tree.same(b.File) {
			continue // the base has mended it since, or taken it out
		}
		merged.Broken = append(merged.Broken, b)
		cluster := b.Cluster
		if b.Kind == schema.KindCluster {
			cluster = b.Name
		}
		m.broken[brokenObject{b.Kind, key{cluster, b.Name}}] = true
		m.brokenFiles[b.File] = true
	}
	for _, problem := range problems {
		if tree.fromBase(problem.File) && !tree.same(problem.File) {
			continue // the base has mended it since
		}
		p.Problems = append(p.Problems, problem)
		m.brokenFiles[problem.File] = true
	}
	merged.Clusters = mergeObjects(m, fork.Clusters, base.Clusters, branch.Clusters, func(c *schema.TalosCluster) *part {
		return &part{schema.KindCluster, key{c.Metadata.Name, c.Metadata.Name}, &c.Source}
	})
	merged.Machines = mergeObjects(m, fork.Machines, base.Machines, branch.Machines, func(o *schema.TalosMachine) *part {
		return &part{schema.KindMachine, key{o.Spec.ClusterRef.Name, o.Metadata.Name}, &o.Source}
	})
	merged.Backups = mergeObjects(m, fork.Backups, base.Backups, branch.Backups, func(b *schema.TalosEtcdBackup) *part {
		return &part{schema.KindBackup, key{b.Spec.ClusterRef.Name, b.Metadata.Name}, &b.Source}
	})
	merged.Operations = mergeObjects(m, fork.Operations, base.Operations, branch.Operations, func(o *schema.TalosOperation) *part {
		return &part{schema.KindOperation, key{o.Spec.ClusterRef.Name, o.Metadata.Name}, &o.Source}
	})
	merged.Policies = mergeObjects(m, fork.Policies, base.Policies, branch.Policies, func(o *schema.Policy) *part {
		return &part{schema.KindPolicy, key{name: o.Metadata.Name}, &o.Source}
	})
	p.Findings = m.findings
	return p
}

// part is what merging must know of an object.
type part struct {
	kind string
	key
	source *schema.Source
}

type merge struct {
	fork, base, branch *schema.Fleet
	broken             map[brokenObject]bool
	brokenFiles        map[string]bool
	findings           []Finding
}

// nth tells objects of one name apart: unique-name reports them, and each is merged with its like.
type nth struct {
	key
	n int
}

// numbered gives the objects of one kind, and which is which.
func numbered[T any](objects []*T, of func(*T) *part) (ids []nth, found map[nth]*T) {
	found = map[nth]*T{}
	times := map[key]int{}
	for _, o := range objects {
		k := of(o).key
		id := nth{k, times[k]}
		times[k]++
		ids, found[id] = append(ids, id), o
	}
	return ids, found
}

// mergeObjects merges the objects of one kind: in the order of the branch, then what only the base has.
func mergeObjects[T any](m *merge, fork, base, branch []*T, of func(*T) *part) []*T {
	equal := func(a, b *T) bool {
		if a == nil || b == nil {
			return a == b
		}
		x, y := *a, *b
		*of(&x).source, *of(&y).source = schema.Source{}, schema.Source{}
		return reflect.DeepEqual(x, y)
	}
	_, inFork := numbered(fork, of)
	onBase, inBase := numbered(base, of)
	onBranch, inBranch := numbered(branch, of)
	var merged []*T
	for _, id := range onBranch {
		was, theirs, mine := inFork[id], inBase[id], inBranch[id]
		switch {
		case equal(mine, theirs):
			merged = append(merged, mine) // where it stands on the branch is where it can be mended
		case equal(mine, was) && theirs != nil:
			merged = append(merged, theirs)
		case equal(mine, was): // removed on the base
		case equal(theirs, was):
			merged = append(merged, mine)
		default:
			m.conflict(of(mine), "changed here and on the base")
			merged = append(merged, mine)
		}
	}
	for _, id := range onBase {
		was, theirs := inFork[id], inBase[id]
		switch {
		case inBranch[id] != nil:
		case was == nil: // new on the base
			merged = append(merged, theirs)
		case m.unreadable(of(was)):
			merged = append(merged, theirs)
		case !equal(theirs, was):
			m.conflict(of(theirs), "removed here and changed on the base")
			merged = append(merged, theirs)
		}
	}
	return merged
}

// unreadable says whether an object that stood at the fork may still be on the branch, where it can't be read.
func (m *merge) unreadable(p *part) bool {
	return m.broken[brokenObject{p.kind, p.key}] || m.brokenFiles[p.source.File]
}

func (m *merge) conflict(p *part, how string) {
	cluster := p.cluster
	if cluster == "" {
		cluster = m.branch.ClusterFor(p.source.File, "")
	}
	m.findings = append(m.findings, Finding{
		Rule: RuleBothSides, Severity: Error, Position: p.source.Position, Kind: p.kind, Name: p.name, Cluster: cluster,
		Message: fmt.Sprintf("%s %s was %s since the two parted; merge the base into the branch, and settle there which is meant",
			p.kind, p.name, how),
	})
}
