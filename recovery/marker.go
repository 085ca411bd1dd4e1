package recovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/statefile"
)

// markerVersion is the version of the marker's format that this program reads and writes, markerKind what tells it from another restore's.
const (
	markerVersion = 1
	markerKind    = "recover-cluster"
)

// keptIntents is how many intents of each action on each machine the marker keeps; each counts its attempts itself.
const keptIntents = 4

// Phase is how far a recovery has come.
type Phase string

// The phases.
const (
	// PhaseLeaving: all but the holder leave an etcd that works, so that they lose nothing else.
	PhaseLeaving Phase = "leaving"
	// PhaseConfiguring: every control plane gets a config and is empty, or is made so.
	PhaseConfiguring Phase = "configuring"
	// PhaseRecovering: the target gets the snapshot and recovers from it.
	PhaseRecovering Phase = "recovering"
	// PhaseJoining: the target has recovered; the others join it.
	PhaseJoining Phase = "joining"
	// PhaseReconciling: all have joined; the Kubernetes API answers, and what lived through the restore reads everything anew.
	PhaseReconciling Phase = "reconciling"
	// PhaseCancelling: those that left the old etcd join it again.
	PhaseCancelling Phase = "cancelling"
	// PhaseDone: that is over.
	PhaseDone Phase = backup.MarkerDone
)

// Marker is what a recovery remembers. docs/formats.md describes it field by field.
type Marker struct {
	SchemaVersion int    `json:"schemaVersion"`
	Kind          string `json:"kind"`
	Phase         Phase  `json:"phase"`
	// ID is the recovery's: "recover:" and 16 hex digits, as the cluster lock names it.
	ID      string  `json:"id"`
	Cluster Cluster `json:"cluster"`
	// Operation is the digest of the signed operation that an agent carries out with it; empty for one by command.
	Operation string `json:"operation,omitempty"`
	// Driver is the process that may act. Who finds another one stops.
	Driver statefile.Writer `json:"driver"`
	Began  time.Time        `json:"began"`
	// Resumed is when a person last had it go on, with a resume of the operation or with the command typed again; Pause is the pause of the
	// operation that the resume ended. The limits count from then, else from Began: a process that dies wins no time by it.
	Resumed time.Time `json:"resumed,omitzero"`
	Pause   int       `json:"pause,omitempty"`
	// Ended is when it was done; Cancelled says that a cancel ended it.
	Ended     time.Time `json:"ended,omitzero"`
	Cancelled bool      `json:"cancelled,omitempty"`
	Snapshot  Snapshot  `json:"snapshot"`
	// Machines are the control planes, by name; no other machine but the workers is touched.
	Machines []Machine `json:"machines"`
	// Workers are those whose kubelets are to be right in the end. Nothing but their kubelet is restarted.
	Workers []Machine `json:"workers,omitempty"`
	// Target is the one that recovers.
	Target string `json:"target"`
	// Wipe are those whose etcd data may be lost.
	Wipe []string `json:"wipe,omitempty"`
	// Holder is the control plane that keeps the old etcd until all others left it, and alone is wiped then; empty where all are wiped.
	Holder string `json:"holder,omitempty"`
	// Own is the control plane that the agent ran on that began it; empty where that is none of them. Where it is not the target it keeps its
	// old data until the others have joined: the agent ends with it.
	Own string `json:"own,omitempty"`
	// Pinned is the copy of the snapshot beside the others that no retention reaches; empty where there is none.
	Pinned string `json:"pinned,omitempty"`
	// Intents are the calls that were begun, oldest first.
	Intents []Intent `json:"intents,omitempty"`
	// Drains are how far machines were emptied before their reboot, by name.
	Drains map[string]*statefile.Evacuation `json:"drains,omitempty"`
	// Recovered is set once the target's etcd answered.
	Recovered *Recovered `json:"recovered,omitempty"`
	// Survivors is set once the Kubernetes API of that etcd answered.
	Survivors *Survivors `json:"survivors,omitempty"`
	// Notes are sentences about what was not done as it should be, and is said at the end.
	Notes []string `json:"notes,omitempty"`
	// Problem is why the last run stopped.
	Problem string `json:"problem,omitempty"`
}

// Resume notes that a person has it go on. That is after all that was begun, also where a driver whose clock was ahead began it.
func (m *Marker) Resume(at time.Time, pause int) {
	at = at.UTC().Round(0).Truncate(time.Millisecond)
	for _, e := range m.Drains {
		if !e.Drained && e.Undrained == "" {
			e.Since = at
		}
	}
	for _, i := range m.Intents {
		if !i.At.Before(at) {
			at = i.At.UTC().Truncate(time.Millisecond).Add(time.Millisecond)
		}
	}
	m.Resumed, m.Pause = at, pause
}

