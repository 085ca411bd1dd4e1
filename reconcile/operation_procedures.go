package reconcile

import "ichor.maesh.dev/schema"

// procedureFor gives what carries an operation out; false where nothing does, or where the engine does it itself (resume and cancel).
func procedureFor(spec schema.OperationSpec) (procedure, bool) {
	switch spec.Kind {
	case schema.OperationEtcdBackup:
		return procedure{refuse: refuseBackup, next: nextBackup}, true
	case schema.OperationEtcdRestore:
		return procedure{refuse: refuseRestore, next: nextRestore, lock: true}, true
	}
	return procedureOf(spec)
}

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
