package validate

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"ichor.maesh.dev/schema"
)

// CheckRemovals asks approval-cap once more about approvals that pass only because a `remove` takes another machine away. One
// without a signature takes nothing away, whoever may sign: then the approval is refused. One whose signature nobody checked may take
// nothing away: then that is a warning, unless signed says that signatures were checked.
func (e *Engine) CheckRemovals(old, proposed *schema.Fleet, problems []schema.Problem, signed bool) []Finding {
	unsigned, unchecked := removals(proposed)
	if old == nil || len(unsigned)+len(unchecked) == 0 {
		return nil
	}
	said := map[key]bool{}
	beyond := func(without []*schema.TalosOperation) []Finding {
		w := newWorld(e.compiler.set, withoutOperations(old, without), withoutOperations(proposed, without), problems)
		var found []Finding
		for _, f := range checkAll(w, kept(e.rules, func(r *rule) bool { return r.Name == RuleApprovalCap })) {
			if at := (key{f.Cluster, f.Name}); !said[at] {
				said[at] = true
				found = append(found, f)
			}
		}
		return found
	}
	beyond(nil) // what Check said
	var found []Finding
	if len(unsigned) > 0 {
		for _, f := range beyond(unsigned) {
			f.Message += fmt.Sprintf("; %s nothing away as it stands, because its signature isn't there: sign it, as with 'ichor op sign'", taking(unsigned, f.Cluster))
			found = append(found, f)
		}
	}
	if signed || len(unchecked) == 0 {
		return found
	}
	for _, f := range beyond(slices.Concat(unsigned, unchecked)) {
		f.Severity = Warning
		f.Message = fmt.Sprintf("%s may be approved only if %s a machine away, and nobody checked whether its signer may: give --allowed-signers FILE", f.Name, taking(unchecked, f.Cluster))
		found = append(found, f)
	}
	return found
}

// removals gives the `remove` operations of a fleet: those without a signature beside them, and those with one.
func removals(fleet *schema.Fleet) (unsigned, signed []*schema.TalosOperation) {
	for _, op := range fleet.Operations {
		if op.Spec.Node == nil || op.Spec.Node.Action != "remove" {
			continue
		}
		if _, _, err := signatureOf(fleet, op); errors.Is(err, fs.ErrNotExist) {
			unsigned = append(unsigned, op)
		} else {
			signed = append(signed, op)
		}
	}
	return unsigned, signed
}

// withoutOperations gives a fleet without some operations, found by cluster and name.
func withoutOperations(fleet *schema.Fleet, operations []*schema.TalosOperation) *schema.Fleet {
	less := *fleet
	less.Operations = slices.DeleteFunc(slices.Clone(fleet.Operations), func(op *schema.TalosOperation) bool {
		return find(operations, op.Spec.ClusterRef.Name, op.Metadata.Name) != nil
	})
	return &less
}

// taking gives "remove-cp-1 takes" or "remove-cp-1 and remove-cp-2 take", of the operations on a cluster.
func taking(operations []*schema.TalosOperation, cluster string) string {
	var names []string
	for _, op := range operations {
		if op.Spec.ClusterRef.Name == cluster {
			names = append(names, op.Metadata.Name)
		}
	}
	if len(names) == 1 {
		return names[0] + " takes"
	}
	return strings.Join(names, " and ") + " take"
}
