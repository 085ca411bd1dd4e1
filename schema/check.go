package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// check looks at what no single field can say. A field that had a problem of its own is empty here, and is passed over.
func (d *decoder) check(object any) {
	switch o := object.(type) {
	case *TalosCluster:
		d.checkMeta(o.Metadata)
		d.checkClusterName(o.Metadata.Name)
		d.checkCluster(o.Spec)
	case *TalosMachine:
		d.checkMeta(o.Metadata)
		d.checkNoID(o.Spec.ClusterRef)
		d.checkMachine(o.Spec)
	case *TalosEtcdBackup:
		d.checkMeta(o.Metadata)
		d.checkNoID(o.Spec.ClusterRef)
		d.checkRetention(o.Spec)
	case *TalosOperation:
		d.checkMeta(o.Metadata)
		d.checkOperation(o.Spec)
	case *Policy:
		d.checkMeta(o.Metadata)
		d.checkRules(o.Spec)
	case *PolicyTest:
		d.checkMeta(o.Metadata)
		d.checkCases(o.Spec)
	}
}

// has says whether a field was given.
func (d *decoder) has(field string) bool {
	_, ok := d.fields[field]
	return ok
}

// checkMeta refuses annotations in Ichor's own domain that Ichor doesn't know, and a pause without a reason.
func (d *decoder) checkMeta(meta ObjectMeta) {
	known := []string{AnnotationPaused, AnnotationAllowDelete}
	for _, name := range slices.Sorted(maps.Keys(meta.Annotations)) {
		at := join("metadata.annotations", name)
		switch {
		case name == AnnotationPaused && strings.TrimSpace(meta.Annotations[name]) == "":
			d.problem(d.at(at), "%s gives no reason; write why, since everyone who wonders will read it", at)
		case strings.HasPrefix(name, AnnotationDomain) && !slices.Contains(known, name):
			hint := didYouMean(name, known)
			if hint == "" {
				hint = "; they are " + strings.Join(known, " and ")
			}
			d.problem(d.at(at), "there is no annotation %s%s", shown(name), hint)
		}
	}
}

// checkNoID keeps the cluster's ID to operations: elsewhere it would be accepted and ignored.
func (d *decoder) checkNoID(ref ClusterRef) {
	if ref.ID != "" {
		d.problem(d.at("spec.clusterRef.id"), "spec.clusterRef.id is for operations only; leave it out")
	}
}

// checkClusterName keeps the names of clusters apart from what else stands beside their folders in the state (docs/formats.md).
func (d *decoder) checkClusterName(name string) {
	if name == "leases" {
		d.problem(d.at("metadata.name"), "a cluster can't be named leases: its folder in the state would be that of the agents' leases; name it otherwise")
	}
}

func (d *decoder) checkCluster(spec ClusterSpec) {
	d.checkPatches("spec.patches.all", spec.Patches.All)
	d.checkPatches("spec.patches.controlPlane", spec.Patches.ControlPlane)
	d.checkPatches("spec.patches.worker", spec.Patches.Worker)
}

// checkPatches holds that each patch is either a file or inline.
func (d *decoder) checkPatches(at string, patches []Patch) {
	for i := range patches {
		here := fmt.Sprintf("%s[%d]", at, i)
		file, inline := d.has(here+".file"), d.has(here+".inline")
		switch {
		case file && inline:
			d.problem(d.at(here), "%s has both file and inline; give one of them", here)
		case !file && !inline && d.has(here):
			d.problem(d.at(here), "%s has neither file nor inline; give one of them", here)
		}
	}
}

func (d *decoder) checkMachine(spec MachineSpec) {
	d.checkPatches("spec.patches", spec.Patches)
	if d.has("spec.install.disk") && d.has("spec.install.diskSelector") {
		d.problem(d.at("spec.install.diskSelector"), "spec.install has both disk and diskSelector; give one of them")
	}
	if d.has("spec.install.diskSelector") && spec.Install != nil && len(spec.Install.DiskSelector) == 0 {
		d.problem(d.at("spec.install.diskSelector"), "spec.install.diskSelector is empty, and would match any disk; say which one, or leave it out")
	}
	seen := map[string]bool{}
	for i, taint := range spec.Taints {
		if seen[taint] && taint != "" {
			at := fmt.Sprintf("spec.taints[%d]", i)
			d.problem(d.at(at), "%s repeats %s; leave it out", at, shown(taint))
		}
		seen[taint] = true
	}
}

// checkRetention refuses to keep nothing.
func (d *decoder) checkRetention(spec BackupSpec) {
	if last, daily, weekly := spec.Kept(); last == 0 && daily == 0 && weekly == 0 {
		d.problem(d.at("spec.retention.keepLast"), "spec.retention keeps nothing; keep at least one, or suspend the backup")
	}
}

func (d *decoder) checkRules(spec PolicySpec) {
	if d.has("spec.rules") && len(spec.Rules) == 0 {
		d.problem(d.at("spec.rules"), "spec.rules is empty; give a rule, or delete the policy")
	}
	first := map[string]int{}
	for i, rule := range spec.Rules {
		at := fmt.Sprintf("spec.rules[%d].name", i)
		if before, twice := first[rule.Name]; twice && rule.Name != "" {
			d.problem(d.at(at), "%s is %s, as spec.rules[%d].name is; give each rule its own name", at, shown(rule.Name), before)
			continue
		}
		first[rule.Name] = i
	}
}

// checkCases refuses a test that shows nothing, and two cases of one name.
func (d *decoder) checkCases(spec PolicyTestSpec) {
	if d.has("spec.cases") && len(spec.Cases) == 0 {
		d.problem(d.at("spec.cases"), "spec.cases is empty; give a case, or delete the test")
	}
	first := map[string]int{}
	for i, c := range spec.Cases {
		at := fmt.Sprintf("spec.cases[%d].name", i)
		if before, twice := first[c.Name]; twice && c.Name != "" {
			d.problem(d.at(at), "%s is that of spec.cases[%d] too; say what each shows", at, before)
			continue
		}
		first[c.Name] = i
	}
}
