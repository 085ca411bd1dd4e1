package reconcile

import (
	"fmt"
	"sort"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// The phases of a rollout on one machine.
const (
	phaseTry     = "try"     // the config is being tried: the node takes it back by itself
	phaseTried   = "tried"   // it was seen to run; it is confirmed once the machine is no less Ready than before
	phaseConfirm = "confirm" // it is being made to stay
	phaseSettle  = "settle"  // it stays; the next machine comes when this one runs and is Ready
	phaseStage   = "stage"   // it is being stored for the next boot
	phaseAgain   = "again"   // it came to nothing, and is sent once more after a pause
)

// phaseWords says for people in what phase a changed config is.
func phaseWords(phase string) string {
	switch phase {
	case phaseDrain:
		return "being emptied of its pods"
	case phaseReboot:
		return "rebooting"
	case phaseLift:
		return "taking pods again"
	case phaseLater:
		return "to be tried again"
	case phaseTry:
		return "being tried"
	case phaseConfirm:
		return "being made to stay"
	case phaseSettle:
		return "settling"
	case phaseStage:
		return "being staged"
	case phaseAgain:
		return "to be sent again"
	}
	return phase
}

// mostFailures is how often a change may come to nothing on a machine before its rollout stops.
const mostFailures = 3

const lockRollout = "rollout"

// configState is how the configs of a machine stand to the one it should run.
type configState int

const (
	configSame     configState = iota
	configChange               // running something else
	configUnstored             // runs the wanted one, which doesn't stay over a reboot
	configStaged               // the wanted one waits for a reboot
	configForeign              // something is staged or tried that Ichor didn't put there
)

// compareConfigs says how a machine's configs stand. A config that is active and persistent is plain drift, whoever put it
// there; where the two differ, something is staged or tried, and it is Ichor's only if Ichor remembers it.
func compareConfigs(s *statefile.State, name string, view ConfigView) configState {
	memory := s.Machines[name]
	ours := map[string]bool{view.Wanted: true, memory.ConfigDigest: true, memory.PersistentDigest: true}
	stored := view.Persistent
	if stored == "" {
		// A machine that booted from its disk shows no stored config until one is applied: it runs what it stores.
		stored = view.Active
	}
	if r := s.Rollout; r != nil && r.Machine == name {
		ours[r.Digest], ours[r.From] = true, true
		if tries(r, view) {
			stored = r.From
		}
	}
	switch {
	case view.Active != stored && (!ours[view.Active] || !ours[stored]):
		return configForeign
	case view.Active == view.Wanted && view.Active == stored:
		return configSame
	case view.Active == view.Wanted:
		return configUnstored
	case stored == view.Wanted && view.NeedsReboot:
		return configStaged
	}
	return configChange
}

// tries says whether the machine runs the rollout's config without having stored it.
func tries(r *statefile.RolloutState, view ConfigView) bool {
	switch r.Phase {
	case phaseTry, phaseTried, phaseConfirm:
		return view.Active == r.Digest && view.Persistent != r.Digest
	}
	return false
}

// rollout decides how a changed config travels: one machine at a time, tried first and made to stay once the machine has
// answered, the next when the last runs and is Ready. What needs a reboot is stored for the next boot.
func rollout(in *Input, next *statefile.State, etcd etcdView, wanted []string, eligible func(string) bool,
	aside func(*schema.TalosMachine) bool, reboots roller) (*Action, map[string]verdict) {
	says := map[string]verdict{}
	reboots.in, reboots.next, reboots.etcd, reboots.wanted, reboots.says = in, next, etcd, wanted, says
	states := map[string]configState{}
	var changed, staged []*schema.TalosMachine
	for _, m := range in.Cluster.Machines {
		name := m.Metadata.Name
		seen, ok := in.see(name)
		if !eligible(name) || !ok || seen.Mode != talos.ModeConfigured || seen.Config.Problem != "" || seen.Config.Active == "" {
			continue
		}
		states[name] = compareConfigs(next, name, seen.Config)
		switch states[name] {
		case configForeign:
			says[name] = verdict{"ForeignConfig", fmt.Sprintf("a config that Ichor did not send is staged or tried on %s (active %s, at the next boot %s): "+
				"it is left alone; apply or revert it, and Ichor goes on", name, short(seen.Config.Active), short(seen.Config.Persistent))}
		case configStaged:
			staged = append(staged, m)
		case configChange, configUnstored:
			says[name] = verdict{"ChangePending", fmt.Sprintf("the config of %s differs from Git and waits for its turn", name)}
			changed = append(changed, m)
		}
	}
	if r := next.Rollout; r != nil {
		m := in.Cluster.Machine(r.Machine)
		_, compared := states[r.Machine]
		if m == nil || aside(m) {
			// It is nobody's to wait for any more. What was tried on it, it takes back by itself.
			endRollout(next)
		} else if rebooting(r) {
			if action, done := reboots.reboot(m, states[r.Machine], compared); !done {
				return action, says
			}
		} else if action, done := rolling(in, next, etcd, wanted, m, states, says); !done {
			return action, says
		}
	}
	sortRollout(changed)
	sortRollout(staged)
	reboot := reboots.beginReboot(staged)
	if next.Rollout != nil {
		return reboot, says
	}
	if len(staged) > 0 && in.Cluster.Object.Spec.Rollout.RebootPolicy() == schema.RebootsAutomatic {
		changed = withoutStaging(in, staged[0], changed, states, says)
	}
	return begin(in, next, etcd, wanted, changed, states, says), says
}

// withoutStaging leaves out the machines on which a change would be stored while another one waits for its reboot with it: what a boot
// makes of it is seen on one machine first.
func withoutStaging(in *Input, first *schema.TalosMachine, changed []*schema.TalosMachine, states map[string]configState, says map[string]verdict) []*schema.TalosMachine {
	var left []*schema.TalosMachine
	for _, m := range changed {
		seen, _ := in.see(m.Metadata.Name)
		if kindOf(states[m.Metadata.Name], seen) != ActStage {
			left = append(left, m)
			continue
		}
		says[m.Metadata.Name] = verdict{"ChangePending", fmt.Sprintf("the config of %s differs from Git; it waits until %s was rebooted with the change", m.Metadata.Name, first.Metadata.Name)}
	}
	return left
}

// rolling goes on with the machine that the rollout is at; done says that the next may come.
func rolling(in *Input, next *statefile.State, etcd etcdView, wanted []string, m *schema.TalosMachine, states map[string]configState,
	says map[string]verdict) (*Action, bool) {
	r, name := next.Rollout, m.Metadata.Name
	seen, ok := in.see(name)
	state, compared := states[name]
	late := in.passed(rolloutMoment(r), r.Since) > in.Timing.ComeBack
	if compared && seen.Config.Wanted != r.Digest {
		if r.Stopped == "" && tries(r, seen.Config) && !late {
			// A second try would be taken back to the first one, not to what was there before it.
			says[name] = verdict{"RollingOut", fmt.Sprintf("Git changed while %s tried the former change, which it takes back first", name)}
			return nil, false
		}
		endRollout(next)
		return nil, true
	}
	if r.Stopped == "" && r.Phase == phaseAgain && compared && state == configForeign {
		endRollout(next)
		return nil, true
	}
	says[name] = verdict{"RollingOut", fmt.Sprintf("a changed config is being rolled to %s (%s since %s)", name, phaseWords(r.Phase), r.Since.Format("15:04:05Z"))}
	back := ok && seen.Mode == talos.ModeConfigured && atLeastAsReady(r, seen)
	arrived := compared && (state == configSame || state == configStaged)
	switch {
	case r.Stopped != "" && back && arrived:
		endRollout(next)
		return nil, true
	case r.Stopped != "":
		says[name] = verdict{"RolloutStopped", r.Stopped}
		return nil, false
	case r.Phase == phaseAgain && compared && !arrived:
		return rollAgain(in, next, etcd, wanted, m, state, says), false
	case r.Phase == phaseTried && compared && state == configUnstored && back:
		return configAction(in, next, ActConfirm, name, seen), false
	case (r.Phase == phaseTried || r.Phase == phaseTry) && compared && state == configChange:
		revertedTry(in, next, seen, says)
		return nil, false
	case r.Phase == phaseSettle && back, r.Phase == phaseStage && compared && state == configStaged, compared && state == configSame && back:
		endRollout(next)
		return nil, true
	case late:
		stop(next, fmt.Sprintf("%s did not come back within %s after its config changed (it was %s): %s", name, in.Timing.ComeBack, phaseWords(r.Phase),
			waysOn), says)
	}
	return nil, false
}

// waysOn ends the sentence of a rollout that stopped at a machine that isn't there.
const waysOn = "the rollout goes no further; mend it or change Git; paused or taken out of Git it lets the others go on"

// rollAgain sends once more what came to nothing, when a pause is over and nothing speaks against it.
func rollAgain(in *Input, next *statefile.State, etcd etcdView, wanted []string, m *schema.TalosMachine, state configState,
	says map[string]verdict) *Action {
	name := m.Metadata.Name
	if in.passed(rolloutMoment(next.Rollout), next.Rollout.Since) < 12*in.Timing.Retry {
		return nil
	}
	if why := mayNotRoll(in, next, etcd, wanted, m); why != "" {
		says[name] = verdict{"ChangePending", fmt.Sprintf("the config of %s differs from Git; it waits: %s", name, why)}
		return nil
	}
	seen, _ := in.see(name)
	return configAction(in, next, kindOf(state, seen), name, seen)
}

// again notes that a call of the rollout came to nothing: it is made once more later, and not for ever.
func again(in *Input, next *statefile.State, why string) {
	r := next.Rollout
	r.Failures++
	if r.Failures >= mostFailures {
		r.Stopped = fmt.Sprintf("the change came to nothing on %s %d times, last: %s; the rollout goes no further until Git changes", r.Machine,
			r.Failures, why)
	}
	r.Phase, r.Since = phaseAgain, in.now()
	releaseLock(next, lockRollout)
}

// revertedTry judges a try that is no longer there: the machine took it back because nobody confirmed it. When that was
// because the agent died, or because the machine was booted, it is tried once more; else the change is what locked it out or
// made it less Ready.
func revertedTry(in *Input, next *statefile.State, seen Seen, says map[string]verdict) {
	r := next.Rollout
	switch {
	case r.Epoch != next.Writer.Epoch:
		again(in, next, "nobody was there to confirm it")
	case r.BootID != "" && seen.BootID != "" && seen.BootID != r.BootID:
		again(in, next, "the machine was booted while it tried the change")
	default:
		stop(next, fmt.Sprintf("%s took the changed config back: while it was tried the machine did not answer, or was less Ready than before; the "+
			"rollout goes no further until Git changes", r.Machine), says)
		return
	}
	if r.Stopped != "" {
		says[r.Machine] = verdict{"RolloutStopped", r.Stopped}
	}
}

func stop(next *statefile.State, why string, says map[string]verdict) {
	next.Rollout.Stopped = why
	releaseLock(next, lockRollout)
	says[next.Rollout.Machine] = verdict{"RolloutStopped", why}
}

// begin takes the next machine.
func begin(in *Input, next *statefile.State, etcd etcdView, wanted []string, changed []*schema.TalosMachine,
	states map[string]configState, says map[string]verdict) *Action {
	for _, m := range changed {
		name := m.Metadata.Name
		seen, _ := in.see(name)
		if why := mayNotRoll(in, next, etcd, wanted, m); why != "" {
			says[name] = verdict{"ChangePending", fmt.Sprintf("the config of %s differs from Git; it waits: %s", name, why)}
			continue
		}
		return configAction(in, next, kindOf(states[name], seen), name, seen)
	}
	return nil
}

// kindOf is the call that a machine's change needs next.
func kindOf(state configState, seen Seen) ActionKind {
	switch {
	case state == configUnstored:
		return ActConfirm
	case seen.Config.NeedsReboot:
		return ActStage
	}
	return ActTry
}

// mayNotRoll says why a machine's turn has not come.
func mayNotRoll(in *Input, next *statefile.State, etcd etcdView, wanted []string, m *schema.TalosMachine) string {
	name := m.Metadata.Name
	seen, _ := in.see(name)
	if next.Lock != nil && next.Lock.Holder != lockRollout {
		return fmt.Sprintf("the cluster lock is held by %s (%s)", next.Lock.Holder, next.Lock.Reason)
	}
	if in.turn != "" {
		return fmt.Sprintf("the operation %s comes first", in.turn)
	}
	if seen.Stage != "running" && seen.Stage != "booting" {
		return fmt.Sprintf("%s is %s", name, nameOr(seen.Stage, "in an unknown stage"))
	}
	if isControlPlane(m) {
		switch {
		case next.Bootstrap == nil:
			return ""
		case next.Bootstrap.Done.IsZero():
			return "etcd is being bootstrapped"
		}
		if ok, why := etcd.healthy(wanted); !ok {
			return "control planes change only while etcd is healthy, and " + why
		}
		if count := in.Cluster.Object.Spec.ControlPlane.Count; len(etcd.members) > count {
			return fmt.Sprintf("etcd has %d members and count is %d; control planes change again once one was removed, or count was raised",
				len(etcd.members), count)
		}
		return ""
	}
	return tooManyWorkersDown(in, name, false)
}

// tooManyWorkersDown counts the other workers that are not available against maxUnavailableWorkers. Before a machine is emptied, one that takes
// no pods counts too.
func tooManyWorkersDown(in *Input, name string, emptied bool) string {
	total, down := in.aside.approved, in.aside.down
	if emptied {
		down = in.aside.downOrCordoned
	}
	for _, m := range in.Cluster.Machines {
		if isControlPlane(m) || !m.Spec.Approved {
			continue
		}
		total++
		if m.Metadata.Name != name && unavailable(in, m, emptied) {
			down++
		}
	}
	limit, err := in.Cluster.Object.Spec.Rollout.MaxUnavailableWorkers.Of(total)
	if err != nil {
		return "spec.rollout.maxUnavailableWorkers: " + err.Error()
	}
	if down >= limit {
		if emptied {
			return fmt.Sprintf("%d other workers of %d are not Ready, or are cordoned, and maxUnavailableWorkers is %d", down, total, limit)
		}
		return fmt.Sprintf("%d other workers of %d are not Ready and maxUnavailableWorkers is %d", down, total, limit)
	}
	return ""
}

// unavailable says whether a machine is not there for pods; where one is to be emptied, a cordoned one is not either.
func unavailable(in *Input, m *schema.TalosMachine, emptied bool) bool {
	seen, ok := in.see(m.Metadata.Name)
	return !ok || !runsReady(seen) || emptied && seen.Unschedulable == talos.Yes
}

func configAction(in *Input, next *statefile.State, kind ActionKind, name string, seen Seen) *Action {
	why := map[ActionKind]string{
		ActTry:     "the config of %s differs from Git: it is tried, and taken back by the machine unless it answers",
		ActConfirm: "%s runs the config of Git and answers: the config is made to stay",
		ActStage:   "the config of %s differs from Git in what needs a reboot: it is stored for the next boot",
	}[kind]
	return &Action{
		Kind: kind, Machine: name, UUID: seen.UUID, Boot: seen.BootID, Digest: seen.Config.Wanted, Lock: lockRollout, Attempt: 1,
		Facts: map[string]string{"active": seen.Config.Active, "persistent": seen.Config.Persistent, "ready": yesNo(runsReady(seen))},
		Why:   fmt.Sprintf(why, name),
	}
}

// endRollout ends the rollout at a machine. A cordon that it could not lift is remembered: the next that can be done about it is done.
func endRollout(next *statefile.State) {
	if e := next.Rollout.Evacuation; e != nil && e.Cordoned && !e.Lifted {
		next.Cordons = append(next.Cordons, statefile.LeftCordon{Machine: next.Rollout.Machine, Evacuation: *e})
	}
	next.Rollout = nil
	releaseLock(next, lockRollout)
}

// releaseLock gives the cluster lock back if the holder has it.
func releaseLock(next *statefile.State, holder string) {
	if next.Lock != nil && next.Lock.Holder == holder {
		next.Lock = nil
	}
}

// runsReady says whether a machine runs and is Ready, its Kubernetes Node included where that is known.
func runsReady(seen Seen) bool {
	return seen.Mode == talos.ModeConfigured && seen.Stage == "running" && seen.Ready && seen.NodeReady != talos.No
}

// atLeastAsReady says whether a machine is no less Ready than before its config changed.
func atLeastAsReady(r *statefile.RolloutState, seen Seen) bool {
	if r.WasReady {
		return runsReady(seen)
	}
	return seen.Stage == "running" || seen.Stage == "booting"
}

// sortRollout puts control planes before workers, each by name.
func sortRollout(machines []*schema.TalosMachine) {
	sort.SliceStable(machines, func(i, j int) bool {
		a, b := machines[i], machines[j]
		if isControlPlane(a) != isControlPlane(b) {
			return isControlPlane(a)
		}
		return a.Metadata.Name < b.Metadata.Name
	})
}

func short(digest string) string {
	if len(digest) > 12 {
		return digest[:12]
	}
	return nameOr(digest, "unknown")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
