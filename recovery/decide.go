package recovery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// ActionKind is a kind of call.
type ActionKind string

// The kinds of action.
const (
	// ActConfig gives a machine in maintenance mode its config.
	ActConfig ActionKind = "first-config"
	// ActLeave takes a machine out of the etcd that is given up; its data is gone then, and nothing else.
	ActLeave ActionKind = "leave"
	// ActReset wipes a machine's EPHEMERAL and reboots it.
	ActReset ActionKind = "reset-ephemeral"
	// ActUpload gives the target the snapshot, ActRecover has it recover from it.
	ActUpload  ActionKind = "upload"
	ActRecover ActionKind = "recover"
	// ActReboot reboots a machine whose etcd has given up joining.
	ActReboot ActionKind = "reboot"
	// ActRestart restarts the kubelet of a machine, ActReplace deletes a pod that its DaemonSet makes anew.
	ActRestart ActionKind = "restart-kubelet"
	ActReplace ActionKind = "replace-pod"
	// ActRemoveMember removes a member that never came to be one.
	ActRemoveMember ActionKind = "remove-member"
	// ActCordon, ActEvict and ActUncordon are calls to Kubernetes.
	ActCordon   ActionKind = "cordon"
	ActEvict    ActionKind = "evict"
	ActUncordon ActionKind = "uncordon"
	// ActVerify compares the recovered etcd with the snapshot. It changes nothing.
	ActVerify ActionKind = "verify"
)

// Seen is what one look at a machine showed, and how its config would go out where it is in maintenance mode.
type Seen struct {
	talos.Observation
	// ConfigProblem is why it can't be given a config; ConfigDigest of which one it would be given.
	ConfigProblem, ConfigDigest string
	// Owner is the mark of the state that manages it; empty when none.
	Owner string
	// APIServer says whether a kube-apiserver runs on it. It is asked only of machines that left etcd.
	APIServer talos.Fact
}

// callAges is how long ago a call was begun, and how long ago its outcome was written; without one that is the same.
type callAges struct{ Begun, Ended time.Duration }

// input is everything that a decision is made of.
type input struct {
	// Marker is never changed.
	Marker *Marker
	// Seen has one entry for each machine; for each worker, too, in the phases that ask Kubernetes and not etcd.
	Seen map[string]Seen
	Now  time.Time
	// Driven is for how long this process has been the driver, by the clock that nobody sets, as all of what it has seen for so long.
	Driven time.Duration
	// Calls are how long ago it made each of its calls, by the nonce of the intent.
	Calls map[string]callAges
	// Silent is for how long this process has seen the target hold data without an etcd that answers.
	Silent time.Duration
	// Outside is for how long it has seen a machine as a member that the target's etcd doesn't list, by name.
	Outside map[string]time.Duration
	// Unjoined is for how long it has seen a learner, or a member without a name, by the member's ID in hex.
	Unjoined map[string]time.Duration
	// Cancel: a person cancelled it.
	Cancel bool
	// Drains are what the last round of each drain left, DrainLimit how long one may take; zero: 15 minutes.
	Drains     map[string]kube.Drain
	DrainLimit time.Duration
	// Kubernetes is what a look at the Kubernetes API showed; nil in the phases that don't ask it.
	Kubernetes *kubernetesSeen
	// Stuck is for how long this process has seen no survivor come right while the Kubernetes API answered.
	Stuck  time.Duration
	Timing Timing
}

// notSent begins the message of an intent whose call this process did not make.
const notSent = "not sent: "

// action is one call, and what it rests on.
type action struct {
	Kind       ActionKind
	Machine    string
	UUID, Boot string
	Facts      map[string]string
	Attempt    int
	Why        string
	// Note is kept for the end: what isn't done as it should be. Undrained is why a machine is rebooted with its pods on it.
	Note, Undrained string
	// Pod is the one of ActReplace, Node the Kubernetes Node that another call to Kubernetes is about, Member the etcd member that is removed.
	Pod    SurvivingPod
	Node   kube.Node
	Member uint64
}

