package web

import (
	"fmt"
	"net/url"
	"slices"
	"time"

	"ichor.maesh.dev/internal/bytesize"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

const (
	// fullPage is how many clusters stand on the page in full. Of more, those in trouble do, with the machines that aren't
	// Ready; each has a page of its own.
	fullPage = 4
	// longestText bounds one sentence on the page; the API has all of it.
	longestText = 1500
	// mostFindings and mostSnapshots bound lists on the page.
	mostFindings, mostSnapshots = 20, 5
)

// page is what the template is given. Every text in it was cleaned before.
type page struct {
	Title, Only string
	Now         instant
	Refresh     int
	Agent       AgentStatus
	// Works says that this agent holds a lease; else it stands by.
	Works    bool
	LastPoll instant
	// Clusters are in the order of need: those in trouble first.
	Clusters []clusterView
	Ready    int
	// Backups are how many backups aren't Ready.
	Backups int
}

type clusterView struct {
	reconcile.ClusterStatus
	Path string
	Full bool
	// Troubled says that something of it needs a person: itself, a backup, a paused operation, or a revision that is refused.
	Troubled      bool
	Mine          bool
	ReadyMachines int
	// Shown are the machines that stand on the page, and Others how many Ready ones don't.
	Shown      []reconcile.MachineStatus
	Others     int
	Lock       *lockView
	Waiting    *waitingView
	Findings   list
	Backups    []backupView
	Operations []operationView
}

type lockView struct {
	statefile.Lock
	Since instant
}

type waitingView struct {
	reconcile.IntentStatus
	Since instant
}

type backupView struct {
	reconcile.BackupStatus
	LastSuccess instant
	DrillAt     instant
	Snapshots   []snapshotView
	More        int
}

type snapshotView struct {
	reconcile.SnapshotStatus
	Time instant
	Size string
}

type operationView struct {
	reconcile.OperationStatus
	StartedAt, FinishedAt, FirstSeen instant
	Steps                            []stepView
	Bad                              bool
	// Why is the reason of a refusal or a pause where the message doesn't say it.
	Why string
}

type stepView struct {
	Name string
	At   instant
}

// list is the beginning of a list, and how many more there are.
type list struct {
	Items []string
	More  int
}

// instant is a time as people read it. The zero value is a time that never was.
type instant struct {
	Machine, UTC, Age string
}

func newPage(now time.Time, only string, refresh int, agent AgentStatus, status *reconcile.Status) page {
	p := page{Only: only, Refresh: refresh, Agent: agent, Now: newInstant(now, now), LastPoll: parsedInstant(agent.Git.LastPoll, now)}
	p.Works = slices.ContainsFunc(agent.Leases, func(l LeaseStatus) bool { return l.Held })
	for _, c := range status.Clusters {
		v := newCluster(now, c)
		everything := only != "" || len(status.Clusters) <= fullPage
		v.Full = everything || v.Troubled
		v.Shown = v.Machines
		if !everything {
			v.Others = v.ReadyMachines
			v.Shown = v.Machines[:len(v.Machines)-v.Others] // those that aren't Ready come first
		}
		v.Mine = slices.ContainsFunc(agent.Leases, func(l LeaseStatus) bool { return l.Held && l.Holder == c.Lease.Holder })
		if c.Ready {
			p.Ready++
		}
		for _, b := range c.Backups {
			if !b.Ready {
				p.Backups++
			}
		}
		p.Clusters = append(p.Clusters, v)
	}
	slices.SortStableFunc(p.Clusters, func(a, b clusterView) int { return troubledFirst(!a.Troubled, !b.Troubled) })
	p.Title = p.title()
	return p
}

// title is the page in a line, which a browser's tab shows too.
func (p page) title() string {
	title := fmt.Sprintf("%d of %d clusters Ready", p.Ready, len(p.Clusters))
	switch {
	case len(p.Clusters) == 0:
		return "No cluster is known"
	case len(p.Clusters) == 1 && p.Ready == 1:
		title = p.Clusters[0].Name + " is Ready"
	case len(p.Clusters) == 1:
		title = p.Clusters[0].Name + " is not Ready"
	}
	switch p.Backups {
	case 0:
		return title
	case 1:
		return title + "; a backup is not"
	}
	return fmt.Sprintf("%s; %d backups are not", title, p.Backups)
}

func newCluster(now time.Time, c reconcile.ClusterStatus) clusterView {
	c.Message = shortened(c.Message)
	v := clusterView{ClusterStatus: c, Path: "/clusters/" + url.PathEscape(c.Name)}
	for n := range c.Machines {
		c.Machines[n].Message = shortened(c.Machines[n].Message)
		if c.Machines[n].Ready {
			v.ReadyMachines++
		}
	}
	slices.SortStableFunc(c.Machines, func(a, b reconcile.MachineStatus) int { return troubledFirst(a.Ready, b.Ready) })
	if c.Lock != nil {
		v.Lock = &lockView{*c.Lock, newInstant(c.Lock.Since, now)}
	}
	if c.Waiting != nil {
		v.Waiting = &waitingView{*c.Waiting, parsedInstant(c.Waiting.Since, now)}
	}
	v.Troubled = !c.Ready || c.Revision.Refused != nil ||
		slices.ContainsFunc(c.Operations, func(o reconcile.OperationStatus) bool { return o.Phase == "Paused" }) ||
		slices.ContainsFunc(c.Backups, func(b reconcile.BackupStatus) bool { return !b.Ready })
	if r := c.Revision.Refused; r != nil {
		v.Findings = newList(r.Findings)
	}
	for _, b := range c.Backups {
		v.Backups = append(v.Backups, newBackup(now, b))
	}
	for _, o := range c.Operations {
		v.Operations = append(v.Operations, newOperation(now, o))
	}
	slices.Reverse(v.Operations) // the newest first
	return v
}

func newOperation(now time.Time, o reconcile.OperationStatus) operationView {
	v := operationView{OperationStatus: o, StartedAt: parsedInstant(o.StartedAt, now), FinishedAt: parsedInstant(o.FinishedAt, now),
		FirstSeen: parsedInstant(o.FirstSeen, now), Bad: o.Phase == "Paused" || o.Phase == "Refused"}
	v.Message, v.WayOut = shortened(o.Message), shortened(o.WayOut)
	if o.FailureReason != "" && o.FailureReason != o.Message {
		v.Why = shortened(o.FailureReason)
	}
	for _, step := range o.Steps {
		v.Steps = append(v.Steps, stepView{Name: step.Name, At: parsedInstant(step.At, now)})
	}
	return v
}

// troubledFirst orders what isn't Ready before what is.
func troubledFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func newBackup(now time.Time, b reconcile.BackupStatus) backupView {
	b.Message = shortened(b.Message)
	v := backupView{BackupStatus: b, LastSuccess: parsedInstant(b.LastSuccess, now), More: max(len(b.Snapshots)-mostSnapshots, 0)}
	if b.Drill != nil {
		v.DrillAt = newInstant(b.Drill.At, now)
		b.Drill.Problem = shortened(b.Drill.Problem)
	}
	for _, s := range b.Snapshots[:len(b.Snapshots)-v.More] {
		v.Snapshots = append(v.Snapshots, snapshotView{s, parsedInstant(s.Time, now), bytesize.Text(s.Size)})
	}
	return v
}

func newList(items []string) list {
	l := list{More: max(len(items)-mostFindings, 0)}
	for _, item := range items[:len(items)-l.More] {
		l.Items = append(l.Items, shortened(item))
	}
	return l
}

// shortened cuts a text that nobody would read to its end.
func shortened(text string) string {
	if len(text) <= longestText {
		return text
	}
	cut := longestText
	for cut > 0 && text[cut]&0xc0 == 0x80 {
		cut--
	}
	return text[:cut] + "…"
}

func parsedInstant(text string, now time.Time) instant {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return instant{}
	}
	return newInstant(at, now)
}

func newInstant(at, now time.Time) instant {
	if at.IsZero() {
		return instant{}
	}
	at = at.UTC()
	return instant{Machine: at.Format(time.RFC3339), UTC: at.Format("2006-01-02 15:04:05 UTC"), Age: age(now.Sub(at))}
}

// age is how long ago something was, in the largest unit that says enough.
func age(d time.Duration) string {
	ago := " ago"
	if d < 0 {
		d, ago = -d, " ahead"
	}
	switch {
	case d < 5*time.Second:
		return "just now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s%s", int(d.Seconds()), ago)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min%s", int(d.Minutes()), ago)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h%s", int(d.Hours()), ago)
	}
	return fmt.Sprintf("%d days%s", int(d.Hours()/24), ago)
}
