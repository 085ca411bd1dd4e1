package reconcile

import (
	"fmt"
	"strings"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// mostNamed is how many operations one event names.
const mostNamed = 20

// operationEvents tells what became of operations between two states: each acceptance, refusal, step, pause and end.
func operationEvents(before, next *statefile.State) []statefile.Event {
	had := map[string]*statefile.OperationState{}
	for _, op := range before.Operations {
		had[op.Digest+" "+op.File] = op
	}
	var events []statefile.Event
	var skipped []string
	for _, op := range next.Operations {
		old := had[op.Digest+" "+op.File]
		if old == nil {
			old = &statefile.OperationState{}
		}
		if op.Phase == statefile.OperationSkipped && old.Phase != op.Phase {
			skipped = append(skipped, op.Name)
			continue
		}
		if old.AcceptedAt.IsZero() && !op.AcceptedAt.IsZero() {
			events = append(events, operationEvent(op, "OperationAccepted", op.Source+" "+op.File))
		}
		if old.Phase != op.Phase || old.Pause != op.Pause || old.Refusal != op.Refusal {
			if action := phaseEvent(old, op); action != "" {
				events = append(events, operationEvent(op, action, op.Message))
			}
		}
		if old.Step != op.Step && op.Step != "" {
			events = append(events, operationEvent(op, "OperationStep", op.Message))
		}
	}
	if len(skipped) > 0 {
		named := skipped[:min(len(skipped), mostNamed)]
		message := fmt.Sprintf("%d operations that were there when the state was made are skipped: %s", len(skipped), strings.Join(named, ", "))
		if len(named) < len(skipped) {
			message += fmt.Sprintf(" and %d more", len(skipped)-len(named))
		}
		events = append(events, statefile.Event{Action: "OperationsSkipped", Message: message})
	}
	if before.RefusedMore == 0 && next.RefusedMore > 0 {
		events = append(events, statefile.Event{Action: "OperationsRefused", Message: fmt.Sprintf("%d more operations are refused than the %d that are named; "+
			"they are counted", next.RefusedMore, mostRefused)})
	}
	return events
}

// phaseEvent names the event of an operation that came into a phase; empty where another event says it.
func phaseEvent(old, op *statefile.OperationState) string {
	word := string(op.Phase)
	switch op.Phase {
	case statefile.OperationSkipped:
		return ""
	case statefile.OperationPending:
		if old.Phase != statefile.OperationRunning {
			return ""
		}
		word = "PutBack"
	case statefile.OperationRunning:
		word = "Started"
		if old.Phase == statefile.OperationPaused {
			word = "Resumed"
		}
	case statefile.OperationShutDown:
		word = "Resting"
	}
	return fmt.Sprintf("Operation%s", word)
}

func operationEvent(op *statefile.OperationState, action, message string) statefile.Event {
	details := map[string]string{"name": op.Name, "kind": strings.TrimSpace(op.Kind + " " + op.Action)}
	for key, value := range map[string]string{"signer": op.Signer, "step": op.Step, "refusal": op.Refusal, "target": op.Target} {
		if value != "" {
			details[key] = value
		}
	}
	if op.Pause > 0 {
		details["pause"] = fmt.Sprint(op.Pause)
	}
	machine := ""
	if op.Kind != string(schema.OperationEtcdBackup) && !isControl(schema.OperationKind(op.Kind)) {
		machine = op.Target
	}
	return statefile.Event{Action: action, Machine: machine, Operation: op.Digest, Message: message, Details: details}
}
