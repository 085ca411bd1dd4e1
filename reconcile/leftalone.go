package reconcile

import (
	"fmt"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

// kindsLeftAlone are the kinds of which no document stops anything but itself, whatever is wrong with it: operations, which are judged one
// by one and are no part of what the fleet wants, and what is read and not acted on yet. Backups are taken by agents that were told where
// (Config.Backups).
func kindsLeftAlone(backups bool) []string {
	if backups {
		return []string{schema.KindOperation}
	}
	return []string{schema.KindBackup, schema.KindOperation}
}

// leftAlone says of each document that the agent leaves alone that it does, because what is asked for must not be passed over
// in silence. Before the merge these documents are judged like all others.
func leftAlone(fleet *schema.Fleet, backups bool) []validate.Finding {
	var findings []validate.Finding
	add := func(kind, name string, ref schema.ClusterRef, at schema.Position, what string) {
		cluster := fleet.ClusterFor(at.File, ref.Name)
		if cluster == "" {
			cluster = ref.Name
		}
		findings = append(findings, validate.Finding{Rule: validate.RuleNotYet, Severity: validate.Error, Position: at,
			Kind: kind, Name: name, Cluster: cluster,
			Message: fmt.Sprintf("nothing acts on the %s %s yet: this version %s; leave it out until one does", kind, name, what)})
	}
	for _, b := range fleet.Backups {
		if !backups {
			add(schema.KindBackup, b.Metadata.Name, b.Spec.ClusterRef, b.Source.Position, "takes no backups")
		}
	}
	for _, o := range fleet.Operations {
		if !carriedOut(o.Spec) {
			add(schema.KindOperation, o.Metadata.Name, o.Spec.ClusterRef, o.Source.Position, "carries out no operations of kind "+asked(o.Spec))
		}
	}
	return findings
}
