package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// monitor judges, at its very moment, each call that a machine accepts and each write of a state. The world's lock guards it.
type monitor struct {
	w         *World
	processes []*process
	broken    []string
	// intents are all that were ever written, by nonce.
	intents map[string]*meant
	// signed are the digests of the operations that somebody who may signed.
	signed map[string]bool
	// bootstraps counts the bootstraps that were accepted, by cluster.
	bootstraps map[string]int
	// onBoot are the calls that a boot of a machine accepted of what it must accept once.
	onBoot map[string][]time.Time
	// byOperation counts the calls accepted for an operation, by digest and action.
	byOperation map[string]int
	// late counts the calls that were accepted of a process that was no longer the writer.
	late int
	// written is when a state was last written.
	written time.Time
	watch
}

// meant is an intent and what came of it.
type meant struct {
	statefile.Intent
	cluster  string
	accepted int
}

// taken is a call that a machine is about to accept.
type taken struct {
	m              *machine
	method, action string
	member         uint64
	uid, note      string
	// restore says that a restore made it: its intent stands in the marker. upload is the snapshot that came with it.
	restore bool
	upload  []byte
}

func newMonitor(w *World) *monitor {
	return &monitor{w: w, intents: map[string]*meant{}, signed: map[string]bool{}, bootstraps: map[string]int{}, onBoot: map[string][]time.Time{},
		byOperation: map[string]int{}, watch: newWatch()}
}

// breach notes a broken promise.
func (o *monitor) breach(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(o.broken) < 20 {
		o.broken = append(o.broken, text)
	}
	o.w.sayLocked("BROKEN: %s", text)
}

// stateOf reads a cluster's state as it stands in the bucket; nil where there is none.
func (w *World) stateOf(name string) *statefile.State {
	key := name + "/state.json"
	object, err := w.store.Get(context.Background(), key, "")
	if err != nil {
		return nil
	}
	var sealer *statefile.Sealer
	for _, c := range w.clusters {
		if c.name == name {
			sealer = c.keys.Sealer
		}
	}
	record, err := statefile.DecodeRecord(sealer, key, object.Data)
	if err != nil {
		w.monitor.breach("the state of %s can't be read back: %v", name, err)
		return nil
	}
	var state statefile.State
	if err := json.Unmarshal(record.Content, &state); err != nil {
		w.monitor.breach("the state of %s can't be read back: %v", name, err)
		return nil
	}
	return &state
}

func (w *World) cluster(name string) *cluster {
	for _, c := range w.clusters {
		if c.name == name {
			return c
		}
	}
	return nil
}

// destructive are the actions that need the cluster lock and take something away.
func destructive(action string) bool {
	return slices.Contains([]string{"bootstrap", "remove-member", "reset-ephemeral", "reboot", "shutdown", "reset-machine"}, action)
}

// accepted judges a call that a machine is about to accept.
func (o *monitor) accepted(p *process, t taken) {
	if t.restore {
		o.acceptedOfRestore(p, t)
		return
	}
	state := o.w.stateOf(t.m.c.name)
	what := fmt.Sprintf("%s on %s/%s (boot %d) by %s", t.action, t.m.c.name, t.m.name, t.m.boot, p.id)
	if state == nil {
		o.breach("%s was accepted, and there is no state", what)
		return
	}
	i := o.explains(t, state)
	switch {
	case i == nil:
		o.breach("%s was accepted without an intent that explains it", what)
		return
	case i.accepted > 0:
		o.breach("%s was accepted twice for one intent (%.8s)", what, i.Nonce)
	case i.Writer.ID != p.id:
		o.breach("%s was sent for an intent of %s", what, i.Writer.ID)
	}
	i.accepted++
	standing := state.Intent != nil && state.Intent.Nonce == i.Nonce
	switch {
	case state.Writer.ID != p.id:
		o.late++
		o.w.faults["late call of a replaced agent"]++
	case !standing:
		o.breach("%s was accepted, and its intent %.8s no longer stands", what, i.Nonce)
	case i.Outcome != "":
		o.breach("%s was accepted, and its intent %.8s has an outcome already", what, i.Nonce)
	}
	if destructive(t.action) && state.Lock == nil && standing {
		o.breach("%s was accepted without the cluster lock", what)
	}
	if i.Operation != "" {
		o.byOperation[i.Operation+" "+t.action]++
		if !o.signed[i.Operation] {
			o.breach("%s was accepted for %.12s, which nobody signed who may", what, i.Operation)
		}
	}
	o.once(t, i, what)
	o.quorum(t, what)
	o.workers(t, what)
}