// nextStep is what is done next: exactly one of Action, Phase, Survivors, Wait, Stop is set.
type nextStep struct {
	Action *action
	// Phase is the next phase, Member the target's ID where that is PhaseJoining, and Note what is kept for the end.
	Phase  Phase
	Member uint64
	Note   string
	// Open is how many things are not right yet in PhaseReconciling.
	Open int
	// Survivors are to be noted.
	Survivors *Survivors
	// Wait says what is waited for.
	Wait string
	// Stop says why it can't go on.
	Stop string
}

func wait(format string, args ...any) nextStep { return nextStep{Wait: fmt.Sprintf(format, args...)} }
func stop(format string, args ...any) nextStep { return nextStep{Stop: fmt.Sprintf(format, args...)} }

// none says that a step has nothing to say.
func (s nextStep) none() bool { return s == nextStep{} }

// neverSent says that the call of an intent was not made for certain.
func neverSent(i *Intent) bool { return strings.HasPrefix(i.Message, notSent) }

type decision struct {
	input
	m *Marker
}

// decide says what is done next. It is called again and again, by this process or the next one.
func decide(in input) nextStep {
	d := decision{in, in.Marker}
	if step := d.identity(); !step.none() {
		return step
	}
	if step := d.settle(); !step.none() {
		return step
	}
	if d.Cancel {
		if step := d.cancel(); !step.none() {
			return step
		}
	}
	switch d.m.Phase {
	case PhaseCancelling:
		return d.limited(d.cancelling(), d.Timing.All)
	case PhaseLeaving:
		return d.limited(d.leaving(), d.Timing.Recover)
	case PhaseConfiguring:
		return d.limited(d.configuring(), d.Timing.Recover)
	case PhaseRecovering:
		return d.limited(d.recovering(), d.Timing.Recover)
	case PhaseJoining:
		return d.limited(d.joining(), d.Timing.All)
	case PhaseReconciling:
		return d.reconciling()
	}
	return stop("the marker is in the phase %q, which this ichor doesn't know", d.m.Phase)
}

// limited ends a wait that has become too long.
func (d *decision) limited(step nextStep, limit time.Duration) nextStep {
	if spent := d.spent(); step.Wait != "" && spent > limit {
		return stop("after %s it still waits (%s is its limit): %s", spent.Round(time.Minute), limit, step.Wait)
	}
	return step
}

// spent is how long it has taken since it was begun or last resumed. Other machines' clocks have a say in it, so that this process's own, which
// nobody sets back, is the least.
func (in input) spent() time.Duration { return max(in.Now.Sub(in.Marker.counts()), in.Driven) }

// identity stops when another machine answers than the one that was meant, or one that is meant by two names.
func (d *decision) identity() nextStep {
	if same := sameMachine(d.m.Machines); same != "" {
		return stop("%s: nothing is sent to it; leave one of the names out", same)
	}
	for _, m := range d.m.Machines {
		if seen := d.Seen[m.Name]; seen.UUID != "" && m.UUID != "" && !strings.EqualFold(seen.UUID, m.UUID) {
			return stop("the machine that answers at %s has the UUID %s, and %s has %s: nothing is sent to it; correct the address or the UUID",
				m.Endpoint, seen.UUID, m.Name, m.UUID)
		}
	}
	return nextStep{}
}

// settle waits until a call that another process began can't arrive any more.
func (d *decision) settle() nextStep {
	if len(d.m.Intents) == 0 {
		return nextStep{}
	}
	i := d.m.Intents[len(d.m.Intents)-1]
	if i.Outcome == "" && d.foreign(&i) && d.Driven < d.Timing.Settle {
		return wait("an earlier run had begun a call (%s on %s): it is given %s to arrive or be lost", i.Action, i.Machine, d.Timing.Settle)
	}
	return nextStep{}
}

