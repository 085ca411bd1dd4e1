package reconcile

import (
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// The phases of a rolled reboot, which a change that waits for one goes through machine by machine.
const (
	phaseDrain  = "drain"        // the machine is emptied of its pods
	phaseReboot = "reboot"       // it was asked to reboot, once, and is waited for
	phaseLift   = "lift"         // it takes pods again, and then the next machine comes
	phaseLater  = "reboot-later" // it could not be emptied; it is tried again after a pause
)

// rebooting says whether a rollout is at the reboot of its machine.
func rebooting(r *statefile.RolloutState) bool {
	switch r.Phase {
	case phaseDrain, phaseReboot, phaseLift, phaseLater:
		return true
	}
	return false
}

// cordonForRollout stands in the annotation of a cordon that is made for a rolled reboot.
const cordonForRollout = "rollout"

// roller is what the rollout of a change decides from, and what it says of machines.
type roller struct {
	in     *Input
	next   *statefile.State
	etcd   etcdView
	wanted []string
	says   map[string]verdict
	// mayReboot says what speaks against the reboot of a machine, and what passes; returned what a machine still lacks that was rebooted.
	mayReboot func(*schema.TalosMachine) (refuse, wait string)
	returned  func(name, left string) string
}

// beginReboot takes the next machine on which a change waits for a reboot, where the cluster's policy lets it be rebooted now.
func (f *roller) beginReboot(staged []*schema.TalosMachine) *Action {
	for _, m := range staged {
		name := m.Metadata.Name
		seen, _ := f.in.see(name)
		stored := fmt.Sprintf("a change is stored on %s and takes effect at its next boot (%s can't change while it runs)", name, nameOr(seen.Config.Why, "it"))
		if why := f.mayNotRebootYet(m); why != "" {
			f.says[name] = verdict{"RebootRequired", stored + "; " + why}
			continue
		}
		f.next.Rollout = &statefile.RolloutState{Machine: name, Digest: seen.Config.Wanted, Phase: phaseDrain, Since: f.in.now(), BootID: seen.BootID,
			From: seen.Config.Active, WasReady: true, Epoch: f.next.Writer.Epoch}
		f.next.Lock = &statefile.Lock{Holder: lockRollout, Reason: "the reboot of " + name + " for a changed config", Since: f.in.now()}
		action, _ := f.reboot(m, configStaged, true)
		return action
	}
	return nil
}

// mayNotRebootYet says why a machine whose stored change waits for a reboot is not rebooted now.
func (f *roller) mayNotRebootYet(m *schema.TalosMachine) string {
	name := m.Metadata.Name
	policy := f.in.Cluster.Object.Spec.Rollout
	switch policy.RebootPolicy() {
	case schema.RebootsManual:
		return fmt.Sprintf("reboot it with ichor run-op node reboot %s", name)
	case schema.RebootsWindow:
		if open, next := f.in.windowOpen(f.next); !open {
			return fmt.Sprintf("it is rebooted once a window opens (%s)", next)
		}
	}
	if why := mayNotRoll(f.in, f.next, f.etcd, f.wanted, m); why != "" {
		return "it waits: " + why
	}
	if why, wait := f.mayReboot(m); why != "" || wait != "" {
		return "it waits: " + nameOr(why, wait)
	}
	if !isControlPlane(m) {
		if why := tooManyWorkersDown(f.in, name, true); why != "" {
			return "it waits: " + why
		}
	}
	return ""
}

// windowOpen says whether a window is open by this machine's clock and by that of who wrote the state last: where one of them is wrong, a machine
// is not rebooted in the middle of the day.
func (in *Input) windowOpen(s *statefile.State) (open bool, next string) {
	windows := in.Cluster.Object.Spec.Rollout.Windows
	if behind := s.Latest.Sub(in.Now); behind > mostBehind {
		return false, fmt.Sprintf("whether one is open is not known: the state was written at %s by some clock, and this machine's is %s behind that; correct the clock, or if that "+
			"other one was ahead, ichor state accept %s goes on from this one's time", s.Latest.UTC().Format(time.RFC3339), behind.Round(time.Second), in.Cluster.Name())
	}
	if open, next = windowOpen(windows, in.Now); !open {
		return false, next
	}
	return windowOpen(windows, s.Time(in.Now))
}

// windowOpen says whether one of the windows is open, and when the next one opens. A schedule that doesn't parse opens none.
func windowOpen(windows []schema.Window, now time.Time) (open bool, next string) {
	now = now.UTC()
	var first time.Time
	for _, window := range windows {
		schedule, err := backup.ParseSchedule(window.Schedule)
		if err != nil {
			continue
		}
		// The latest opening before now is the first after a window's length ago, if there is one.
		if began := schedule.Next(now.Add(-time.Duration(window.Duration))); !began.IsZero() && !began.After(now) {
			return true, ""
		}
		if at := schedule.Next(now); first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	if first.IsZero() {
		return false, "none will, as spec.rollout.windows stand"
	}
	return false, "the next at " + first.Format("2006-01-02 15:04Z")
}

// reboot goes on with the rolled reboot of a machine; done says that the next may come. A machine that was begun is finished, window or
// not.
func (f *roller) reboot(m *schema.TalosMachine, state configState, compared bool) (action *Action, done bool) {
	r, name := f.next.Rollout, m.Metadata.Name
	seen, ok := f.in.see(name)
	if r.Stopped != "" {
		if act, lifted := f.lifted(name); !lifted && act != nil {
			return act, false
		}
		f.says[name] = verdict{"RolloutStopped", r.Stopped}
		if !compared || seen.Config.Wanted == r.Digest && (state != configSame || !runsReady(seen)) {
			return nil, false
		}
		endRollout(f.next)
		return nil, true
	}
	f.says[name] = verdict{"RollingOut", fmt.Sprintf("%s is rebooted for a changed config (%s since %s)", name, phaseWords(r.Phase), r.Since.Format("15:04:05Z"))}
	switch r.Phase {
	case phaseDrain:
		if compared && state != configStaged || f.in.Cluster.Object.Spec.Rollout.RebootPolicy() == schema.RebootsManual {
			f.phase(phaseLift) // Git changed, or somebody rebooted it
			r.Failures = 0
			return f.reboot(m, state, compared)
		}
		return f.drain(m, seen, ok && compared), false
	case phaseReboot:
		return f.back(m, state, compared)
	case phaseLater:
		if f.in.passed(rolloutMoment(r), r.Since) < f.in.Timing.ComeBack && (!compared || state == configStaged) {
			f.says[name] = verdict{"RebootRequired", fmt.Sprintf("%s could not be emptied for its reboot and is tried again %s after %s", name, f.in.Timing.ComeBack, r.Since.Format("15:04:05Z"))}
			return nil, false
		}
		if compared && state == configStaged && f.mayNotRebootYet(m) == "" {
			r.Evacuation = nil
			f.next.Lock = &statefile.Lock{Holder: lockRollout, Reason: "the reboot of " + name + " for a changed config", Since: f.in.now()}
			f.phase(phaseDrain)
			return f.reboot(m, state, compared)
		}
		if compared && state != configStaged || f.in.Cluster.Object.Spec.Rollout.RebootPolicy() == schema.RebootsManual {
			endRollout(f.next)
			return nil, true
		}
		return nil, false
	}
	if act, lifted := f.lifted(name); !lifted && f.in.passed(rolloutMoment(r), r.Since) < f.in.Timing.Patience {
		return act, false
	}
	if r.Failures > 0 && compared && state == configStaged {
		f.phase(phaseLater)
		releaseLock(f.next, lockRollout)
		return nil, false
	}
	endRollout(f.next)
	return nil, true
}

func (f *roller) phase(phase string) { f.next.Rollout.Phase, f.next.Rollout.Since = phase, f.in.now() }

// drain empties the machine, and reboots it once nothing is left on it.
func (f *roller) drain(m *schema.TalosMachine, seen Seen, there bool) *Action {
	r, name := f.next.Rollout, m.Metadata.Name
	why, wait := f.mayReboot(m)
	if there && why == "" && wait != "" && r.Evacuation == nil {
		// What it waits for may be an operation that needs the lock, and nothing was done yet.
		f.says[name] = verdict{"RebootRequired", fmt.Sprintf("%s is to be rebooted for a changed config; it waits: %s", name, wait)}
		endRollout(f.next)
		return nil
	}
	if !there || why != "" || wait != "" {
		if f.in.passed(rolloutMoment(r), r.Since) >= f.in.Cluster.Object.Spec.Rollout.Drain.Limit() {
			return f.giveUp(name, nameOr(why, nameOr(wait, name+" gives no answer")))
		}
		f.says[name] = verdict{"RollingOut", fmt.Sprintf("%s is to be rebooted for a changed config, and waits: %s", name, nameOr(why, nameOr(wait, "it gives no answer")))}
		return nil
	}
	out := evacuate(f.in, name, cordonForRollout, &r.Evacuation)
	if e := r.Evacuation; e != nil && e.Cordoned { // a cordon that an earlier rollout left there is this one's now
		f.next.Cordons = slices.DeleteFunc(f.next.Cordons, func(left statefile.LeftCordon) bool { return left.NodeUID == e.NodeUID })
	}
	switch {
	case out.need:
		f.in.wantKubernetes = true
		return nil
	case out.stuck != "":
		return f.giveUp(name, out.stuck)
	case out.act != nil:
		f.says[name] = verdict{"RollingOut", out.act.Why + ownNode(f.next, *out.act)}
		out.act.Lock = lockRollout
		return out.act
	case out.wait != "":
		f.says[name] = verdict{"RollingOut", out.wait}
		return nil
	}
	// The digest tells it from the reboot that mends a join.
	action := rebootAction(name, seen, fmt.Sprintf("a changed config waits for its boot (%s)", nameOr(seen.Config.Why, "it can't change while it runs")))
	action.Lock, action.Digest = lockRollout, r.Digest
	return action
}

// giveUp takes back what was done to a machine that could not be emptied: it is tried again later, and not for ever.
func (f *roller) giveUp(name, why string) *Action {
	r := f.next.Rollout
	r.Failures++
	if r.Failures >= mostFailures {
		stop(f.next, fmt.Sprintf("%s was to be rebooted for a changed config and that came to nothing %d times, last: %s; the rollout goes no further until Git changes or %s is "+
			"rebooted (ichor run-op node reboot %s)", name, r.Failures, why, name, name), f.says)
		return nil
	}
	f.phase(phaseLift)
	f.says[name] = verdict{"RollingOut", why}
	act, _ := f.lifted(name)
	return act
}

// back waits for a machine that was rebooted.
func (f *roller) back(m *schema.TalosMachine, state configState, compared bool) (*Action, bool) {
	r, name := f.next.Rollout, m.Metadata.Name
	missing := f.returned(name, r.BootID)
	if missing == "" && (r.Evacuation == nil || r.Evacuation.Undrained == "") {
		if f.in.Kubernetes == nil {
			f.in.wantKubernetes = true
			return nil, false
		}
		missing = nodeReturned(f.in, name)
	}
	switch {
	case missing == "":
		r.Failures = 0
		f.phase(phaseLift)
		return f.reboot(m, state, compared)
	case f.in.passed(rolloutMoment(r), r.Since) >= f.in.Timing.Return:
		stop(f.next, fmt.Sprintf("%s did not come back within %s of its reboot for a changed config: %s; it is not rebooted again: %s", name, f.in.Timing.Return, missing, waysOn), f.says)
		return nil, false
	}
	f.says[name] = verdict{"RollingOut", missing}
	return nil, false
}

// lifted lets the machine take pods again; true when there is nothing to lift any more.
func (f *roller) lifted(name string) (*Action, bool) {
	out := lift(f.in, name, f.next.Rollout.Evacuation)
	if out.need {
		f.in.wantKubernetes = true
	}
	if out.act != nil {
		out.act.Lock = lockRollout
		if f.next.Lock == nil {
			out.act.Lock = ""
		}
	}
	return out.act, out.done()
}

// resolveRolledReboot looks for the other boot that a rolled reboot must show. It is never asked for twice.
func resolveRolledReboot(in *Input, next *statefile.State, intent statefile.Intent) (resolution, string) {
	r := next.Rollout
	if intent.Outcome == statefile.OutcomeRefused {
		r.Phase = phaseDrain
		if failure := refusedByMachine(intent).failure; failure != "" {
			r.Failures++
			r.Phase, r.Since = phaseLift, in.now()
			if r.Failures >= mostFailures {
				r.Stopped = failure + "; the rollout goes no further until Git changes"
			}
		}
		return resolveNone, intent.Message
	}
	e := resolveReboot(in, intent)
	if e.failure != "" {
		way := "it is not asked twice; reboot it (ichor run-op node reboot " + intent.Machine + "), or change Git"
		if _, answers := in.see(intent.Machine); !answers {
			way = "it is not asked twice; look at its console, for the change may have cut it off; " + waysOn
		}
		r.Stopped = fmt.Sprintf("%s did not reboot for a changed config within %s (%s%s): %s", intent.Machine, in.Timing.Return, stillThere(in, intent), answered(intent), way)
	}
	return e.result, e.say
}