// explains finds the intent of a call: the newest for this machine in this boot that has this action.
func (o *monitor) explains(t taken, state *statefile.State) *meant {
	fits := func(i *meant) bool {
		if i.cluster != t.m.c.name || i.Action != t.action {
			return false
		}
		if t.action == "delete-node" {
			return i.Machine == t.m.name
		}
		carrier := i.Machine
		if i.Carrier != "" {
			carrier = i.Carrier
		}
		boot := t.m.bootID()
		if t.action == "first-config" {
			boot = t.m.fingerprint()
		}
		return carrier == t.m.name && i.UUID == t.m.uuid && i.BootID == boot
	}
	if state.Intent != nil {
		if i := o.intents[state.Intent.Nonce]; i != nil && fits(i) {
			i.Intent = *state.Intent
			return i
		}
	}
	var best *meant
	for _, i := range o.intents {
		if fits(i) && (best == nil || i.At.After(best.At)) {
			best = i
		}
	}
	return best
}

// once judges what a boot of a machine accepts once only: but for the reset of a removal, which may be asked for again after ten minutes.
func (o *monitor) once(t taken, i *meant, what string) {
	switch t.action {
	case "bootstrap":
		if o.bootstraps[t.m.c.name]++; o.bootstraps[t.m.c.name] > 1 {
			o.breach("a second bootstrap: %s", what)
		}
	case "reboot", "shutdown", "reset-ephemeral", "reset-machine":
		// What another operation or another change asks for is another matter than what the first one asked for.
		key := strings.Join([]string{t.action, t.m.uuid, t.m.bootID(), i.Operation, i.Digest}, " ")
		before := o.onBoot[key]
		again := t.action == "reset-machine" && len(before) == 1 && time.Since(before[0]) >= 10*time.Minute
		if len(before) > 0 && !again {
			o.breach("%s was accepted before on that boot", what)
		}
		o.onBoot[key] = append(before, time.Now())
	}
}

// steady is how long ago a foreign hand must have come in for an agent to have seen it.
const steady = time.Minute

// quorum judges whether etcd keeps its quorum: what fell out by a foreign hand a moment ago counts as there.
func (o *monitor) quorum(t taken, what string) {
	e, gone := t.m.etcd, t.m.member
	switch t.action {
	case "reboot", "shutdown", "reset-ephemeral", "reset-machine":
	case "remove-member":
		gone = t.member
	default:
		return
	}
	if e == nil || !e.has(gone) {
		return
	}
	all, left := 0, 0
	for _, member := range e.members {
		if member.Learner {
			continue
		}
		all++
		m := e.of(t.m.c, member.ID)
		if member.ID != gone && m != nil && (e.alive(t.m.c, member.ID) || time.Since(m.byHand) < steady && m.byUs == "") {
			left++
		}
	}
	if slices.ContainsFunc(e.members, func(m talos.EtcdMember) bool { return m.ID == gone && m.Learner }) {
		return
	}
	switch {
	case all == 1 && t.action != "reboot" && t.action != "shutdown":
		o.breach("%s takes the only etcd member away", what)
	case t.action == "remove-member" && all > 1 && left < (all-1)/2+1:
		o.breach("%s leaves %d of %d members, and %d have to be", what, left, all-1, (all-1)/2+1)
	case t.action != "remove-member" && all > 1 && left < all/2+1:
		o.breach("%s leaves %d of %d members, and %d have to be", what, left, all, all/2+1)
	}
}

// workers judges how many workers are down by us at once. One that was shut down and is off waits for its person.
func (o *monitor) workers(t taken, what string) {
	if t.m.controlPlane() || !slices.Contains([]string{"reboot", "shutdown", "reset-machine"}, t.action) {
		return
	}
	for _, other := range t.m.c.machines {
		resting := other.byUs != "" && other.byUs != "reboot" && !other.power
		if other != t.m && !other.controlPlane() && other.byUs != "" && !resting && other.stage != stageRunning {
			o.breach("%s was accepted while %s was still down by %s", what, other.name, other.byUs)
		}
	}
}

// lastWrite is when a state was last written.
func (o *monitor) lastWrite() time.Time {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	return o.written
}

// wrote judges a write that the bucket took.
func (o *monitor) wrote(p *process, cluster string, before, after *statefile.State) {
	o.written = time.Now()
	if after == nil {
		return
	}
	what := fmt.Sprintf("the state of %s that %s wrote", cluster, p.id)
	switch {
	case after.Writer.ID != p.id:
		o.breach("%s names %s as its writer", what, after.Writer.ID)
	case before != nil && before.Writer.ID != p.id && after.Writer.Epoch != before.Writer.Epoch+1:
		o.breach("%s came in epoch %d, after %s had epoch %d", what, after.Writer.Epoch, before.Writer.ID, before.Writer.Epoch)
	case before != nil && before.Writer.ID == p.id && after.Writer.Epoch < before.Writer.Epoch:
		o.breach("%s came in epoch %d, after epoch %d", what, after.Writer.Epoch, before.Writer.Epoch)
	}
	if before == nil {
		before = &statefile.State{}
	}
	if before.Bootstrap != nil && (after.Bootstrap == nil || after.Bootstrap.Machine != before.Bootstrap.Machine || !before.Bootstrap.Done.IsZero() && after.Bootstrap.Done.IsZero()) {
		o.breach("%s forgets the bootstrap of %s", what, before.Bootstrap.Machine)
	}
	o.intent(p, what, cluster, before, after)
	o.operations(what, cluster, before, after)
	o.success(what, cluster, before, after)
}

