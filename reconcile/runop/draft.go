package runop

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// DefaultLife is how long an operation may wait for its start unless another time is asked for.
const DefaultLife = 24 * time.Hour

// Draft is an operation that is written and not signed yet.
type Draft struct {
	Operation *schema.TalosOperation
	Target    *Target
	// Path is where the file stands in the repository, Data what stands in it.
	Path string
	Data []byte
	// Override says that the signature must be under the override namespace.
	Override bool
}

// Options are what a draft is written with.
type Options struct {
	Now time.Time
	// Folder is where operations stand in the repository.
	Folder string
	// State is what is remembered of the cluster; nil where it wasn't read.
	State *statefile.State
	// Taken says whether a name is used already.
	Taken func(name string) bool
}

// Write writes the file of an operation.
func Write(target *Target, request Request, options Options) (*Draft, error) {
	override, err := target.complete(&request, options.State)
	if err != nil {
		return nil, err
	}
	spec, err := specOf(target, request, options)
	if err != nil {
		return nil, err
	}
	override = override || spec.NeedsOverride()
	if err := checkLife(request.Life, spec, override); err != nil {
		return nil, err
	}
	name := nameFor(request, target, options)
	data := file(name, spec)
	op, refusal := operation.Read(name+".yaml", data)
	if refusal != nil {
		return nil, usage("correct what was given", "the operation can't be written: %s", refusal.Message)
	}
	if op.Spec.Reason != request.Reason {
		return nil, usage("write it in one line", "the reason holds a line's end, which would be read as a blank")
	}
	if refusal := operation.CheckTimes(op.Spec, override, options.Now); refusal != nil {
		return nil, usage("give another --expires", "%s", refusal.Message)
	}
	op.Source.File = path.Join(options.Folder, name+".yaml")
	return &Draft{Operation: op, Target: target, Path: op.Source.File, Data: data, Override: override}, nil
}

func checkLife(life time.Duration, spec schema.OperationSpec, override bool) error {
	most, why := operation.MaxLife(spec, override)
	switch {
	case life < time.Minute:
		return usage("give --expires 24h", "the operation would expire after %s, before an agent could look at it", life)
	case life > most:
		return usage("give a shorter --expires", "the operation would wait %s, and %s", life, why)
	}
	return nil
}

// specOf says what the operation asks for.
func specOf(target *Target, request Request, options Options) (schema.OperationSpec, error) {
	cluster := target.Cluster.Object
	created := options.Now.UTC().Truncate(time.Second)
	spec := schema.OperationSpec{ClusterRef: schema.ClusterRef{Name: cluster.Metadata.Name, ID: cluster.Spec.ID}, Kind: request.Kind, CreatedAt: created,
		ExpiresAt: created.Add(request.Life.Truncate(time.Second)), Reason: request.Reason}
	switch request.Kind {
	case schema.OperationNode, schema.OperationAdopt, schema.OperationBootstrap:
		ref, err := target.ref(request, options.State)
		if err != nil {
			return spec, err
		}
		switch request.Kind {
		case schema.OperationAdopt:
			spec.Adopt = &schema.MachineOperation{MachineRef: ref}
		case schema.OperationBootstrap:
			spec.Bootstrap = &schema.BootstrapOperation{MachineRef: ref, Confirm: request.Confirm}
		default:
			spec.Node = &schema.NodeOperation{MachineRef: ref, Action: request.Action, Service: request.Service, AllowLeader: request.AllowLeader,
				Confirm: request.Confirm, Gone: request.Gone, Then: request.Then}
		}
	case schema.OperationEtcdBackup:
		spec.EtcdBackup = &schema.EtcdBackupOperation{BackupRef: schema.NameRef{Name: target.Backup.Metadata.Name}}
	case schema.OperationEtcdRestore:
		restore, err := target.restore(request, options.State)
		if err != nil {
			return spec, err
		}
		spec.EtcdRestore = restore
	case schema.OperationResume:
		spec.Resume = &schema.ResumeOperation{Operation: request.Target, Digest: request.Digest, Pause: request.Pause}
	case schema.OperationCancel:
		spec.Cancel = &schema.CancelOperation{Operation: request.Target, Digest: request.Digest}
	default:
		return spec, fmt.Errorf("operations of kind %s are not written by run-op", request.Kind)
	}
	return spec, nil
}

