package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// The steps of a restore that change nothing. stepLooking is for what one look at the machines can't settle.
const (
	stepPreparing = "preparing"
	stepLooking   = "looking"
)

// nothingChanged begins every failure of a restore before its marker is written.
const nothingChanged = "nothing was changed: "

// RestoreOrder asks for the next step of a restore, whose marker says how far it is. The rest says how it begins.
type RestoreOrder struct {
	// Digest is the operation's, Pause the number of its pauses so far.
	Digest string
	Pause  int
	Spec   schema.RestoreOperation
	// Marked says that the marker was written: then it is gone on from, and nothing is begun anew.
	Marked bool
	// Refuse says why no restore may begin now: one whose marker stands already is gone on with all the same. Empty where one may.
	Refuse string
	// Cancel says that a person had it cancelled.
	Cancel bool
	// Machines are the control planes. Target recovers. Holder keeps the old etcd until the others left it; empty where all are wiped.
	Machines       []recovery.Machine
	Target, Holder string
	// Workers are the other machines whose kubelets live through it.
	Workers []recovery.Machine
	// Own is the control plane that the agent runs on; empty where it is none of them.
	Own string
}

// RestoreView is what the last step of a restore left in this process.
type RestoreView struct {
	Digest string
	Pause  int
	// Marked says that the marker is written, Done that its restore is over.
	Marked, Done bool
	// Undo is what a cancel would do; Cancelled says that it was one that ended it. Cordons are those that it could not lift, by machine.
	Undo recovery.Undo
	// Restored is set once a restore that replaced the etcd is over.
	Restored  *statefile.RestoreRecord
	Cancelled bool
	Cordons   map[string]statefile.Evacuation
	// Step is the marker's phase, Say what is done or waited for.
	Step, Say string
	// Problem is why it can't go on by itself, with the way out.
	Problem string
}

// way is how a restore takes the old etcd's data away.
type way struct {
	machines       []recovery.Machine
	target, holder string
	// own is the control plane that the agent runs on; empty where it is none of them.
	own string
}

// restoring is the operation of a restore that is under way, or was broken off past its marker; nil where there is none.
func restoring(s *statefile.State) *statefile.OperationState {
	for _, op := range s.Operations {
		begun := op.Phase == statefile.OperationRunning && op.Once || op.Marked && op.Phase == statefile.OperationPaused
		if op.Kind == string(schema.OperationEtcdRestore) && begun {
			return op
		}
	}
	return nil
}

// restoreOnly carries on a restore and nothing else: machines are only looked at.
func (d *decision) restoreOnly(op *statefile.OperationState) {
	d.operate()
	d.plan.Busy = true
	if restoring(d.next) == nil {
		return
	}
	d.cluster = verdict{"Restoring", fmt.Sprintf("%s restores etcd (%s): %s; machines are only looked at otherwise", op.Name, nameOr(op.Step, "it begins"), op.Message)}
	if op.Phase == statefile.OperationPaused {
		d.cluster = verdict{"OperationPaused", fmt.Sprintf("the restore %s is paused, and keeps the cluster lock: %s; resume it with ichor run-op resume", op.Name, op.FailureReason)}
	}
}

// refuseRestore holds every guard that the state and the machines decide. Nothing was changed yet. What the next look may show otherwise
// keeps no restore from beginning: [nextRestore] waits for it.
func refuseRestore(s situation) (refuse, wait string) {
	if refuse = s.missigned(); refuse == "" && s.unsettled() == "" {
		refuse = s.refuseRestore()
	}
	return refuse, ""
}

// missigned says what no look at the machines changes.
func (s situation) missigned() string {
	if cluster := s.in.Cluster.Name(); s.spec.EtcdRestore.Confirm != cluster {
		return nothingChanged + fmt.Sprintf("a restore must say confirm: %s, the cluster's name", cluster)
	}
	if why := s.restoresFrom(s.spec.EtcdRestore); why != "" {
		return nothingChanged + why
	}
	return ""
}

