package reconcile

import (
	"fmt"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// resolveLeave waits until the member is gone from a linearizable list. It may be asked for again: an ID is never used twice.
func resolveLeave(in *Input, next *statefile.State, op *statefile.OperationState, intent statefile.Intent, etcd etcdView) ended {
	id, _ := memberKey(intent.Member)
	switch {
	case etcd.known && !etcd.has(id):
		op.Left = true
		return ended{result: resolveDone, say: fmt.Sprintf("member %s is no longer in etcd", intent.Member)}
	case etcd.known && noEffect(in, next, intent, in.Timing.WriterQuiet):
		op.Answer = intent.Message
		return ended{result: resolveGiven, say: fmt.Sprintf("member %s is still in etcd: %s", intent.Member, nameOr(intent.Message, "no answer"))}
	}
	if !etcd.known {
		return waiting(fmt.Sprintf("%s is taken out of etcd (member %s); etcd has not given a member list since%s", intent.Machine, intent.Member, lostEtcd(in, intent)))
	}
	return waiting(fmt.Sprintf("%s is taken out of etcd (member %s)", intent.Machine, intent.Member))
}

// resolveWipe waits until the machine is in maintenance mode, or is off.
func resolveWipe(in *Input, next *statefile.State, op *statefile.OperationState, intent statefile.Intent) ended {
	name := intent.Machine
	seen, ok := in.see(name)
	age := in.age(intent)
	switch {
	case ok && seen.Mode == talos.ModeMaintenance:
		return ended{result: resolveDone, say: "it is in maintenance mode, and wiped"}
	case ok && seen.BootID != "" && seen.BootID != intent.BootID:
		return ended{result: resolveGiven, say: "it runs another boot and is still configured", failure: stillConfigured(name)}
	case ok:
		op.SilentSince, op.Heartbeat = time.Time{}, time.Time{}
		if !goingDown(seen.Stage) && noEffect(in, next, intent, in.Timing.Return/2) {
			return ended{result: resolveNone, say: "it still shows the same boot"}
		}
		return waiting(fmt.Sprintf("%s was asked to wipe itself at %s: %s", name, intent.At.Format("15:04:05Z"), stillThere(in, intent)))
	}
	off, say := goneSilent(in, op, name, in.Timing.Wiped)
	if off && intent.Facts["then"] == "powers off" {
		return ended{result: resolveDone, say: say}
	}
	if age >= in.Timing.Wiped+in.Timing.Return && in.watchedFor(in.Timing.Wiped) {
		return ended{result: resolveGiven, say: say, failure: fmt.Sprintf("%s was asked to wipe itself and has not come back: %s; look at its console, and resume this operation "+
			"once it is in maintenance mode or off", name, say)}
	}
	return waiting(fmt.Sprintf("%s wipes itself: %s", name, say))
}

// resolveDeleteNode waits until the Node is gone, or is another one.
func resolveDeleteNode(in *Input, next *statefile.State, op *statefile.OperationState, intent statefile.Intent) ended {
	if in.Kubernetes == nil {
		in.wantKubernetes = true
		return waiting("the Node of " + intent.Machine + " is deleted")
	}
	node, known := nodeOf(in, intent.Machine)
	switch {
	case in.Kubernetes.Problem != "" && in.age(intent) < in.Timing.ComeBack:
		return waiting(fmt.Sprintf("the Node of %s is deleted, and the Kubernetes API can't be asked: %s", intent.Machine, in.Kubernetes.Problem))
	case in.Kubernetes.Problem != "":
		return ended{result: resolveGiven, say: "the Kubernetes API can't be asked"}
	case !known || node.UID != intent.Facts["node"]:
		return ended{result: resolveDone, say: "the Node is gone"}
	case noEffect(in, next, intent, in.Timing.WriterQuiet):
		op.Answer = intent.Message
		return ended{result: resolveGiven, say: "the Node is still there: " + nameOr(intent.Message, "no answer")}
	}
	return waiting("the Node of " + intent.Machine + " is deleted")
}