// ref names the machine as Git declares it, else as the state remembers it.
func (t *Target) ref(request Request, state *statefile.State) (schema.MachineRef, error) {
	ref := schema.MachineRef{Name: request.Target, UUID: strings.ToLower(request.UUID)}
	switch {
	case t.Machine != nil && ref.UUID != "" && !strings.EqualFold(t.Machine.Spec.UUID, ref.UUID):
		return ref, usage("leave --uuid out, or name the machine that is meant", "Git declares %s with the UUID %s, and --uuid is %s", ref.Name, t.Machine.Spec.UUID, ref.UUID)
	case t.Machine != nil:
		ref.UUID = t.Machine.Spec.UUID
	case ref.UUID == "" && state != nil && state.Machines[ref.Name] != nil && state.Machines[ref.Name].UUID != "":
		ref.UUID = state.Machines[ref.Name].UUID
	case ref.UUID == "" && state != nil:
		return ref, usage("look at ichor status, or give --uuid", "neither Git nor the state knows a machine %s of %s", ref.Name, t.Cluster.Name())
	case ref.UUID == "":
		return ref, usage("give --state URL, which remembers it, or --uuid", "%s is not in Git any more, and an operation names a machine by its UUID too", ref.Name)
	}
	return ref, nil
}

// restore names every wanted control plane with the UUID that Git declares: those that are restored on, and those that are off for good.
func (t *Target) restore(request Request, state *statefile.State) (*schema.RestoreOperation, error) {
	asked := request.Restore
	restore := &schema.RestoreOperation{BackupRef: schema.NameRef{Name: t.Backup.Metadata.Name}, Snapshot: asked.Snapshot, Confirm: request.Confirm,
		ControlPlanes: map[string]string{}, LocalDataLoss: asked.LocalDataLoss, AcceptUnlisted: asked.AcceptUnlisted}
	if asked.PlainRevision {
		no := false
		restore.RevisionBump = &no
	}
	for _, m := range t.Cluster.Machines {
		name := m.Metadata.Name
		removed := state != nil && state.Machines[name] != nil && state.Machines[name].Removed
		off := slices.Contains(asked.Without, name)
		if m.Spec.Role != schema.RoleControlPlane || !m.Spec.Approved && !off || removed {
			continue // one that isn't approved may have etcd data all the same, and be off for good
		}
		if !off {
			restore.ControlPlanes[name] = m.Spec.UUID
			continue
		}
		if restore.Without == nil {
			restore.Without = map[string]string{}
		}
		restore.Without[name] = m.Spec.UUID
	}
	for _, name := range asked.Without {
		if restore.Without[name] == "" {
			return nil, usage("leave it out, or name one of them", "--without %s names none of the control planes of %s", printable.Text(name), t.Cluster.Name())
		}
	}
	if len(restore.ControlPlanes) == 0 {
		return nil, usage("for a cluster that is gone: ichor restore --recover-cluster", "no control plane of %s is left to restore on", t.Cluster.Name())
	}
	return restore, nil
}

// longestName is that of an RFC 1123 label.
const longestName = 63

var notInNames = regexp.MustCompile(`[^a-z0-9-]+`)

// nameFor gives <yyyymmdd>-<action>-<target>, with a number behind it where that is taken.
func nameFor(request Request, target *Target, options Options) string {
	what := string(request.Kind)
	if request.Kind == schema.OperationNode {
		what = request.Action
	}
	on := request.Target
	if request.Kind == schema.OperationEtcdRestore {
		on = target.Cluster.Name() // what is restored is the cluster
	} else if target.Backup != nil {
		on = target.Backup.Metadata.Name
	}
	base := notInNames.ReplaceAllString(strings.ToLower(options.Now.UTC().Format("20060102")+"-"+what+"-"+on), "-")
	for n := 1; ; n++ {
		number := ""
		if n > 1 {
			number = fmt.Sprintf("-%d", n)
		}
		name := strings.TrimRight(base[:min(len(base), longestName-len(number))], "-") + number
		if options.Taken == nil || !options.Taken(name) {
			return name
		}
	}
}