func (s situation) refuseRestore() string {
	if why := s.missigned(); why != "" {
		return why
	}
	spec := s.spec.EtcdRestore
	cluster := s.in.Cluster.Name()
	way, why := s.way()
	if why != "" {
		return nothingChanged + why
	}
	switch {
	case s.in.Cluster.Object.Spec.ControlPlanesSchedulable() && spec.LocalDataLoss != localDataLossAccepted:
		return nothingChanged + fmt.Sprintf("pods may run on the control planes of %s, and their local and hostPath volumes are lost where EPHEMERAL is wiped (%s); "+
			"sign it with localDataLoss: %s", cluster, way.wiped(), localDataLossAccepted)
	case way.own == "" || way.holder != "":
		return ""
	case len(way.machines) == 1:
		return nothingChanged + fmt.Sprintf("this agent runs on %s, and there is no other control plane that could recover before that one is wiped under it; stop it, and from "+
			"another machine: %s", way.own, s.wayOut(true))
	case s.livesAlone(way.own):
		return nothingChanged + fmt.Sprintf("this agent runs on %s, which would keep its old etcd until the others have recovered, and as far as is known that etcd lives without "+
			"them: there would be two; stop the agent, and from another machine: %s", way.own, s.wayOut(true))
	}
	return ""
}

// livesAlone says whether the etcd of a machine may have a quorum without all the others.
func (s situation) livesAlone(name string) bool {
	others := 0
	if s.etcd.known {
		for _, member := range s.etcd.members {
			if !member.Learner && s.etcd.machine[member.ID] != name {
				others++
			}
		}
		return others == 0
	}
	for other, memory := range s.next.Machines {
		if other != name && memory.MemberID != "" {
			others++
		}
	}
	return others == 0
}

// restoresFrom looks at what is restored.
func (s situation) restoresFrom(spec *schema.RestoreOperation) string {
	at := slices.IndexFunc(s.in.Cluster.Backups, func(b *schema.TalosEtcdBackup) bool { return b.Metadata.Name == spec.BackupRef.Name })
	switch {
	case at < 0:
		return fmt.Sprintf("there is no TalosEtcdBackup %s in the revision that is acted on (%.12s), or this agent takes no backups", spec.BackupRef.Name, s.in.Cluster.Commit)
	case s.etcd.known && s.in.Cluster.Backups[at].Spec.Suspend:
		return fmt.Sprintf("the backup %s is suspended, and a snapshot of now is stored before anything is lost; set spec.suspend: false", spec.BackupRef.Name)
	}
	return ""
}

// way decides which control planes lose their data how, or says why that can't be done.
func (s situation) way() (w way, why string) {
	spec := s.spec.EtcdRestore
	if s.etcd.known && len(s.strangers) > 0 {
		return w, fmt.Sprintf("etcd has members that no wanted control plane explains (%s): they would keep the old etcd alive; remove them first", strings.Join(s.strangers, ", "))
	}
	for _, member := range s.etcd.members {
		if on := s.etcd.machine[member.ID]; !slices.Contains(s.wanted, on) {
			return w, fmt.Sprintf("etcd's member %s is on %s, which is no wanted control plane: it would keep the old etcd alive; remove it first", hexID(member.ID), nameOr(on, "an unknown machine"))
		}
	}
	if why = s.leftBehind(); why != "" {
		return w, why
	}
	if why = s.signedAside(); why != "" {
		return w, why
	}
	for _, name := range s.wanted {
		m := s.in.Cluster.Machine(name)
		if uuid, gone := spec.Without[name]; gone {
			if why := s.isGone(m, uuid); why != "" {
				return w, why
			}
			continue
		}
		if why := s.canBeRestored(m, spec.ControlPlanes[name]); why != "" {
			return w, why
		}
		w.machines = append(w.machines, recovery.Machine{Name: name, Endpoint: m.Spec.Endpoint, UUID: strings.ToLower(m.Spec.UUID)})
	}
	if len(w.machines) == 0 {
		return w, "no control plane is left to restore on"
	}
	if own := ownMachine(s.in); slices.ContainsFunc(w.machines, func(m recovery.Machine) bool { return m.Name == own }) {
		w.own = own
	}
	s.choose(&w)
	return w, ""
}