// Restored is what is kept of a restore that is over; nil where the old etcd lives on.
func (m *Marker) Restored() *statefile.RestoreRecord {
	if m.Recovered == nil {
		return nil
	}
	return &statefile.RestoreRecord{At: m.Ended, Snapshot: m.Snapshot.Name, Target: m.Target}
}

// counts is since when the limits count.
func (m *Marker) counts() time.Time {
	if m.Resumed.After(m.Began) {
		return m.Resumed
	}
	return m.Began
}

// note keeps a sentence for the end, once.
func (m *Marker) note(line string) {
	if line != "" && !slices.Contains(m.Notes, line) {
		m.Notes = append(m.Notes, line)
	}
}

// Cluster says whose recovery it is.
type Cluster struct {
	Name string `json:"name"`
	ID   string `json:"id"`
}

// Snapshot is what is recovered.
type Snapshot struct {
	// Name is the object's, or the file's.
	Name string `json:"name"`
	// SHA256 (hex) is of the bytes that were given, sealed or not.
	SHA256 string `json:"sha256"`
	// Revision and Keys are what it holds; Raised is the revision that it is given before the upload, zero where it keeps its own.
	Revision int64 `json:"revision"`
	Keys     int64 `json:"keys"`
	Raised   int64 `json:"raised,omitempty"`
	// Before is the highest revision that an earlier restore raised to: the next one is not to begin below it, either.
	Before int64 `json:"before,omitempty"`
}

// Raise notes what the snapshot was raised to: after is the revision that is uploaded, last the highest that an earlier restore raised to,
// zero where none did.
func (s *Snapshot) Raise(after, last int64) {
	s.Raised, s.Before = 0, last
	if after != s.Revision {
		s.Raised = after
	}
}

// Highest is the highest revision that this restore or an earlier one raised to.
func (s Snapshot) Highest() int64 { return max(s.Raised, s.Before) }

// at is the revision at which the recovered etcd begins.
func (s Snapshot) at() int64 { return max(s.Revision, s.Raised) }

// Machine is a control plane of the recovered cluster.
type Machine struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"`
	// UUID is in lower case. Where it isn't declared it is what the machine first showed.
	UUID string `json:"uuid"`
}

// Recovered is the etcd that came of it.
type Recovered struct {
	// Member is the target's ID, in hex.
	Member string    `json:"member"`
	At     time.Time `json:"at"`
	// Verified says what comparing its keys with the snapshot's showed.
	Verified string `json:"verified,omitempty"`
	// Boots are the boot IDs of the control planes when it was seen, by name: who shows another one has rebooted since.
	Boots map[string]string `json:"boots,omitempty"`
}

// Survivors are who watched the cluster's old etcd and live still: what they know may be wrong without an error.
type Survivors struct {
	// Since is when the Kubernetes API of the recovered etcd first answered.
	Since time.Time `json:"since"`
	// Kubelets are those of machines that were neither wiped nor rebooted, Pods those on these machines that keep their forwarding.
	Kubelets []SurvivingKubelet `json:"kubelets,omitempty"`
	Pods     []SurvivingPod     `json:"pods,omitempty"`
}

// SurvivingKubelet is a machine's kubelet.
type SurvivingKubelet struct {
	Machine string `json:"machine"`
	// BootID is of the boot in which it lived then; empty where the machine gave no answer.
	BootID string `json:"bootID,omitempty"`
}

