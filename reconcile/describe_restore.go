package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keyspace"
	"ichor.maesh.dev/internal/bytesize"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// localDataLossAccepted is what a restore must say where pods may run on control planes.
const localDataLossAccepted = "accepted"

// RestoreKnown is what was found out for the plan of a restore, beside the state.
type RestoreKnown struct {
	Now time.Time
	// Snapshot is what the sealed index lists; nil: it doesn't, or was not read, and Unlisted says why. Newer counts the listed ones that
	// are newer. Proved is the newest one that a drill has proved.
	Snapshot *backup.Snapshot
	Unlisted string
	Newer    int
	Proved   *backup.Snapshot
	// Opened is what the snapshot holds; nil: it was not fetched, and NotOpened says why.
	Opened    *keyspace.Counts
	NotOpened string
	// Seen is what the control planes showed; nil: they were not asked, and NotAsked says why. Mark is of the state's location.
	Seen     map[string]Seen
	NotAsked string
	Mark     string
	// Inside says which of the stores lies inside of the cluster that is restored.
	Inside []string
	// RecoverFlags is what 'ichor restore --recover-cluster' needs besides.
	RecoverFlags string
}

// DescribeRestore is [DescribeOperation] for a restore of which more is known.
func DescribeRestore(cluster Cluster, state *statefile.State, op *schema.TalosOperation, known RestoreKnown, objections ...string) OperationPlan {
	return describe(cluster, state, op, &known, objections...)
}

// restore describes a restore.
func (d *description) restore(restore schema.RestoreOperation) {
	forecast := d.forecastRestore(restore)
	d.restores(restore)
	d.restoreSteps(restore, forecast)
	d.restoreLoses(restore, forecast)
	if forecast != nil && forecast.Refuse != "" {
		d.block("%s", forecast.Refuse)
	}
	if !restore.BumpsRevision() {
		d.warn("revisionBump: false winds etcd's revision back: controllers and pods that watch the API and live through this may be wrong without an error, for as long as they run; " +
			"kubelets, kube-proxy, cilium and flannel are begun anew, all others are yours to restart")
	}
	for name := range restore.Without {
		if restore.ControlPlanes[name] != "" {
			d.block("%s is named both as one to restore on and as one that is off for good", name)
		}
	}
	if len(restore.Without) > 0 {
		d.warn("not waited for, because they are off for good: %s; never power them on again as they are", strings.Join(slices.Sorted(maps.Keys(restore.Without)), ", "))
	}
	d.warn("pods run on meanwhile; what they change in Kubernetes waits until its API is back")
	if d.known != nil {
		for _, inside := range d.known.Inside {
			d.warn("%s", inside)
		}
		in := d.restoreInput()
		d.plan.WayOut = recoverCommand(&in, &restore, false)
	}
}

// restoreInput is what the plan knows, as a decision is given it.
func (d *description) restoreInput() Input {
	in := Input{Cluster: d.cluster, State: d.state, Timing: DefaultTiming()}
	if in.State == nil {
		in.State = &statefile.State{}
	}
	if d.known != nil {
		in.Now, in.Seen, in.Mark, in.RecoverFlags = d.known.Now, d.known.Seen, d.known.Mark, d.known.RecoverFlags
	}
	in.NodeName = in.State.AgentOn
	return in
}

// forecastRestore says how it would begin; nil where the machines were not asked.
func (d *description) forecastRestore(restore schema.RestoreOperation) *restoreForecast {
	if d.known == nil || d.known.Seen == nil {
		return nil
	}
	in := d.restoreInput()
	if d.state == nil { // whose they are only the state knows; that they are another's is seen when it begins
		in.State = &statefile.State{Machines: map[string]*statefile.MachineState{}}
		for _, m := range d.cluster.Machines {
			in.State.Machines[m.Metadata.Name] = &statefile.MachineState{Managed: true, TakenFrom: in.Seen[m.Metadata.Name].Config.Owner}
		}
	}
	forecast := forecastRestore(in, restore)
	d.warnOfSilence(in.Seen)
	return &forecast
}

// warnOfSilence names the control planes that the forecast rests on without their having told all.
func (d *description) warnOfSilence(seen map[string]Seen) {
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		one := seen[name]
		switch {
		case one.Mode == talos.ModeUnknown:
			d.warn("what is said here was decided without an answer of %s (%s); the agent looks again before it begins", name, nameOr(one.Problem, "no answer"))
		case one.Problem != "":
			d.warn("what is said here was decided on a part of %s's answer (%s); the agent looks again before it begins", name, one.Problem)
		}
	}
}