func (o *monitor) intent(p *process, what, cluster string, before, after *statefile.State) {
	i := after.Intent
	if i == nil {
		return
	}
	if known := o.intents[i.Nonce]; known != nil {
		known.Intent = *i
		return
	}
	o.intents[i.Nonce] = &meant{Intent: *i, cluster: cluster}
	switch {
	case i.Writer.ID != p.id:
		o.breach("%s has a new intent of %s", what, i.Writer.ID)
	case before.Intent != nil:
		o.breach("%s begins %s on %s, and what became of %s on %s was not known", what, i.Action, i.Machine, before.Intent.Action, before.Intent.Machine)
	case destructive(i.Action) && after.Lock == nil:
		o.breach("%s begins %s on %s without the cluster lock", what, i.Action, i.Machine)
	case i.Operation != "" && !o.signed[i.Operation]:
		o.breach("%s begins %s on %s for %.12s, which nobody signed who may", what, i.Action, i.Machine, i.Operation)
	}
}

// operations judges what becomes of operations: only what was signed goes on, what is over stays over, and what is done was done.
func (o *monitor) operations(what, cluster string, before, after *statefile.State) {
	had := map[string]*statefile.OperationState{}
	for _, op := range before.Operations {
		had[op.Digest] = op
	}
	for _, op := range after.Operations {
		was := had[op.Digest]
		switch {
		case op.Phase != statefile.OperationRefused && op.Phase != statefile.OperationSkipped && !o.signed[op.Digest]:
			o.breach("%s has %s %s, which nobody signed who may", what, op.Name, op.Phase)
		case was != nil && was.Phase.Over() && was.Phase != op.Phase && was.Phase != statefile.OperationRefused:
			o.breach("%s has %s %s, and it was %s", what, op.Name, op.Phase, was.Phase)
		}
		if op.Phase == statefile.OperationPaused && op.FailureReason == "" {
			o.breach("%s has %s paused without a reason", what, op.Name)
		}
		if op.Phase == statefile.OperationRefused && op.Message == "" {
			o.breach("%s has %s refused without a reason", what, op.Name)
		}
		if op.Phase == statefile.OperationCompleted && (was == nil || was.Phase != statefile.OperationCompleted) {
			if why := o.undone(cluster, op); why != "" {
				o.breach("%s says that %s is completed (%s), and %s", what, op.Name, op.Message, why)
			}
		}
	}
}

// undone says what an operation that is said to be completed has not done.
func (o *monitor) undone(cluster string, op *statefile.OperationState) string {
	if op.Kind == kindRestore {
		return o.unrestored(cluster, op)
	}
	m := o.w.cluster(cluster).machine(op.Target)
	if m == nil || op.Kind != "node" {
		return ""
	}
	took := func(action string) int { return o.byOperation[op.Digest+" "+action] }
	switch op.Action {
	case "reboot", "shutdown":
		if m.bootID() == op.BootID || took(op.Action) == 0 {
			return fmt.Sprintf("%s is in boot %s and took %d calls for it", m.name, m.bootID(), took(op.Action))
		}
	case "restart-service":
		if took("restart-service") == 0 {
			return m.name + " took no call for it"
		}
	case "etcd-defrag":
		if took("defragment") == 0 {
			return m.name + " took no call for it"
		}
	case "etcd-forfeit-leadership":
		if took("forfeit-leadership") == 0 {
			return m.name + " took no call for it"
		}
	case "remove":
		if m.etcd != nil && m.etcd.has(m.member) && m.controlPlane() {
			return m.name + " is still a member of etcd"
		}
		if !strings.Contains(op.Data, "gone: true") && m.configured() {
			return m.name + " still has its config"
		}
	}
	return ""
}

// success judges what is said to be Ready: the machine has shown it a moment ago.
func (o *monitor) success(what, cluster string, before, after *statefile.State) {
	c := o.w.cluster(cluster)
	for name, said := range after.Machines {
		if was := before.Machines[name]; !said.Ready.Status || was != nil && was.Ready.Status {
			continue
		}
		m := c.machine(name)
		if m == nil {
			o.breach("%s says that %s is Ready, which is no machine", what, name)
			continue
		}
		seen := m.power && m.stage == stageRunning && m.configured()
		fresh := time.Since(m.byHand) < steady || m.goingDown() && time.Since(m.since) < steady
		if !seen && !fresh {
			o.breach("%s says that %s is Ready, and it is %q since %s", what, name, m.stage, m.since.Format(time.TimeOnly))
		}
	}
	if after.Ready.Status && !before.Ready.Status && !slices.ContainsFunc(c.machines, func(m *machine) bool { return m.etcd != nil && m.etcd.quorumFor(m) }) &&
		!slices.ContainsFunc(c.machines, func(m *machine) bool { return time.Since(m.byHand) < steady }) {
		o.breach("%s says that the cluster is Ready, and no etcd has a quorum", what)
	}
}
