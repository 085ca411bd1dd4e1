// Package reconcile is the agent: it looks at the machines of a cluster, decides what comes next, and does it.
//
// The three are kept apart. Decide is a pure function of what Git wants, what the state remembers, what the machines showed
// and the time; it does no I/O and holds no clock, so that a plan, the status and the agent can't disagree. Every call that
// changes a machine goes through one door, the Gate, which writes what it is about to do before it does it, on a connection
// to the very boot it was decided for. The Agent around them fetches revisions, holds leases, and runs each cluster by itself
// so that one cluster's trouble never delays another's.
//
// Where to look: hold.go (more control planes approved than the cap), origin.go (new or lost), adoption.go (machines that
// were there before), firstconfig.go, bootstrap.go, joins.go, drift.go and drift_reboot.go (changes, and those that need a
// reboot), resolve.go (what became of an intent), refuse.go (what the gate never lets through), procedures.go (what is done
// for a signed operation: one procedure_*.go an action, and resolve_operation.go for the ends of its calls), evacuation.go (how
// a machine is emptied), backups.go (what the keeper of the backups is told; package keeper does the rest), forecast.go (where
// the decisions lead when every call has its effect).
package reconcile
