package recovery

import (
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// Undo is what a cancel would do to a restore.
type Undo string

// What a cancel can do.
const (
	// UndoNothing: it is too late, or too early; the restore must go on.
	UndoNothing Undo = ""
	// UndoRejoin: nothing is lost yet, and those that left the old etcd join it again.
	UndoRejoin Undo = "rejoin"
	// UndoEnd: etcd has recovered, and what has not joined yet is left to the agent's ordinary work.
	UndoEnd Undo = "end"
)

// Undo says what a cancel would do now. Between the first intent of a reset and the recovered etcd there is no etcd to go back to.
func (m *Marker) Undo() Undo {
	switch m.Phase {
	case PhaseLeaving, PhaseConfiguring:
		if m.Holder != "" && !slices.ContainsFunc(m.Intents, func(i Intent) bool { return i.Action == ActReset }) {
			return UndoRejoin
		}
	case PhaseCancelling:
		return UndoRejoin
	case PhaseJoining, PhaseReconciling, PhaseDone:
		return UndoEnd
	case PhaseRecovering:
	}
	return UndoNothing
}

// cancel turns a restore round, or says why that can't be done any more.
func (d *decision) cancel() nextStep {
	switch undo := d.m.Undo(); {
	case d.m.Phase == PhaseCancelling:
		return nextStep{}
	case undo == UndoRejoin:
		return nextStep{Phase: PhaseCancelling}
	case undo == UndoEnd:
		return nextStep{Phase: PhaseDone, Note: "it was cancelled after etcd had recovered: what has not joined yet is left to the agent"}
	}
	return stop("it can't be cancelled any more: the wipe of %s was begun, and etcd has not recovered yet, so that there is none to go back to; it must go on", d.first())
}

// first names the machines whose wipe ends the time in which a restore can be cancelled.
func (d *decision) first() string {
	if d.m.Holder != "" {
		return d.m.Holder
	}
	return strings.Join(d.m.Wipe, ", ")
}

// cancelling has those that left the old etcd join it again, one at a time. It is over when the old etcd is whole.
func (d *decision) cancelling() nextStep {
	holder := d.Seen[d.m.Holder]
	if holder.Mode != talos.ModeConfigured || holder.Etcd.Members == nil {
		return wait("the etcd on %s, which the others join again, doesn't answer: %s", d.m.Holder,
			nameOr(holder.Problem, nameOr(holder.Etcd.MembersProblem, "no look at it succeeded")))
	}
	if holder.Etcd.MemberID == 0 { // by its member it is told who is in another etcd, and would be wiped
		return wait("the etcd on %s, which the others join again, doesn't say which member it is", d.m.Holder)
	}
	if step := d.unjam(d.m.Holder, holder.Etcd.Members); !step.none() {
		return step
	}
	for _, name := range d.order() {
		if name == d.m.Holder {
			continue
		}
		if step := d.rejoin(name, holder.Etcd.Members); !step.none() {
			return step
		}
	}
	if holder.Etcd.ServiceHealthy != talos.Yes {
		return wait("the etcd on %s is not healthy yet", d.m.Holder)
	}
	return nextStep{Phase: PhaseDone}
}

// rejoin is what must be done until a machine is a member of the old etcd again, or is certain to have stayed one.
func (d *decision) rejoin(name string, members []talos.EtcdMember) nextStep {
	if step := d.configured(name); !step.none() {
		return step
	}
	seen, last := d.Seen[name], d.m.last(ActLeave, name)
	undecided := last != nil && last.BootID == seen.BootID && last.Outcome != statefile.OutcomeOK && !neverSent(last)
	if undecided && seen.Etcd.Data != talos.No && d.certainly(last) < d.Timing.Again {
		return wait("%s was told to leave etcd, and may still do it; that is waited for, %s at most", name, d.Timing.Again)
	}
	return d.join(name, hexID(d.Seen[d.m.Holder].Etcd.MemberID), members)
}

// cancelled is the sentence of a restore that was turned round.
func (m *Marker) cancelled() string {
	return fmt.Sprintf("it was cancelled before anything was lost: every control plane is a member of the old etcd, of which %s was the last", m.Holder)
}
