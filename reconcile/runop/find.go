package runop

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// Request is what a person asks for.
type Request struct {
	Kind schema.OperationKind
	// Action is of kind node. Target is the machine, backup or operation; of a backup it may be left out where there is one only.
	Action, Target string
	// Cluster may be left out where the target says which one it is, or there is one only.
	Cluster string
	// Reason is shown beside the operation.
	Reason string
	// Life is how long it may wait for its start.
	Life time.Duration
	// Confirm is the name that was typed.
	Confirm string

	// Of kind node.
	Service, Then     string
	AllowLeader, Gone bool
	// UUID is of a machine that Git doesn't have any more.
	UUID string
	// Of resume and cancel: what the state says where they are left out.
	Digest string
	Pause  int
	// Restore is of a restore.
	Restore RestoreRequest
}

// RestoreRequest is what a person asks for who wants a restore.
type RestoreRequest struct {
	// Snapshot is which one, with the digest of the object as it is stored.
	Snapshot schema.SnapshotRef
	// Without names the control planes that are off for good.
	Without []string
	// LocalDataLoss is "accepted", or empty.
	LocalDataLoss string
	// PlainRevision leaves etcd's revision as the snapshot has it.
	PlainRevision bool
	// AcceptUnlisted permits a snapshot that the index doesn't list.
	AcceptUnlisted bool
}

// Target is what a request means in a fleet.
type Target struct {
	Cluster reconcile.Cluster
	// Machine is nil where Git doesn't have it, or nothing is done to one.
	Machine *schema.TalosMachine
	Backup  *schema.TalosEtcdBackup
	// Named is the file in Git of the operation that a resume or cancel names; nil where it isn't there.
	Named *schema.TalosOperation
}

// UsageError is a request that names something that isn't there, or leaves out what must be said.
type UsageError struct{ Message, Hint string }

func (e *UsageError) Error() string { return e.Message }