// restores says what is restored: the snapshot, and what is known of it.
func (d *description) restores(restore schema.RestoreOperation) {
	say := func(format string, args ...any) {
		d.plan.Restores = append(d.plan.Restores, fmt.Sprintf(format, args...))
	}
	known := d.known
	if known == nil {
		return
	}
	at, _ := backup.ParseName(restore.Snapshot.Name)
	line := fmt.Sprintf("%s: taken %s, %s ago", restore.Snapshot.Name, at.Format(time.RFC3339), inDays(known.Now.Sub(at)))
	s := known.Snapshot
	if s == nil {
		say("%s", line)
		d.warn("the index doesn't vouch for this snapshot (%s): every node of the cluster can make one that opens, so be sure where it is from", known.Unlisted)
		if !restore.AcceptUnlisted {
			d.block("a snapshot that the index doesn't list is restored only with --accept-unlisted")
		}
	} else {
		say("%s; %s; etcd's revision %d; taken from %s", line, bytesize.Text(s.Size), s.Revision, nameOr(s.Member, "a control plane"))
		switch {
		case s.Drill == nil:
			say("no drill has proved it; 'ichor backup drill %s' does, on this machine", s.Name)
		case s.Drill.Passed:
			say("a drill restored it at %s: %d keys", s.Drill.At.UTC().Format(time.RFC3339), s.Drill.Keys)
		default:
			d.block("its last drill failed at %s: %s; take another snapshot, or drill it again if that was this machine's fault", s.Drill.At.UTC().Format(time.RFC3339), s.Drill.Problem)
		}
	}
	if known.Newer > 0 {
		say("it is not the newest: %s newer ('ichor backup list' names all)", isOrAre(known.Newer, "listed snapshot"))
	}
	if p := known.Proved; p != nil && p.Name != restore.Snapshot.Name {
		say("the newest that a drill has proved is %s, taken %s ago", p.Name, inDays(known.Now.Sub(p.Time)))
	}
	if known.Opened == nil {
		say("it was not opened here (%s)", nameOr(known.NotOpened, "it was not fetched"))
		return
	}
	say("it was fetched and opened here: %s", holds(*known.Opened))
}

// holds says what a key space holds.
func holds(c keyspace.Counts) string {
	text := fmt.Sprintf("%d keys", c.Keys)
	var parts []string
	for _, resource := range []string{"nodes", "namespaces", "pods", "deployments", "services", "configmaps", "secrets"} {
		if n := c.Resources[resource]; n > 0 {
			if n == 1 {
				resource = strings.TrimSuffix(resource, "s")
			}
			parts = append(parts, fmt.Sprintf("%d %s", n, resource))
		}
	}
	if len(parts) > 0 {
		text += ", among them " + strings.Join(parts, ", ")
	}
	return text
}

// restoreSteps says what is done.
func (d *description) restoreSteps(restore schema.RestoreOperation, forecast *restoreForecast) {
	names := slices.Sorted(maps.Keys(restore.ControlPlanes))
	raised := "its revision raised so that whatever lives through this reads everything anew"
	if !restore.BumpsRevision() {
		raised = "its revision left as it is"
	}
	d.step("nothing is changed before the snapshot %s was fetched, opened and compared with its signed digest; where etcd answers, a snapshot of now is stored first, so that the "+
		"restore can be undone", restore.Snapshot.Name)
	switch {
	case forecast == nil:
		d.step("etcd's data is taken from the control planes: gently where etcd is healthy with two or more members, when all but one leave it, and that one is reset (EPHEMERAL is wiped); "+
			"else all of them are reset (%s)", strings.Join(names, ", "))
		d.step("the snapshot is restored on one of them, %s, and compared with what was stored", raised)
		d.step("the others join that; those that left are rebooted for it, one at a time")
		why := "the machines were not asked"
		if d.known != nil && d.known.NotAsked != "" {
			why = d.known.NotAsked
		}
		d.warn("which of the two ways it takes is decided when it begins (%s)", why)
	case forecast.Machines == nil:
	case forecast.Holder != "":
		left := slices.DeleteFunc(slices.Clone(forecast.Machines), func(name string) bool { return name == forecast.Holder })
		back := slices.DeleteFunc(slices.Clone(left), func(name string) bool { return name == forecast.Target })
		d.step("it goes gently, because etcd is healthy with %d members: %s out of etcd, one at a time, and keep all but their etcd data", len(forecast.Machines), goOrGoes(left))
		d.step("a minute later, when their API servers are gone, %s is reset: its EPHEMERAL is wiped, and with it the last of the old etcd; until then a cancel has the others join it again", forecast.Holder)
		d.step("%s gets the snapshot and recovers from it, %s; what it began with is compared with the snapshot", forecast.Target, raised)
		if len(back) > 0 {
			d.step("%s joins it by itself; %s rebooted for it, one at a time", forecast.Holder, isOrAreList(back))
		} else {
			d.step("%s joins it", forecast.Holder)
		}
	default:
		d.step("all is wiped, because %s: %s reset in one pass (EPHEMERAL)", forecast.Full, isOrAreList(forecast.Machines))
		d.step("%s gets the snapshot and recovers from it, %s; what it began with is compared with the snapshot", forecast.Target, raised)
		if len(forecast.Machines) > 1 {
			d.step("the others join it, one at a time")
		}
	}
	d.step("when the Kubernetes API answers, the kubelets of machines that were neither wiped nor rebooted are restarted, and their pods of kube-proxy, cilium and " +
		"kube-flannel are replaced one by one; what doesn't come right within ten minutes is said, and fails nothing")
	d.step("%s", lasts(len(names), forecast))
}