// file writes the document in the order of its documentation. A text that a reader of YAML could take for something else stands
// in quotes.
func file(name string, spec schema.OperationSpec) []byte {
	w := &writer{}
	w.line(0, "apiVersion", schema.APIVersion)
	w.line(0, "kind", schema.KindOperation)
	w.open(0, "metadata")
	w.line(1, "name", name)
	w.open(0, "spec")
	w.open(1, "clusterRef")
	w.line(2, "name", spec.ClusterRef.Name)
	w.line(2, "id", spec.ClusterRef.ID)
	w.line(1, "kind", string(spec.Kind))
	w.plain(1, "createdAt", spec.CreatedAt.Format(time.RFC3339))
	w.plain(1, "expiresAt", spec.ExpiresAt.Format(time.RFC3339))
	w.line(1, "reason", spec.Reason)
	w.open(1, spec.Kind.Body())
	w.body(spec)
	return []byte(w.text.String())
}

type writer struct{ text strings.Builder }

func (w *writer) body(spec schema.OperationSpec) {
	switch {
	case spec.Node != nil:
		w.machine(spec.Node.MachineRef)
		w.line(2, "action", spec.Node.Action)
		w.line(2, "service", spec.Node.Service)
		w.flag(2, "allowLeader", spec.Node.AllowLeader)
		w.line(2, "confirm", spec.Node.Confirm)
		w.flag(2, "gone", spec.Node.Gone)
		w.line(2, "then", spec.Node.Then)
	case spec.EtcdBackup != nil:
		w.open(2, "backupRef")
		w.line(3, "name", spec.EtcdBackup.BackupRef.Name)
	case spec.EtcdRestore != nil:
		w.restore(*spec.EtcdRestore)
	case spec.Adopt != nil:
		w.machine(spec.Adopt.MachineRef)
	case spec.Bootstrap != nil:
		w.machine(spec.Bootstrap.MachineRef)
		w.line(2, "confirm", spec.Bootstrap.Confirm)
	case spec.Resume != nil:
		w.line(2, "operation", spec.Resume.Operation)
		w.line(2, "digest", spec.Resume.Digest)
		w.plain(2, "pause", fmt.Sprint(spec.Resume.Pause))
	case spec.Cancel != nil:
		w.line(2, "operation", spec.Cancel.Operation)
		w.line(2, "digest", spec.Cancel.Digest)
	}
}

func (w *writer) restore(r schema.RestoreOperation) {
	w.open(2, "backupRef")
	w.line(3, "name", r.BackupRef.Name)
	w.open(2, "snapshot")
	w.line(3, "name", r.Snapshot.Name)
	w.line(3, "sha256", r.Snapshot.SHA256)
	w.line(2, "confirm", r.Confirm)
	w.uuids("controlPlanes", r.ControlPlanes)
	w.uuids("without", r.Without)
	w.line(2, "localDataLoss", r.LocalDataLoss)
	if r.RevisionBump != nil {
		w.plain(2, "revisionBump", fmt.Sprint(*r.RevisionBump))
	}
	w.flag(2, "acceptUnlisted", r.AcceptUnlisted)
}

// uuids writes machines with their UUIDs, sorted by name.
func (w *writer) uuids(key string, byName map[string]string) {
	if len(byName) == 0 {
		return
	}
	w.open(2, key)
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		w.line(3, scalar(name), byName[name])
	}
}

func (w *writer) machine(ref schema.MachineRef) {
	w.open(2, "machineRef")
	w.line(3, "name", ref.Name)
	w.line(3, "uuid", ref.UUID)
}

func (w *writer) plain(depth int, key, value string) {
	fmt.Fprintf(&w.text, "%s%s: %s\n", strings.Repeat("  ", depth), key, value)
}

func (w *writer) open(depth int, key string) {
	fmt.Fprintf(&w.text, "%s%s:\n", strings.Repeat("  ", depth), key)
}

// line writes a text; an empty one is left out.
func (w *writer) line(depth int, key, value string) {
	if value != "" {
		w.plain(depth, key, scalar(value))
	}
}

func (w *writer) flag(depth int, key string, value bool) {
	if value {
		w.plain(depth, key, "true")
	}
}

var (
	// safe is a text that every reader of YAML takes for one: it begins with a letter, and is none of the words below.
	safe  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9./-]*$`)
	words = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}
)

func scalar(value string) string {
	if safe.MatchString(value) && !slices.Contains(words, strings.ToLower(value)) {
		return value
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
}
