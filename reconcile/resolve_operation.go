package reconcile

import (
	"fmt"
	"strings"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// ended is what a look says of the intent of an operation: its end, and for a failure why the operation pauses.
type ended struct {
	result resolution
	say    string
	// failure pauses the operation.
	failure string
}

func waiting(say string) ended { return ended{result: resolveWait, say: say} }

// resolveOperation looks for the end of a call that a signed operation asked for.
func resolveOperation(in *Input, next *statefile.State, intent statefile.Intent, etcd etcdView) (resolution, string) {
	op := operationOf(next, intent.Operation)
	var e ended
	switch {
	case intent.Outcome == statefile.OutcomeRefused:
		e = refusedByMachine(intent)
	case op == nil:
		return resolveWait, "the operation that asked for it is not known"
	default:
		e = resolveCall(in, next, op, intent, etcd)
	}
	if op == nil {
		return e.result, e.say
	}
	switch {
	case e.result == resolveWait:
		op.Message = e.say
	case e.result == resolveNone && intent.Outcome == statefile.OutcomeRefused && op.Sent[intent.Action] > 0:
		op.Sent[intent.Action]-- // nothing was begun
	}
	if e.failure != "" {
		op.FailureReason = e.failure
	}
	return e.result, e.say
}

func resolveCall(in *Input, next *statefile.State, op *statefile.OperationState, intent statefile.Intent, etcd etcdView) ended {
	switch ActionKind(intent.Action) {
	case ActReboot:
		return resolveReboot(in, intent)
	case ActShutdown:
		return resolveShutdown(in, op, intent)
	case ActRestartService:
		return resolveRestartService(in, intent)
	case ActDefragment:
		return resolveDefragment(in, intent)
	case ActForfeit:
		return resolveForfeit(in, intent)
	case ActRemoveMember:
		return resolveLeave(in, next, op, intent, etcd)
	case ActResetMachine:
		return resolveWipe(in, next, op, intent)
	case ActDeleteNode:
		return resolveDeleteNode(in, next, op, intent)
	}
	return waiting("it was begun by another version of Ichor, which must finish it")
}

// refusedByMachine ends a call of which it is certain that nothing was begun: the machine said so, or this program never sent it.
func refusedByMachine(intent statefile.Intent) ended {
	if strings.HasPrefix(intent.Message, notSent) {
		return ended{result: resolveNone, say: intent.Message}
	}
	return ended{result: resolveNone, say: "the machine refused it: " + intent.Message,
		failure: fmt.Sprintf("%s refused the %s: %s", intent.Machine, intent.Action, nameOr(intent.Message, "without a reason"))}
}

// resolveReboot waits for another boot. Talos answers before it acts and drops what comes at a bad moment (LOCKED), without a word: so
// whatever was answered, another boot is the only proof, and without it the machine isn't asked again.
func resolveReboot(in *Input, intent statefile.Intent) ended {
	seen, ok := in.see(intent.Machine)
	left := in.age(intent)
	switch {
	case ok && seen.Mode == talos.ModeConfigured && seen.BootID != "" && seen.BootID != intent.BootID:
		return ended{result: resolveDone, say: "it runs another boot"}
	case left >= in.Timing.Return:
		return ended{result: resolveGiven, say: fmt.Sprintf("no other boot of it was seen for %s; it is not asked again", in.Timing.Return),
			failure: fmt.Sprintf("%s did not reboot within %s (%s%s); it is not asked twice by one operation, since the first request may still take effect: "+
				"look at its console; once it is back, resume this operation, else cancel it and sign another", intent.Machine, in.Timing.Return, stillThere(in, intent), answered(intent))}
	}
	return waiting(fmt.Sprintf("%s was asked to reboot at %s: %s", intent.Machine, intent.At.Format("15:04:05Z"), stillThere(in, intent)))
}

// stillThere says how a machine shows itself that was asked to go down.
func stillThere(in *Input, intent statefile.Intent) string {
	seen, ok := in.see(intent.Machine)
	switch {
	case !ok:
		return "it gives no answer"
	case seen.Mode == talos.ModeMaintenance:
		return "it is in maintenance mode"
	case goingDown(seen.Stage):
		return "it is " + seen.Stage
	}
	return fmt.Sprintf("it still shows the same boot, and is %s", nameOr(seen.Stage, "in an unknown stage"))
}

// answered is what a machine said to a call, for a sentence.
func answered(intent statefile.Intent) string {
	switch {
	case intent.Outcome == statefile.OutcomeOK:
		return "; it had said yes, and Talos drops a request that comes while something else is under way"
	case intent.Message != "":
		return "; its answer was: " + intent.Message
	}
	return "; whether the request reached it is not known"
}

// nodeOf is a machine's Node as it was last looked at.
func nodeOf(in *Input, machine string) (kube.Node, bool) {
	if in.Kubernetes == nil {
		return kube.Node{}, false
	}
	node, known := in.Kubernetes.Nodes[machine]
	return node, known
}