// since is how long ago an intent was begun, as far as that is known. An earlier driver stamped it by a clock of its own, which may have been hours
// ahead; but it was before this process came to drive.
func (d *decision) since(i *Intent) time.Duration {
	if own, known := d.Calls[i.Nonce]; known {
		return own.Begun
	}
	age := d.Now.Sub(i.At)
	if d.foreign(i) {
		age = max(age, d.Driven)
	}
	return age
}

// foreign says whether an earlier driver made a call.
func (d *decision) foreign(i *Intent) bool {
	return i.Driver != d.m.Driver.ID || i.Epoch != d.m.Driver.Epoch
}

// certainly is how long ago an intent was begun at least, whatever the clock of who began it said, and however this one's was set since: what
// must not be done twice waits for that.
func (d *decision) certainly(i *Intent) time.Duration {
	if own, known := d.Calls[i.Nonce]; known {
		return own.Begun
	}
	return d.Driven
}

// act makes an action of a look at its machine.
func (d *decision) act(kind ActionKind, name string, facts map[string]string, why string) nextStep {
	seen := d.Seen[name]
	a := &action{Kind: kind, Machine: name, UUID: d.m.anyone(name).UUID, Boot: seen.BootID, Facts: facts, Attempt: 1, Why: why}
	if seen.Mode == talos.ModeMaintenance {
		a.Boot = seen.Fingerprint
	}
	if last := d.m.last(kind, name); last != nil && !d.earlier(last) {
		a.Attempt = last.Attempt
		if last.Outcome != statefile.OutcomeRefused && !d.died(last) {
			a.Attempt++
		}
	}
	return nextStep{Action: a}
}

// earlier says whether a call was begun before a person last had the restore go on. They saw what it came to: it counts against nothing any
// more, or a resume would stop where it was paused.
func (d *decision) earlier(i *Intent) bool { return i.At.Before(d.m.Resumed) }

// died says whether the process of a call died over it, of those calls that are only decided on again once the machine shows no effect: that
// proves nothing about the machine, so that it doesn't count against it.
func (d *decision) died(i *Intent) bool {
	return (i.Action == ActLeave || i.Action == ActRecover) && i.Outcome == "" && (i.Driver != d.m.Driver.ID || i.Epoch != d.m.Driver.Epoch)
}

// configuring makes every machine one that is configured and empty. Each gets what it needs before any is waited for: one that came back
// while others still had the old etcd could join it again.
func (d *decision) configuring() nextStep {
	if step := d.all(d.empty); !step.none() {
		return step
	}
	return nextStep{Phase: PhaseRecovering}
}

// order are the machines by name, the agent's own one last.
func (d *decision) order() []string {
	var names []string
	for _, m := range d.m.Machines {
		if m.Name != d.m.Own {
			names = append(names, m.Name)
		}
	}
	if d.m.machine(d.m.Own) != nil {
		names = append(names, d.m.Own)
	}
	return names
}

// spared says whether a machine keeps its old etcd data until the others have joined, because the agent runs on it.
func (d *decision) spared(name string) bool { return name == d.m.Own && name != d.m.Target }

// all asks for each machine, and gives the first that stops, else the first action, else the first wait.
func (d *decision) all(ask func(name string) nextStep) nextStep {
	var action, waiting nextStep
	for _, name := range d.order() {
		step := ask(name)
		switch {
		case step.Stop != "":
			return step
		case step.Action != nil && action.none():
			action = step
		case step.Wait != "" && waiting.none():
			waiting = step
		}
	}
	if !action.none() {
		return action
	}
	return waiting
}