// lasts says how long a restore takes: by how many times it waits for a boot, and for a member to join.
func lasts(members int, forecast *restoreForecast) string {
	// A boot of a machine takes 2 to 5 minutes, a join one, the API servers and the recovery itself two.
	boots := 1
	if forecast == nil || forecast.Holder != "" {
		boots = max(1, members-1)
	}
	least, most := boots*2+members-1+2, boots*5+members-1+2
	return fmt.Sprintf("expect %d to %d minutes, if a machine boots in 2 to 5; the Kubernetes API is away for most of that. It pauses, with the reason, where etcd has not recovered "+
		"after an hour, and after two and a half in all", least, most)
}

// restoreLoses says what is lost for good.
func (d *description) restoreLoses(restore schema.RestoreOperation, forecast *restoreForecast) {
	say := func(format string, args ...any) { d.plan.Lost = append(d.plan.Lost, fmt.Sprintf(format, args...)) }
	since := "since the snapshot"
	if at, ok := backup.ParseName(restore.Snapshot.Name); ok {
		since = "since " + at.Format(time.RFC3339)
		if d.known != nil {
			since += " (" + inDays(d.known.Now.Sub(at)) + ")"
		}
	}
	say("everything that was written to the Kubernetes API of %s %s; what was deleted since comes back", d.cluster.Name(), since)
	wiped := "on the control planes that are wiped: one of them where etcd is healthy, else all"
	if forecast != nil && len(forecast.Wiped) > 0 {
		wiped = "on " + strings.Join(forecast.Wiped, ", ")
	}
	takes := d.cluster.Object.Spec.ControlPlanesSchedulable()
	if takes {
		say("what pods keep %s: local and hostPath volumes, emptyDirs, images and logs (EPHEMERAL); workers keep theirs", wiped)
	} else {
		say("images, logs and what static pods keep %s (EPHEMERAL); workers keep theirs", wiped)
	}
	if takes && restore.LocalDataLoss != localDataLossAccepted {
		d.block("pods may run on the control planes of %s, and that what they keep there is lost must be accepted: --local-data-loss accepted", d.cluster.Name())
	}
	d.changedSince(say)
}

// changedSince compares the snapshot's Nodes with the machines that Git has.
func (d *description) changedSince(say func(string, ...any)) {
	if d.known == nil || d.known.Opened == nil {
		return
	}
	nodes := d.known.Opened.Nodes
	have := map[string]bool{}
	var joined, gone []string
	for _, m := range d.cluster.Machines {
		if !m.Spec.Approved || d.removed(m.Metadata.Name) {
			continue
		}
		node := m.Metadata.Name
		if m.Spec.Hostname != "" {
			node = m.Spec.Hostname
		} else if d.state != nil && d.state.Machines[node] != nil && d.state.Machines[node].Hostname != "" {
			node = d.state.Machines[node].Hostname
		}
		have[node] = true
		if !slices.Contains(nodes, node) {
			joined = append(joined, node)
		}
	}
	for _, node := range nodes {
		if !have[node] {
			gone = append(gone, node)
		}
	}
	switch {
	case len(nodes) == 0:
		say("the snapshot holds no Node: it is from before any machine joined Kubernetes, or of an etcd that something else used")
	case len(joined)+len(gone) == 0:
		say("no machine came or went since: the snapshot's %s those that Git has", isOrAre(len(nodes), "Node"))
	}
	if len(nodes) > 0 && len(joined) > 0 {
		say("of machines that joined since, what Kubernetes knows: %s; their kubelets register them again by themselves, without labels, taints and cordons that were put on by hand",
			someOf(joined))
	}
	if len(gone) > 0 {
		d.warn("the Nodes of machines that left since come back, not Ready: %s; delete them afterwards (kubectl delete node)", someOf(gone))
	}
}

// someOf names the first of many.
func someOf(names []string) string {
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

func goOrGoes(names []string) string {
	if len(names) == 1 {
		return names[0] + " goes"
	}
	return strings.Join(names, ", ") + " go"
}

func isOrAreList(names []string) string {
	if len(names) == 1 {
		return names[0] + " is"
	}
	return strings.Join(names, ", ") + " are"
}

func isOrAre(n int, what string) string {
	if n == 1 {
		return numbered(n, what) + " is"
	}
	return numbered(n, what) + " are"
}

// inDays is a duration for people: its two largest units.
func inDays(d time.Duration) string {
	hours, minutes := int(d.Hours()), int(d.Minutes())
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case hours < 1:
		return fmt.Sprintf("%dm", minutes)
	case hours < 48:
		return fmt.Sprintf("%dh%02dm", hours, minutes%60)
	}
	return fmt.Sprintf("%dd%dh", hours/24, hours%24)
}
