package reconcile

import (
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// situation is everything that a procedure decides from: the decision under way, and the operation that it carries out.
type situation struct {
	*decision
	// op is the operation's entry in the next state: what a procedure changes there is stored before its action is begun.
	op   *statefile.OperationState
	spec schema.OperationSpec
}

// move is what a procedure does next: exactly one of act, wait, later, done, pause and rest is set.
type move struct {
	// step names the step that it belongs to, for the state and the status.
	step string
	// act is the next call. Its Operation and Lock are filled in by the engine.
	act *Action
	// wait says what is waited for.
	wait string
	// later says what is waited for by an operation that has done nothing yet: it gives the lock back and its turn comes anew.
	later string
	// done is the sentence of an operation that is complete, or that was turned round by a cancel where cancelled says so.
	done      string
	cancelled bool
	// pause says why it can't go on: nothing is retried until a signed resume.
	pause string
	// rest is the sentence of a machine that is off: the lock is given back, and the operation completes when it is back.
	rest string
	// needKubernetes asks for a look at the Kubernetes API and another decision in the same pass, where Input.Kubernetes is nil.
	needKubernetes bool
}

// procedure is what one kind of operation, or one action on a machine, does step by step.
type procedure struct {
	// refuse says why it can't start now: a sentence that names the thing, the number and the way out; empty when it can. What
	// only waits (Transitioning, a lock) is not a refusal but wait.
	refuse func(situation) (refuse, wait string)
	// next decides the next move. It is called again and again until it says done or pause, by this process or the next one, and
	// rests on the state and the machines alone.
	next func(situation) move
	// lock says whether the cluster lock is held from start to end.
	lock bool
}

// KubernetesView is what one look at a cluster's Kubernetes API showed.
type KubernetesView struct {
	// Problem is why it could not be read; empty when it was.
	Problem string
	// Nodes are the Node objects by the machine's name in Git (matched by what the machine says of itself), Strangers the rest.
	Nodes     map[string]kube.Node
	Strangers []kube.Node
	// Doubts say of machines without a Node why it isn't known that they have none.
	Doubts map[string]string
	// Drain is what the last round of the drain DrainOf (drainKey) left; nil before the first in this process.
	Drain   *kube.Drain
	DrainOf string
}
