package reconcile

import "ichor.maesh.dev/schema"

// isControl says whether an operation is about another one.
func isControl(kind schema.OperationKind) bool {
	return kind == schema.OperationResume || kind == schema.OperationCancel
}

// carriedOut says whether this version carries out what an operation asks for.
func carriedOut(spec schema.OperationSpec) bool {
	_, is := procedureFor(spec)
	return is || isControl(spec.Kind)
}

// asked is what an operation asks for, in its own words: "node reboot".
func asked(spec schema.OperationSpec) string {
	if spec.Node != nil {
		return string(spec.Kind) + " " + spec.Node.Action
	}
	return string(spec.Kind)
}
