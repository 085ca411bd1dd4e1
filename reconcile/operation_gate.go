package reconcile

import (
	"fmt"

	"ichor.maesh.dev/statefile"
)

// operationBegun counts, in the write of an intent, the calls that an operation began.
func operationBegun(s *statefile.State, a Action) {
	op := accepted(s, a.Operation)
	if op == nil {
		return
	}
	if op.Sent == nil {
		op.Sent = map[string]int{}
	}
	op.Sent[string(a.Kind)]++
}

// refuseOperation wants a call of an operation to be that of one which stands in the state as begun, once, and verified by this writer.
func refuseOperation(a attempt) string {
	if a.action.Operation == "" {
		return ""
	}
	op := accepted(a.state, a.action.Operation)
	switch {
	case op == nil:
		return fmt.Sprintf("the operation %.12s that asks for it was never accepted", a.action.Operation)
	case op.Phase != statefile.OperationRunning && op.Phase != statefile.OperationShutDown:
		return fmt.Sprintf("the operation %s that asks for it is %s; resume it first", op.Name, op.Phase)
	case !op.Once:
		return fmt.Sprintf("the operation %s that asks for it is not known to be begun here and nowhere else", op.Name)
	case op.JudgedEpoch != a.state.Writer.Epoch:
		return fmt.Sprintf("the operation %s that asks for it was not verified by this agent", op.Name)
	}
	return ""
}