// empty is what must be done until a machine is configured and certainly holds no etcd data.
func (d *decision) empty(name string) nextStep {
	seen := d.Seen[name]
	if d.spared(name) {
		return nextStep{}
	}
	if step := d.configured(name); !step.none() {
		return step
	}
	switch seen.Etcd.Data {
	case talos.No:
		return nextStep{}
	case talos.Yes:
		if !slices.Contains(d.m.Wipe, name) {
			return stop("%s; %s", holds(name, seen), mayWipe(name))
		}
		return d.reset(name, "old", fmt.Sprintf("%s holds the data of an etcd that is given up", name), maxResets)
	}
	return wait("whether %s holds etcd data is not known yet: %s", name, nameOr(seen.Problem, "it is "+nameOr(seen.Stage, "booting")))
}

// holds says what a machine that isn't empty holds.
func holds(name string, seen Seen) string {
	text := name + " runs an etcd with data"
	switch {
	case len(seen.Etcd.Members) > 0:
		text += fmt.Sprintf(", and that answers: it has %d members", len(seen.Etcd.Members))
	case seen.Etcd.MemberID != 0:
		text += fmt.Sprintf(" (member %s)", hexID(seen.Etcd.MemberID))
	}
	return text
}

func mayWipe(name string) string {
	return fmt.Sprintf("if that may be lost, name it: --wipe %s", name)
}

// configured is what must be done until a machine runs a config.
func (d *decision) configured(name string) nextStep {
	seen := d.Seen[name]
	switch seen.Mode {
	case talos.ModeMaintenance:
		return d.configure(name)
	case talos.ModeConfigured:
	default:
		return wait("%s doesn't answer: %s", name, nameOr(seen.Problem, "no look at it succeeded"))
	}
	if seen.Stage != "booting" && seen.Stage != "running" {
		return wait("%s is %s", name, nameOr(seen.Stage, "in an unknown stage"))
	}
	return nextStep{}
}

func (d *decision) configure(name string) nextStep {
	seen := d.Seen[name]
	if seen.ConfigProblem != "" {
		return stop("%s", seen.ConfigProblem)
	}
	last := d.m.last(ActConfig, name)
	if last == nil || last.BootID != seen.Fingerprint {
		return d.act(ActConfig, name, map[string]string{"config": seen.ConfigDigest}, name+" is in maintenance mode: it gets its config")
	}
	again := d.Timing.Config
	switch {
	case last.Outcome == statefile.OutcomeRefused && !neverSent(last):
		return stop("%s would not take its config: %s", name, last.Message)
	case last.Attempt >= maxConfigs && d.since(last) > again:
		return stop("%s took its config %d times and is in maintenance mode still: look at its console", name, last.Attempt)
	case last.Outcome != statefile.OutcomeOK:
		again = d.Timing.Retry // nothing tells whether it arrived, and twice does no harm
	}
	if d.since(last) < again {
		return wait("%s was given its config and has not left maintenance mode yet", name)
	}
	return d.act(ActConfig, name, map[string]string{"config": seen.ConfigDigest}, name+" is in maintenance mode still: it gets its config again")
}

// reset wipes a machine. It is over when the machine shows another boot and no data, so here it has data or that isn't known.
func (d *decision) reset(name, reason, why string, most int) nextStep {
	seen := d.Seen[name]
	last := d.m.last(ActReset, name)
	facts := map[string]string{"data": "present", "reason": reason}
	if last == nil {
		return d.act(ActReset, name, facts, why)
	}
	if last.BootID == seen.BootID {
		switch {
		case last.Outcome == statefile.OutcomeRefused && !neverSent(last):
			return stop("%s would not be reset: %s", name, last.Message)
		case neverSent(last) && d.since(last) >= d.Timing.Retry:
		case d.certainly(last) < d.Timing.Again:
			return wait("%s was told to wipe its EPHEMERAL partition and reboot", name)
		}
	}
	if last.Attempt >= most && !d.earlier(last) {
		return stop("%s was reset %d times and holds etcd data again or still: look at its console", name, last.Attempt)
	}
	return d.act(ActReset, name, facts, why)
}

func nameOr(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func hexID(id uint64) string { return strconv.FormatUint(id, 16) }
