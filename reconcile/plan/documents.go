package plan

import (
	"fmt"
	"reflect"
	"slices"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
)

// documents says what the backups and operations of a change ask for, and which of them the agent leaves alone.
func (c *clusterPlan) documents() {
	before := map[string]*schema.TalosEtcdBackup{}
	for _, b := range backupsOf(c.change.Base, c.name) {
		before[b.Metadata.Name] = b
	}
	var after []string
	for _, b := range backupsOf(c.change.Proposed, c.name) {
		name := b.Metadata.Name
		after = append(after, name)
		was := before[name]
		switch {
		case was == nil:
			c.backup("new", b)
		case !reflect.DeepEqual(was.Spec, b.Spec):
			c.backup("changed", b)
		}
	}
	for _, b := range backupsOf(c.change.Base, c.name) {
		if !slices.Contains(after, b.Metadata.Name) {
			c.out.Backups = append(c.out.Backups, Document{b.Metadata.Name, "removed", c.clean(fmt.Sprintf("no more snapshots are taken for %s; "+
				"those that are there stay where they are", b.Metadata.Name))})
		}
	}
	c.operations()
	for _, f := range reconcile.LeftAlone(c.change.Proposed) {
		if f.Cluster == c.name && c.isNew(f.Kind, f.Name) {
			c.note("%s", f.Message)
		}
	}
}

func backupsOf(fleet *schema.Fleet, cluster string) []*schema.TalosEtcdBackup {
	if fleet == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(fleet.Backups), func(b *schema.TalosEtcdBackup) bool { return b.Spec.ClusterRef.Name != cluster })
}

// isNew says whether a backup or operation is one that this plan speaks of.
func (c *clusterPlan) isNew(kind, name string) bool {
	if kind == schema.KindBackup {
		return slices.ContainsFunc(c.out.Backups, func(d Document) bool { return d.Name == name })
	}
	return slices.ContainsFunc(c.out.Operations, func(o Operation) bool { return o.Name == name })
}

func (c *clusterPlan) backup(change string, b *schema.TalosEtcdBackup) {
	where := "nowhere"
	if s3 := b.Spec.Destination.S3; s3 != nil {
		where = fmt.Sprintf("s3://%s/%s at %s", s3.Bucket, s3.Prefix, s3.Endpoint)
	}
	sentence := fmt.Sprintf("a snapshot of etcd goes to %s at %q (UTC)", where, or(b.Spec.Schedule, "0 * * * *"))
	if b.Spec.Suspend {
		sentence = fmt.Sprintf("it is suspended: no snapshot is taken, and none is pruned in %s", where)
	}
	keep := 24
	if r := b.Spec.Retention; r != nil {
		if r.KeepLast != nil {
			keep = *r.KeepLast
		}
		sentence += fmt.Sprintf("; kept are the last %d, one a day for %d days and one a week for %d weeks", keep, r.KeepDaily, r.KeepWeekly)
	} else {
		sentence += fmt.Sprintf("; the last %d are kept", keep)
	}
	if b.Spec.Drill != nil {
		sentence += fmt.Sprintf("; a restore is drilled at %q", b.Spec.Drill.Schedule)
	}
	c.out.Backups = append(c.out.Backups, Document{b.Metadata.Name, change, c.clean(sentence)})
}

// operations lists those that the base doesn't have.
func (c *clusterPlan) operations() {
	var had []string
	if c.change.Base != nil {
		for _, o := range c.change.Base.Operations {
			if o.Spec.ClusterRef.Name == c.name {
				had = append(had, o.Metadata.Name)
			}
		}
	}
	for _, o := range c.change.Proposed.Operations {
		if o.Spec.ClusterRef.Name != c.name || slices.Contains(had, o.Metadata.Name) {
			continue
		}
		namespace := "ichor-operation@" + c.name
		if o.Spec.NeedsOverride() {
			namespace = "ichor-override@" + c.name
		}
		sentence := operationSentence(o)
		sign := fmt.Sprintf("it runs only with a signature for the namespace %s beside it (%s.sig)", namespace, o.Source.File)
		if kind := o.Spec.Kind; kind == schema.OperationResume || kind == schema.OperationCancel {
			namespace, sign = "", fmt.Sprintf("it runs only with a signature beside it (%s.sig), for the namespace that the named operation needs", o.Source.File)
		}
		c.out.Operations = append(c.out.Operations, Operation{Name: o.Metadata.Name, Kind: string(o.Spec.Kind), Namespace: namespace,
			Sentence: c.clean(sentence + "; " + sign)})
	}
}

// operationSentence says what an operation does.
func operationSentence(o *schema.TalosOperation) string {
	s := o.Spec
	switch {
	case s.Node != nil:
		return nodeSentence(s.Node)
	case s.EtcdBackup != nil:
		return fmt.Sprintf("takes one snapshot now, for the backup %s", s.EtcdBackup.BackupRef.Name)
	case s.EtcdRestore != nil:
		return fmt.Sprintf("puts the snapshot %s of %s in the place of the cluster's etcd: everything since is lost", s.EtcdRestore.Snapshot.Name,
			s.EtcdRestore.BackupRef.Name)
	case s.Adopt != nil:
		return fmt.Sprintf("lets Ichor change %s, which it did not configure", s.Adopt.MachineRef.Name)
	case s.Bootstrap != nil:
		return fmt.Sprintf("bootstraps an empty etcd on %s, although the cluster may have a past", s.Bootstrap.MachineRef.Name)
	case s.Resume != nil:
		return fmt.Sprintf("goes on with %s after its pause %d", s.Resume.Operation, s.Resume.Pause)
	case s.Cancel != nil:
		return fmt.Sprintf("ends %s, which is pending or paused", s.Cancel.Operation)
	}
	return fmt.Sprintf("is of kind %s", s.Kind)
}

func nodeSentence(n *schema.NodeOperation) string {
	name := n.MachineRef.Name
	switch n.Action {
	case schema.ActionReboot:
		return fmt.Sprintf("drains %s, reboots it, and lets it take work again", name)
	case schema.ActionShutdown:
		return fmt.Sprintf("shuts %s down; it stays off until somebody starts it", name)
	case schema.ActionRestartService:
		return fmt.Sprintf("restarts %s on %s", n.Service, name)
	case schema.ActionEtcdDefrag:
		return fmt.Sprintf("defragments the etcd of %s", name)
	case schema.ActionEtcdForfeit:
		return fmt.Sprintf("has the etcd of %s hand its leadership to another member", name)
	case schema.ActionRemove:
		if n.Gone {
			return fmt.Sprintf("removes the etcd member and the Node of %s, which is off for good", name)
		}
		return fmt.Sprintf("drains %s, takes it out of etcd, wipes STATE and EPHEMERAL (%s afterwards), and deletes its Node", name, or(n.Then, "powerOff"))
	}
	return fmt.Sprintf("does %s on %s", n.Action, name)
}
