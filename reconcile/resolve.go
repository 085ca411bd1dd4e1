package reconcile

import (
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// resolution is what a look at the machines says of a standing intent.
type resolution int

const (
	resolveWait  resolution = iota // nothing can be said yet: nothing else is done to the cluster
	resolveDone                    // the effect was seen
	resolveNone                    // the machine proves that the call had no effect: a new intent may follow
	resolveGiven                   // no answer within its time: it counts as sent, and is never sent again by itself
)

// begun writes into the state what goes with an intent, in the same write: that a first config was sent for an approval,
// that this machine is the one to bootstrap, which step of a mending or a rollout this is, and the cluster lock.
func begun(s *statefile.State, a Action, intent statefile.Intent) {
	s.Intent = &intent
	if a.Lock != "" && s.Lock == nil {
		s.Lock = &statefile.Lock{Holder: a.Lock, Reason: a.Why, Since: intent.At}
	}
	if a.Operation != "" {
		operationBegun(s, a)
		if a.Kind != ActBootstrap {
			return
		}
	}
	switch a.Kind {
	case ActFirstConfig:
		m := s.Machines[a.Machine]
		m.ConfigSentFor, m.ConfigSentTo, m.ConfigDigest, m.PersistentDigest = a.Approval, a.Boot, a.Digest, a.Digest
		dropCondition(m, conditionRefused)
	case ActBootstrap:
		if s.Bootstrap == nil {
			s.Bootstrap = &statefile.BootstrapRecord{Machine: a.Machine, UUID: a.UUID, At: intent.At}
		}
	case ActTry, ActStage:
		phase := phaseTry
		if a.Kind == ActStage {
			phase = phaseStage
		}
		s.Rollout = newRollout(s, a, phase, intent)
	case ActConfirm:
		if s.Rollout == nil {
			s.Rollout = newRollout(s, a, phaseConfirm, intent)
		}
		s.Rollout.Phase, s.Rollout.Since = phaseConfirm, intent.At
	case ActRemoveMember, ActReset, ActReboot:
		if a.Kind == ActReboot && a.Lock == lockRollout {
			s.Rollout.Phase, s.Rollout.Since, s.Rollout.BootID = phaseReboot, intent.At, a.Boot
			return
		}
		mending(s, a, intent)
	}
}

// newRollout is a rollout that comes to a machine. What came to nothing there before is remembered.
func newRollout(s *statefile.State, a Action, phase string, intent statefile.Intent) *statefile.RolloutState {
	r := &statefile.RolloutState{Machine: a.Machine, Digest: a.Digest, Phase: phase, Since: intent.At, BootID: a.Boot,
		From: nameOr(a.Facts["persistent"], a.Facts["active"]), WasReady: a.Facts["ready"] == "yes", Epoch: s.Writer.Epoch}
	if had := s.Rollout; had != nil && had.Machine == a.Machine && had.Digest == a.Digest {
		r.Failures, r.WasReady = had.Failures, had.WasReady
	}
	return r
}

func mending(s *statefile.State, a Action, intent statefile.Intent) {
	key := hexID(a.Member)
	if a.Kind == ActReboot {
		key = machineKey(a.Machine)
	}
	if s.Joins == nil {
		s.Joins = map[string]*statefile.JoinState{}
	}
	join := s.Joins[key]
	if join == nil {
		join = &statefile.JoinState{Machine: a.Machine, FirstSeen: intent.At}
		s.Joins[key] = join
	}
	join.Acts++
	join.ActAt = intent.At
	switch a.Kind {
	case ActRemoveMember:
		join.Step = stepRemove
	case ActReset:
		join.Step, join.BootID = stepReset, a.Boot
	case ActReboot:
		join.Step, join.BootID = stepReboot, a.Boot
	}
}

// resolve looks for the end of a standing intent and, once it is seen, puts into next what follows from it. The sentence says
// what was seen, or what is waited for.
func resolve(in *Input, next *statefile.State, etcd etcdView) (resolution, string) {
	intent := *next.Intent
	what := fmt.Sprintf("%s on %s (begun %s, %s)", intent.Action, intent.Machine, intent.At.Format(time.RFC3339),
		nameOr(string(intent.Outcome), "without an outcome"))
	if intent.Writer.Epoch != next.Writer.Epoch && in.writerAge(next) < in.Timing.WriterQuiet {
		return resolveWait, fmt.Sprintf("another writer began %s; nothing else is done for %s", what, in.Timing.WriterQuiet)
	}
	var result resolution
	var say string
	switch kind := ActionKind(intent.Action); {
	case intent.Operation != "" && kind != ActBootstrap:
		result, say = resolveOperation(in, next, intent, etcd)
	default:
		var known bool
		if result, say, known = resolveOwn(in, next, intent, etcd); !known {
			return resolveWait, fmt.Sprintf("%s was begun by another version of Ichor, which must finish it", what)
		}
	}
	if result != resolveWait {
		next.Intent = nil
		if r := next.Rollout; r == nil || r.Stopped != "" || r.Phase == phaseAgain {
			releaseLock(next, lockRollout)
		}
		releaseLock(next, lockJoins)
		if result != resolveNone || intent.Action != string(ActBootstrap) {
			releaseLock(next, lockBootstrap)
		}
	}
	return result, fmt.Sprintf("%s: %s", what, say)
}

// resolveOwn looks for the end of one of the agent's own acts; known is false for what this version doesn't do.
func resolveOwn(in *Input, next *statefile.State, intent statefile.Intent, etcd etcdView) (result resolution, say string, known bool) {
	switch ActionKind(intent.Action) {
	case ActFirstConfig:
		result, say = resolveFirstConfig(in, next, intent)
	case ActBootstrap:
		result, say = resolveBootstrap(in, next, intent, etcd)
	case ActTry, ActConfirm, ActStage:
		result, say = resolveConfig(in, next, intent)
	case ActRemoveMember:
		result, say = resolveRemoval(in, next, intent, etcd)
	case ActReset, ActReboot:
		if r := next.Rollout; r != nil && r.Phase == phaseReboot && r.Machine == intent.Machine && intent.Digest != "" {
			result, say = resolveRolledReboot(in, next, intent)
			break
		}
		result, say = resolveMending(in, next, intent, etcd)
	default:
		return resolveWait, "", false
	}
	return result, say, true
}

// noEffect says whether a call without a certain outcome may be taken as not sent, the machine showing no trace of it: the
// node refused it, or its time to arrive is over. Of another writer's call that time counts from when this process took over.
func noEffect(in *Input, next *statefile.State, intent statefile.Intent, quiet time.Duration) bool {
	return intent.Outcome == statefile.OutcomeRefused || elapsed(in, next, intent, quiet)
}

// elapsed says whether so much time has gone by since a call was begun, for certain: of another writer's since this process took over.
func elapsed(in *Input, next *statefile.State, intent statefile.Intent, quiet time.Duration) bool {
	if intent.Writer.Epoch != next.Writer.Epoch {
		return in.writerAge(next) >= quiet
	}
	return in.certainly(callMoment(intent), intent.At) >= quiet
}

// age is how long ago a call was begun, at least. Another writer stamped it by a clock of its own, which may have been hours ahead; but it was
// before this process took over.
func (in *Input) age(intent statefile.Intent) time.Duration {
	age := in.passed(callMoment(intent), intent.At)
	if intent.Writer.Epoch != in.State.Writer.Epoch {
		age = max(age, in.writerAge(in.State))
	}
	return age
}

func resolveFirstConfig(in *Input, next *statefile.State, intent statefile.Intent) (resolution, string) {
	memory := next.Machines[intent.Machine]
	seen, ok := in.see(intent.Machine)
	switch {
	case memory == nil:
		return resolveGiven, "the machine is no longer known"
	case intent.Outcome == statefile.OutcomeOK:
		return resolveDone, "the machine took its config"
	case ok && seen.Mode == talos.ModeConfigured:
		return resolveDone, "the machine is configured"
	case ok && seen.Mode == talos.ModeMaintenance && seen.Fingerprint != intent.BootID:
		return resolveGiven, "the machine is in maintenance mode in another boot, so the config may have been taken and lost"
	case ok && seen.Mode == talos.ModeMaintenance && noEffect(in, next, intent, in.Timing.WriterQuiet):
		memory.ConfigSentFor, memory.ConfigSentTo = "", ""
		if intent.Outcome == statefile.OutcomeRefused && !strings.HasPrefix(intent.Message, notSent) {
			setCondition(memory, statefile.Condition{Type: conditionRefused, Status: true, Reason: conditionRefused, Since: in.now(),
				Message: fmt.Sprintf("%s refused its config: %s; correct it in Git", intent.Machine, intent.Message)})
			return resolveNone, "the machine refused it: " + intent.Message
		}
		memory.ConfigDigest = ""
		return resolveNone, "the machine is in maintenance mode in the same boot, so the config did not arrive"
	case in.age(intent) > in.Timing.ComeBack:
		return resolveGiven, fmt.Sprintf("the machine has not answered for %s; its config counts as sent", in.Timing.ComeBack)
	}
	return resolveWait, "the machine has not said yet whether it took its config"
}

func resolveBootstrap(in *Input, next *statefile.State, intent statefile.Intent, view etcdView) (resolution, string) {
	if view.known {
		// Whichever machine gives the list: the cluster has its etcd, and never gets another.
		next.Bootstrap.Done = in.now()
		return resolveDone, fmt.Sprintf("the etcd of %s answers with %d members", view.source, len(view.members))
	}
	seen, ok := in.see(intent.Machine)
	if !ok || seen.Mode != talos.ModeConfigured {
		return resolveWait, "the machine doesn't answer; no other machine is bootstrapped, since it may come back with an etcd: bring it back, or see docs/operations/bootstrap.md if it is gone for good"
	}
	etcd := seen.Etcd
	switch {
	case etcd.Data == talos.Yes:
		return resolveWait, "it has etcd data; its etcd has not answered yet"
	case etcd.Data == talos.Unknown:
		return resolveWait, "whether it has etcd data is not known"
	case intent.BootID != seen.BootID:
		return resolveNone, "it was booted again without having etcd data, so the bootstrap is gone"
	case etcd.Service == "Starting" || etcd.Service == "Running":
		return resolveWait, "it has no etcd data yet and its etcd service is " + etcd.Service
	case intent.Outcome == statefile.OutcomeRefused && in.age(intent) >= in.Timing.Retry:
		return resolveNone, "the machine refused it: " + intent.Message
	case intent.Outcome != statefile.OutcomeRefused && noEffect(in, next, intent, in.Timing.BootstrapQuiet):
		return resolveNone, fmt.Sprintf("it has had no etcd data for %s in the same boot", in.Timing.BootstrapQuiet)
	}
	return resolveWait, "it has no etcd data yet"
}

func resolveConfig(in *Input, next *statefile.State, intent statefile.Intent) (resolution, string) {
	memory := next.Machines[intent.Machine]
	if memory == nil || next.Rollout == nil {
		return resolveGiven, "the machine is no longer known"
	}
	seen, ok := in.see(intent.Machine)
	view := seen.Config
	answered := ok && seen.Mode == talos.ModeConfigured && view.Active != ""
	kind := ActionKind(intent.Action)
	switch {
	case answered && kind == ActTry && view.Active == intent.Digest:
		next.Rollout.Phase, next.Rollout.Since = phaseTried, in.now()
		return resolveDone, "it runs the tried config"
	case answered && kind == ActConfirm && view.Active == intent.Digest && view.Persistent == intent.Digest:
		memory.ConfigDigest, memory.PersistentDigest = intent.Digest, intent.Digest
		next.Rollout.Phase, next.Rollout.Since = phaseSettle, in.now()
		return resolveDone, "the config stays"
	case answered && kind == ActStage && view.Persistent == intent.Digest:
		memory.ConfigDigest, memory.PersistentDigest = view.Active, intent.Digest
		return resolveDone, "the config waits for the next boot"
	case answered && intent.Outcome == statefile.OutcomeRefused:
		return refusedConfig(in, next, intent)
	case answered && noEffect(in, next, intent, in.Timing.TryTimeout):
		if kind == ActTry && intent.Outcome == statefile.OutcomeOK {
			// It took the config, and took it back before anybody saw it: the rollout judges why.
			return resolveNone, "it no longer runs the tried config"
		}
		again(in, next, "the machine shows no trace of it")
		if r := next.Rollout; kind != ActTry && intent.Writer.Epoch != next.Writer.Epoch && r.Stopped == "" {
			r.Failures-- // its agent died, and not of this call, which changes nothing that runs
		}
		return resolveNone, "the machine shows no trace of it"
	case in.age(intent) > in.Timing.ComeBack:
		next.Rollout.Stopped = fmt.Sprintf("%s has not answered for %s since its config changed (%s): %s", intent.Machine, in.Timing.ComeBack,
			intent.Action, waysOn)
		return resolveGiven, "no answer"
	}
	return resolveWait, "the machine has not shown it yet"
}

// refusedConfig goes on after a config that was refused: by the machine, or by this program, which then sent nothing.
func refusedConfig(in *Input, next *statefile.State, intent statefile.Intent) (resolution, string) {
	r := next.Rollout
	switch {
	case !strings.HasPrefix(intent.Message, notSent):
		again(in, next, "the machine refused it: "+intent.Message)
		return resolveNone, "the machine refused it: " + intent.Message
	case intent.Action == string(ActConfirm):
		r.Phase = phaseTried // what is tried is taken back unless it is confirmed soon
	case r.Failures > 0:
		r.Phase, r.Since = phaseAgain, in.now()
	default:
		next.Rollout = nil
	}
	return resolveNone, intent.Message
}

func resolveRemoval(in *Input, next *statefile.State, intent statefile.Intent, etcd etcdView) (resolution, string) {
	id, _ := memberKey(intent.Member)
	join := next.Joins[intent.Member]
	switch {
	case etcd.known && !etcd.has(id):
		if join != nil {
			join.Step = stepRemoved
		}
		return resolveDone, fmt.Sprintf("member %s is no longer in etcd", intent.Member)
	case etcd.known && noEffect(in, next, intent, in.Timing.WriterQuiet):
		if join != nil {
			join.Step = ""
		}
		return resolveNone, fmt.Sprintf("member %s is still in etcd: %s", intent.Member, nameOr(intent.Message, "no answer"))
	}
	return resolveWait, "etcd has not given a member list since" + lostEtcd(in, intent)
}

// lostEtcd is the way out where a call can only be settled by an etcd that gives no list any more: an operation can't begin over it.
func lostEtcd(in *Input, intent statefile.Intent) string {
	if in.age(intent) < in.Timing.Return {
		return ""
	}
	return "; where it doesn't come back by itself, mend it by hand, or bring it back from a snapshot with 'ichor restore --recover-cluster' (docs/recovery.md), which passes over this call"
}

func resolveMending(in *Input, next *statefile.State, intent statefile.Intent, etcd etcdView) (resolution, string) {
	key := intent.Member
	if ActionKind(intent.Action) == ActReboot {
		key = machineKey(intent.Machine)
	}
	join := next.Joins[key]
	seen, ok := in.see(intent.Machine)
	rebooted := ok && seen.Mode == talos.ModeConfigured && seen.BootID != "" && seen.BootID != intent.BootID
	wiped := seen.Etcd.Data == talos.No || seen.Etcd.MemberID != 0 && hexID(seen.Etcd.MemberID) != intent.Member && etcd.has(seen.Etcd.MemberID)
	switch {
	case rebooted && ActionKind(intent.Action) == ActReboot:
		return resolveDone, "it runs another boot"
	case rebooted && wiped:
		return resolveDone, "it runs another boot and its former data is gone"
	case rebooted && seen.Etcd.Data == talos.Yes && seen.Etcd.MemberID == 0 && !elapsed(in, next, intent, in.Timing.MendCap):
		return resolveWait, "it runs another boot and holds etcd data that may be new"
	case rebooted && seen.Etcd.Data == talos.Yes:
		return resolveNone, "it runs another boot and still holds its former data"
	case ok && intent.Outcome == statefile.OutcomeRefused:
		if join != nil {
			join.BootID = ""
		}
		return resolveNone, "the machine refused it: " + intent.Message
	case ok && intent.Outcome == "" && intent.Writer.Epoch != next.Writer.Epoch && seen.BootID == intent.BootID &&
		!goingDown(seen.Stage) && noEffect(in, next, intent, in.Timing.MendCap):
		return resolveNone, "it shows no trace of it"
	case in.age(intent) > in.Timing.MendCap:
		return resolveGiven, fmt.Sprintf("nothing was seen of it for %s; it is not asked again in that boot", in.Timing.MendCap)
	}
	return resolveWait, "the machine has not shown another boot yet"
}

func goingDown(stage string) bool {
	return stage == "resetting" || stage == "rebooting" || stage == "shutting down"
}

func setCondition(m *statefile.MachineState, c statefile.Condition) {
	if had := findCondition(m, c.Type); had != nil {
		if had.Status == c.Status && had.Reason == c.Reason {
			c.Since = had.Since
		}
		*had = c
		return
	}
	m.Conditions = append(m.Conditions, c)
}

func dropCondition(m *statefile.MachineState, kind string) {
	for i := range m.Conditions {
		if m.Conditions[i].Type == kind {
			m.Conditions = append(m.Conditions[:i:i], m.Conditions[i+1:]...)
			return
		}
	}
}