// unsettled says what a restore can't be decided on yet: a machine that gave no answer to this one look, or an etcd that one look did not find
// healthy. A single slow answer must neither refuse a restore nor have all control planes wiped where one would do.
func (s situation) unsettled() string {
	spec := s.spec.EtcdRestore
	for _, name := range s.wanted {
		if _, gone := spec.Without[name]; gone {
			continue
		}
		switch seen := s.in.Seen[name]; {
		case seen.Mode == talos.ModeUnknown:
			return s.unseen(s.in.Cluster.Machine(name)).message
		case seen.Mode == talos.ModeConfigured && seen.Etcd.Data == talos.Unknown:
			return fmt.Sprintf("whether %s holds etcd data is not known (%s)", name, nameOr(seen.Problem, "it is "+nameOr(seen.Stage, "booting")))
		}
	}
	if why := s.aboutToJoin(); why != "" {
		return why
	}
	if why := s.leftBehind(); why != "" {
		return why // etcd's list, where the next look has it, says better who is a member
	}
	if _, why := s.way(); why != "" {
		return "" // whatever etcd says
	}
	if healthy, why := s.etcd.healthy(s.wanted); !healthy && len(s.wanted) > 1 && len(spec.Without) == 0 {
		return fmt.Sprintf("etcd is not healthy (%s)", why)
	}
	return ""
}

// choose settles who recovers. Where etcd is healthy with two or more members one control plane is wiped, and the one that the agent runs on
// recovers, so that the agent lives through it. Where all are wiped another one recovers, and the agent's own comes last.
func (s situation) choose(w *way) {
	defer func() {
		if other := slices.IndexFunc(w.machines, func(m recovery.Machine) bool { return m.Name != w.own }); w.holder == "" && other >= 0 {
			w.target = w.machines[other].Name
		}
	}()
	w.target = nameOr(w.own, w.machines[0].Name)
	healthy, _ := s.etcd.healthy(s.wanted)
	if !healthy || len(w.machines) < 2 || len(w.machines) != len(s.wanted) || len(s.etcd.members) != len(w.machines) {
		return
	}
	for _, m := range w.machines {
		if m.Name == w.target {
			continue
		}
		if seen, _ := s.in.see(m.Name); w.holder == "" || leads(seen) {
			w.holder = m.Name
		}
	}
}