// SurvivingPod is a pod that its DaemonSet makes anew when it is deleted.
type SurvivingPod struct {
	DaemonSet string `json:"daemonSet"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Node      string `json:"node"`
	Machine   string `json:"machine"`
}

// Intent is a call that is about to be made. It is in the marker before the call.
type Intent struct {
	Nonce   string     `json:"nonce"`
	Action  ActionKind `json:"action"`
	Machine string     `json:"machine"`
	UUID    string     `json:"uuid"`
	// BootID is of the boot that it is for; in maintenance the certificate's fingerprint.
	BootID  string            `json:"bootID"`
	Facts   map[string]string `json:"facts,omitempty"`
	Attempt int               `json:"attempt"`
	// Driver and Epoch are of the process that begins it.
	Driver    string            `json:"driver"`
	Epoch     uint64            `json:"epoch"`
	At        time.Time         `json:"at"`
	Outcome   statefile.Outcome `json:"outcome,omitempty"`
	Message   string            `json:"message,omitempty"`
	OutcomeAt time.Time         `json:"outcomeAt,omitzero"`
}

// ErrOtherRestore: the marker is of a restore that this program can't go on with.
var ErrOtherRestore = errors.New("the marker is of another restore")

// DecodeMarker reads a marker's content. Errors: [ErrOtherRestore], [statefile.ErrNewerSchema].
func DecodeMarker(content json.RawMessage) (*Marker, error) {
	var probe struct {
		SchemaVersion int    `json:"schemaVersion"`
		Kind          string `json:"kind"`
		Phase         string `json:"phase"`
	}
	if err := json.Unmarshal(content, &probe); err != nil {
		return nil, fmt.Errorf("the restore's marker can't be read: %w", err)
	}
	if probe.Kind != markerKind {
		return nil, fmt.Errorf("%w: %.40q, in the phase %.40q", ErrOtherRestore, probe.Kind, probe.Phase)
	}
	if probe.SchemaVersion > markerVersion {
		return nil, fmt.Errorf("the restore's marker has the version %d: %w; this one knows %d", probe.SchemaVersion, statefile.ErrNewerSchema, markerVersion)
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var m Marker
	if err := decoder.Decode(&m); err != nil {
		return nil, fmt.Errorf("the restore's marker can't be read: %w: %w", err, statefile.ErrNewerSchema)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the restore's marker can't be read: something follows it")
	}
	return &m, nil
}

func (m *Marker) clone() *Marker {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err) // plain values only
	}
	var out Marker
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return &out
}

// machine gives a machine by name, or nil.
func (m *Marker) machine(name string) *Machine {
	for n := range m.Machines {
		if m.Machines[n].Name == name {
			return &m.Machines[n]
		}
	}
	return nil
}

// anyone gives a control plane or a worker by name, or nil.
func (m *Marker) anyone(name string) *Machine {
	if found := m.machine(name); found != nil {
		return found
	}
	for n := range m.Workers {
		if m.Workers[n].Name == name {
			return &m.Workers[n]
		}
	}
	return nil
}

// last gives the newest intent of an action on a machine, or nil.
func (m *Marker) last(action ActionKind, machine string) *Intent {
	for n := range slices.Backward(m.Intents) {
		if i := &m.Intents[n]; i.Action == action && i.Machine == machine {
			return i
		}
	}
	return nil
}

// begin notes an intent, which is none from before the last resume, however far behind the clock that stamps it is. Where there are many of its
// kind one is forgotten: the oldest that was refused, else the oldest.
func (m *Marker) begin(i Intent) {
	if i.At.Before(m.Resumed) {
		i.At = m.Resumed
	}
	var same []int
	for n, had := range m.Intents {
		if had.Action == i.Action && had.Machine == i.Machine {
			same = append(same, n)
		}
	}
	if len(same) >= keptIntents {
		drop := same[0]
		for _, n := range same {
			if m.Intents[n].Outcome == statefile.OutcomeRefused {
				drop = n
				break
			}
		}
		m.Intents = slices.Delete(m.Intents, drop, drop+1)
	}
	m.Intents = append(m.Intents, i)
}

// find gives the intent with a nonce, or nil.
func (m *Marker) find(nonce string) *Intent {
	for n := range m.Intents {
		if m.Intents[n].Nonce == nonce {
			return &m.Intents[n]
		}
	}
	return nil
}

// Leave takes machines out of a recovery, for good. The target can be taken out only while nothing was recovered on it.
func (m *Marker) Leave(names []string) error {
	for _, name := range names {
		if m.machine(name) == nil {
			continue
		}
		begun := slices.ContainsFunc(m.Intents, func(i Intent) bool {
			return i.Action == ActRecover && i.Machine == name && i.Outcome != statefile.OutcomeRefused
		})
		if name == m.Target && begun {
			return fmt.Errorf("%s was told to recover: no other control plane may, as long as it can come back with what it recovered", name)
		}
		if name == m.Holder && m.Phase == PhaseLeaving {
			return fmt.Errorf("%s holds the old etcd while the others leave it: it is the last that may be left out", name)
		}
		m.Machines = slices.DeleteFunc(m.Machines, func(one Machine) bool { return one.Name == name })
		if len(m.Machines) == 0 {
			return errors.New("no control plane would be left")
		}
		if name == m.Target {
			m.Target = m.Machines[0].Name
		}
	}
	return nil
}
