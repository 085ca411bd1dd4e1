package reconcile

import (
	"fmt"

	"ichor.maesh.dev/recovery"
)

// restorePhaseWords says what is done in a phase of a restore, until there is more to say of it.
func restorePhaseWords(phase string) string {
	switch recovery.Phase(phase) {
	case recovery.PhaseLeaving:
		return "the control planes leave etcd one at a time, all but the one that is wiped when they have left"
	case recovery.PhaseConfiguring:
		return "the old etcd's data is wiped, and the machines that it was on are waited for"
	case recovery.PhaseRecovering:
		return "one control plane gets the snapshot and recovers from it"
	case recovery.PhaseJoining:
		return "the other control planes join what was recovered, one at a time"
	case recovery.PhaseReconciling:
		return "what lived through it is brought to read everything anew"
	case recovery.PhaseCancelling:
		return "it is cancelled: the control planes that left etcd join it again"
	}
	return fmt.Sprintf("it goes on (%s)", nameOr(phase, "it begins"))
}
