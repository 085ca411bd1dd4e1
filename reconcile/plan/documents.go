package plan

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"ichor.maesh.dev/operation"
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
	sentence := fmt.Sprintf("a snapshot of etcd goes to %s at %q (UTC)", where, cmp.Or(b.Spec.Schedule, "0 * * * *"))
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
		namespace := operation.Namespaces(o.Spec, false)[0]
		sign := fmt.Sprintf("it runs only with a signature for the namespace %s beside it (%s.sig)", namespace, o.Source.File)
		if kind := o.Spec.Kind; kind == schema.OperationResume || kind == schema.OperationCancel {
			namespace, sign = "", fmt.Sprintf("it runs only with a signature beside it (%s.sig), for the namespace that the named operation needs", o.Source.File)
		}
		c.out.Operations = append(c.out.Operations, Operation{Name: o.Metadata.Name, Kind: string(o.Spec.Kind), Namespace: namespace,
			Sentence: c.clean(operation.Sentence(o.Spec) + "; " + sign)})
	}
}
