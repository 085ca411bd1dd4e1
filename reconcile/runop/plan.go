package runop

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/validate"
)

// ruleLocalData is the rule that warns of what a restore wipes.
const ruleLocalData = "restore-local-data"

// Plan says what a draft would do, and what speaks against it: by the state, and by the rules of the fleet that it would come
// into. state is nil where it wasn't read.
// known is what was found out for a restore, else nil.
func Plan(engine *validate.Engine, fleet *schema.Fleet, state *statefile.State, draft *Draft, known *reconcile.RestoreKnown, now time.Time) reconcile.OperationPlan {
	proposed := *fleet
	proposed.Operations = append(slices.Clone(fleet.Operations), draft.Operation)
	var objections, warnings []string
	for _, f := range engine.Check(fleet, &proposed) {
		if f.Kind != schema.KindOperation || f.Name != draft.Operation.Metadata.Name {
			continue
		}
		text := fmt.Sprintf("%s (%s)", strings.TrimPrefix(f.Message, draft.Operation.Metadata.Name+" "), f.Rule)
		switch {
		case f.Rule == ruleLocalData: // the plan itself says what is lost, and blocks without a word for it
		case f.Severity == validate.Warning:
			warnings = append(warnings, text)
		default:
			objections = append(objections, text)
		}
	}
	if why := beingRemoved(fleet, state, draft, now); why != "" {
		objections = append(objections, why)
	}
	var plan reconcile.OperationPlan
	if known != nil {
		plan = reconcile.DescribeRestore(draft.Target.Cluster, state, draft.Operation, *known, objections...)
	} else {
		plan = reconcile.DescribeOperation(draft.Target.Cluster, state, draft.Operation, objections...)
	}
	plan.Warnings = append(plan.Warnings, warnings...)
	plan.Namespace = operation.Namespaces(draft.Operation.Spec, draft.Override)[0]
	return plan
}

// beingRemoved names the removal in Git that takes the draft's machine away, where the state doesn't know of it yet.
func beingRemoved(fleet *schema.Fleet, state *statefile.State, draft *Draft, now time.Time) string {
	ref := draft.Operation.Spec.Machine()
	if ref == nil {
		return ""
	}
	for _, other := range fleet.Operations {
		node := other.Spec.Node
		if node == nil || node.Action != schema.ActionRemove || node.MachineRef != *ref || !now.Before(other.Spec.ExpiresAt) {
			continue
		}
		known := state != nil && slices.ContainsFunc(state.Operations, func(o *statefile.OperationState) bool { return o.Digest == operation.Digest(other.Raw) })
		if !known {
			return fmt.Sprintf("%s is being removed by %s (%s)", ref.Name, other.Metadata.Name, other.Source.File)
		}
	}
	return ""
}