// wiped names the machines that lose their EPHEMERAL.
func (w way) wiped() string {
	if w.holder != "" {
		return w.holder
	}
	var names []string
	for _, m := range w.machines {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}

// workers are those whose kubelet may be restarted in the end: Git wants them, and they are Ichor's own as far as they answer.
func (s situation) workers() []recovery.Machine {
	var list []recovery.Machine
	for _, m := range s.in.Cluster.Machines {
		if isControlPlane(m) || !s.standing(m).none() {
			continue
		}
		if _, why := s.within(m); why != "" && s.in.Seen[m.Metadata.Name].Mode != talos.ModeUnknown {
			continue
		}
		list = append(list, recovery.Machine{Name: m.Metadata.Name, Endpoint: m.Spec.Endpoint, UUID: strings.ToLower(m.Spec.UUID)})
	}
	return list
}

func (s situation) isGone(m *schema.TalosMachine, uuid string) string {
	name := m.Metadata.Name
	if !strings.EqualFold(uuid, m.Spec.UUID) {
		return fmt.Sprintf("what was signed leaves out %s with the UUID %s, and Git declares %s; sign anew", name, uuid, m.Spec.UUID)
	}
	if s.in.Seen[name].Mode != talos.ModeUnknown {
		return fmt.Sprintf("what was signed says that %s is off for good, and it answers; power it off, or sign anew with it among controlPlanes", name)
	}
	return ""
}

// canBeRestored wants a control plane that answers, is the one that was signed, is Ichor's own, and says whether it holds etcd data.
func (s situation) canBeRestored(m *schema.TalosMachine, uuid string) string {
	name := m.Metadata.Name
	switch {
	case uuid == "":
		return fmt.Sprintf("%s is a wanted control plane, and what was signed names it neither in controlPlanes nor in without; sign anew", name)
	case !strings.EqualFold(uuid, m.Spec.UUID):
		return fmt.Sprintf("what was signed is about %s with the UUID %s, and Git declares %s; sign anew for the machine that is meant", name, uuid, m.Spec.UUID)
	}
	if v := s.standing(m); !v.none() {
		return v.message
	}
	seen, why := s.within(m)
	switch {
	case why != "" && s.in.Seen[name].Mode == talos.ModeUnknown:
		return why + "; bring it back, or sign it into without if it is off for good"
	case why != "":
		return why
	case seen.Etcd.Data == talos.Unknown:
		return fmt.Sprintf("whether %s holds etcd data is not known (%s); wait until it is running", name, nameOr(seen.Problem, "it is "+nameOr(seen.Stage, "booting")))
	}
	return ""
}

// nextRestore stores a snapshot of now where etcd answers, and then has the restore go on step by step; the last one says how it stands.
func nextRestore(s situation) move {
	view := s.in.Restore
	if view != nil && (view.Digest != s.op.Digest || view.Pause != s.op.Pause) {
		view = nil
	}
	order := &RestoreOrder{Digest: s.op.Digest, Pause: s.op.Pause, Spec: *s.spec.EtcdRestore, Marked: s.op.Marked, Cancel: s.op.Cancelling}
	if view == nil && !s.op.Marked {
		if why := s.unsettled(); why != "" && s.missigned() == "" && (s.op.Step != stepLooking || s.since() < s.in.Timing.Patience) {
			return move{step: stepLooking, wait: fmt.Sprintf("%s; where that lasts for %s it counts, and nothing is changed before", why, s.in.Timing.Patience)}
		}
		refuse := s.refuseRestore()
		switch {
		case refuse != "" && s.op.Sent[sentRestore] == 0:
			return move{step: stepPreparing, pause: refuse}
		case refuse != "":
			// An agent that died may have written the marker last: whether it did is seen before anything is refused.
			order.Refuse = strings.TrimPrefix(refuse, nothingChanged)
		default:
			if m := s.snapshotOfNow(); m.done == "" {
				return m
			}
			way, _ := s.way()
			order.Machines, order.Target, order.Holder, order.Own, order.Workers = way.machines, way.target, way.holder, way.own, s.workers()
		}
	}
	if view == nil {
		s.plan.Restore = order
		return move{step: nameOr(s.op.Step, stepPreparing), wait: fmt.Sprintf("the snapshot %s is fetched, opened and made ready", s.spec.EtcdRestore.Snapshot.Name)}
	}
	s.op.Marked = s.op.Marked || view.Marked
	s.op.Undo = string(view.Undo)
	if s.op.Marked {
		s.op.WayOut = s.wayOut(false)
	}
	m := move{step: nameOr(view.Step, stepPreparing)}
	switch {
	case view.Done:
		m.done, m.cancelled = view.Say, view.Cancelled
		s.op.Undo = ""
		if view.Restored != nil {
			s.next.LastRestore = view.Restored
		}
		for _, name := range slices.Sorted(maps.Keys(view.Cordons)) {
			s.next.Cordons = append(s.next.Cordons, statefile.LeftCordon{Machine: name, Evacuation: view.Cordons[name]})
		}
	case view.Problem != "" && !s.op.Marked:
		m.pause = nothingChanged + view.Problem
	case view.Problem != "":
		m.pause = view.Problem
	default:
		order.Marked = s.op.Marked
		s.plan.Restore, m.wait = order, nameOr(view.Say, restorePhaseWords(view.Step))
	}
	return m
}

// snapshotOfNow stores a snapshot before anything is lost, so that the restore can itself be undone; done where etcd doesn't answer.
func (s situation) snapshotOfNow() move {
	if !s.etcd.known {
		return move{done: "etcd gives no snapshot any more"}
	}
	sub := s
	sub.spec.EtcdBackup = &schema.EtcdBackupOperation{BackupRef: s.spec.EtcdRestore.BackupRef}
	m := nextBackup(sub)
	m.step = stepPreparing
	if m.pause != "" {
		m.pause = nothingChanged + "a snapshot of now is stored first, and " + m.pause
	}
	backup := s.next.Backups[s.spec.EtcdRestore.BackupRef.Name]
	if held := backup != nil && backup.Ready.Reason == "RestoreInProgress"; held && m.done == "" && s.op.Step == stepPreparing && s.since() >= s.in.Timing.Patience {
		m.pause = nothingChanged + fmt.Sprintf("the marker of another restore stands beside the snapshots of %s, and nothing is stored there until that has ended; where no "+
			"operation in ichor status made it, find out who can write the bucket; ichor restore --recover-cluster ends one that is this cluster's", s.spec.EtcdRestore.BackupRef.Name)
	}
	return m
}

// wayOut is the command with which a person ends a restore by hand; begun anew it wipes what holds data.
func (s situation) wayOut(anew bool) string { return recoverCommand(s.in, s.spec.EtcdRestore, anew) }

func recoverCommand(in *Input, spec *schema.RestoreOperation, anew bool) string {
	text := fmt.Sprintf("ichor restore --recover-cluster --cluster %s --backup %s --snapshot %s", in.Cluster.Name(), spec.BackupRef.Name, spec.Snapshot.Name)
	for _, name := range slices.Sorted(maps.Keys(spec.Without)) {
		text += " --without " + name
	}
	if anew {
		for _, name := range slices.Sorted(maps.Keys(spec.ControlPlanes)) {
			text += " --wipe " + name
		}
	}
	if in.RecoverFlags != "" {
		text += " " + in.RecoverFlags
	}
	return text
}

// nodeNameIn is the Node that the agent runs on as far as it may be one of this cluster's.
func nodeNameIn(name, cluster string) string {
	of, node, told := strings.Cut(name, "/")
	switch {
	case !told:
		return name
	case of == cluster:
		return node
	}
	return ""
}

// nodeIs says whether the Node that the agent runs on bears one of these names.
func (in *Input) nodeIs(names ...string) bool {
	return in.NodeName != "" && slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, in.NodeName) })
}

// ownMachine is the machine that the agent runs on; empty where it is none of the cluster's. Git's word goes before what machines say of
// themselves, and a control plane's before a worker's: a worker that was broken into must not hide from the agent that it would wipe itself.
func ownMachine(in *Input) string {
	for _, m := range in.Cluster.Machines {
		if in.nodeIs(m.Metadata.Name, m.Spec.Hostname, host(m.Spec.Endpoint)) || slices.Contains(in.LocalAddresses, host(m.Spec.Endpoint)) {
			return m.Metadata.Name
		}
	}
	worker := ""
	for _, m := range in.Cluster.Machines {
		name := m.Metadata.Name
		seen, _ := in.see(name)
		if !in.nodeIs(seen.Hostname, in.remembered(name).Hostname) && !containsAny(in.LocalAddresses, seen.Addresses) {
			continue
		}
		if isControlPlane(m) {
			return name
		}
		if worker == "" {
			worker = name
		}
	}
	return worker
}