func usage(hint, format string, args ...any) error {
	return &UsageError{Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Find finds what a request means. commit is the fleet's.
func Find(fleet *schema.Fleet, commit string, request Request) (*Target, error) {
	cluster, err := findCluster(fleet, request)
	if err != nil {
		return nil, err
	}
	name := cluster.Metadata.Name
	target := &Target{Cluster: reconcile.ClusterOf(fleet, name, commit)}
	switch request.Kind {
	case schema.OperationNode, schema.OperationAdopt, schema.OperationBootstrap:
		target.Machine = target.Cluster.Machine(request.Target)
		if target.Machine == nil && request.Action != schema.ActionRemove {
			return nil, usage("name one of them", "%s has no machine %s; it has %s", name, printable.Text(request.Target), machineNames(target.Cluster.Machines))
		}
	case schema.OperationEtcdBackup, schema.OperationEtcdRestore:
		if target.Backup, err = findBackup(target.Cluster, request.Target); err != nil {
			return nil, err
		}
	case schema.OperationResume, schema.OperationCancel:
		target.Named = findOperation(fleet, name, request.Target)
	}
	return target, nil
}

func findCluster(fleet *schema.Fleet, request Request) (*schema.TalosCluster, error) {
	var names []string
	for _, c := range fleet.Clusters {
		names = append(names, c.Metadata.Name)
	}
	slices.Sort(names)
	has := strings.Join(names, ", ")
	if len(names) == 0 {
		return nil, usage("'ichor validate' says what can't be read; --path names the folder of the fleet", "the repository holds no TalosCluster that can be read")
	}
	if request.Cluster != "" {
		if c := fleet.Cluster(request.Cluster); c != nil {
			return c, nil
		}
		return nil, usage("name one of them with --cluster", "the repository holds no TalosCluster %s; it holds %s", printable.Text(request.Cluster), has)
	}
	if len(names) == 1 {
		return fleet.Clusters[0], nil
	}
	found := clustersWith(fleet, request)
	switch {
	case len(found) == 1 && fleet.Cluster(found[0]) != nil:
		return fleet.Cluster(found[0]), nil
	case len(found) > 1:
		return nil, usage("name one with --cluster", "%s is in several clusters: %s", printable.Text(request.Target), strings.Join(found, ", "))
	}
	return nil, usage("name the cluster with --cluster", "none of the clusters (%s) has %s", has, what(request))
}

func what(request Request) string {
	if request.Target == "" {
		return "a TalosEtcdBackup that could be meant"
	}
	return printable.Text(request.Target)
}

// clustersWith are the clusters that have what a request names.
func clustersWith(fleet *schema.Fleet, request Request) []string {
	var found []string
	add := func(cluster, name string) {
		if name == request.Target && !slices.Contains(found, cluster) {
			found = append(found, cluster)
		}
	}
	switch request.Kind {
	case schema.OperationEtcdBackup, schema.OperationEtcdRestore:
		for _, b := range fleet.Backups {
			add(b.Spec.ClusterRef.Name, b.Metadata.Name)
		}
	case schema.OperationResume, schema.OperationCancel:
		for _, o := range fleet.Operations {
			add(o.Spec.ClusterRef.Name, o.Metadata.Name)
		}
	default:
		for _, m := range fleet.Machines {
			add(m.Spec.ClusterRef.Name, m.Metadata.Name)
		}
	}
	slices.Sort(found)
	return found
}

func machineNames(machines []*schema.TalosMachine) string {
	const most = 20
	var names []string
	for _, m := range machines {
		names = append(names, m.Metadata.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

func findBackup(cluster reconcile.Cluster, name string) (*schema.TalosEtcdBackup, error) {
	var names []string
	for _, b := range cluster.Backups {
		if b.Metadata.Name == name || name == "" && len(cluster.Backups) == 1 {
			return b, nil
		}
		names = append(names, b.Metadata.Name)
	}
	switch {
	case len(names) == 0:
		return nil, usage("write one: docs/kinds/talosetcdbackup.md", "%s has no TalosEtcdBackup", cluster.Name())
	case name == "":
		return nil, usage("name one of them", "%s has %d backups: %s", cluster.Name(), len(names), strings.Join(names, ", "))
	}
	return nil, usage("name one of them", "%s has no TalosEtcdBackup %s; it has %s", cluster.Name(), printable.Text(name), strings.Join(names, ", "))
}

func findOperation(fleet *schema.Fleet, cluster, name string) *schema.TalosOperation {
	for _, o := range fleet.Operations {
		if o.Spec.ClusterRef.Name == cluster && o.Metadata.Name == name {
			return o
		}
	}
	return nil
}

// complete fills in what a resume or cancel must say and was not given: from the state, else from the file in Git.
func (t *Target) complete(request *Request, state *statefile.State) (override bool, err error) {
	if request.Kind != schema.OperationResume && request.Kind != schema.OperationCancel {
		return false, nil
	}
	digest := ""
	if t.Named != nil {
		digest, override = operation.Digest(t.Named.Raw), t.Named.Spec.NeedsOverride()
	}
	if op := inState(state, request.Target, request.Digest); op != nil {
		if digest != "" && digest != op.Digest {
			return false, usage("look at both, and put the file back", "the file of %s in Git has the digest %.12s, and the agent accepted %.12s", op.Name, digest, op.Digest)
		}
		digest, override = op.Digest, op.Override
		if request.Pause == 0 {
			request.Pause = op.Pause
		}
	}
	if request.Digest == "" {
		request.Digest = digest
	}
	switch {
	case request.Digest == "":
		return false, usage("give --state URL, or --digest; 'ichor op list' names the operations", "neither Git nor the state knows an operation %s of %s",
			printable.Text(request.Target), t.Cluster.Name())
	case request.Kind == schema.OperationResume && request.Pause == 0 && state != nil:
		return false, usage("'ichor op show' says where it stands", "%s has never paused, so there is nothing to resume", printable.Text(request.Target))
	case request.Kind == schema.OperationResume && request.Pause == 0:
		return false, usage("give --state URL, or --pause N as 'ichor op show' says", "which pause of %s is to end isn't known", printable.Text(request.Target))
	}
	return override, nil
}

// inState finds an accepted operation by its name, and its digest where that is given.
func inState(state *statefile.State, name, digest string) *statefile.OperationState {
	if state == nil {
		return nil
	}
	for _, op := range state.Operations {
		if op.Name == name && (digest == "" || op.Digest == digest) && !op.AcceptedAt.IsZero() {
			return op
		}
	}
	return nil
}
