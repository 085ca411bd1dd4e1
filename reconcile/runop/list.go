package runop

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// Entry is an operation as Git and the state know it together. Its JSON form is stable.
type Entry struct {
	Cluster string `json:"cluster"`
	reconcile.OperationStatus
	// Does says what it does, where its file is at hand.
	Does string `json:"does,omitempty"`
	// Seen is false for a file in Git that no agent has taken in: its phase is empty then.
	Seen bool `json:"seen"`
}

// List puts the operations of states and the files of a fleet together: those that a state knows in the order in which they were
// first seen, and then files that none knows. fleet may be nil. A file whose time is over is passed over unless all is set.
func List(fleet *schema.Fleet, clusters []reconcile.ClusterStatus, now time.Time, all bool) []Entry {
	entries := []Entry{}
	for _, c := range clusters {
		for _, op := range c.Operations {
			entry := Entry{Cluster: c.Name, OperationStatus: op, Seen: true}
			if file := fileOf(fleet, c.Name, op.Digest); file != nil {
				entry.Does = operation.Sentence(file.Spec)
			}
			entries = append(entries, entry)
		}
	}
	if fleet == nil {
		return entries
	}
	for _, file := range fleet.Operations {
		digest := operation.Digest(file.Raw)
		seen := slices.ContainsFunc(entries, func(e Entry) bool { return e.Digest == digest && e.Cluster == file.Spec.ClusterRef.Name })
		if seen || !all && !now.Before(file.Spec.ExpiresAt) {
			continue
		}
		entries = append(entries, Entry{Cluster: file.Spec.ClusterRef.Name, Does: operation.Sentence(file.Spec), OperationStatus: reconcile.OperationStatus{
			Name: file.Metadata.Name, Digest: digest, Kind: string(file.Spec.Kind), Action: actionOf(file.Spec), Target: operation.TargetOf(file.Spec),
			ExpiresAt: file.Spec.ExpiresAt.UTC().Format(time.RFC3339), Source: "git", File: file.Source.File, Steps: []reconcile.OperationStepStatus{}}})
	}
	return entries
}

func fileOf(fleet *schema.Fleet, cluster, digest string) *schema.TalosOperation {
	if fleet == nil {
		return nil
	}
	for _, file := range fleet.Operations {
		if file.Spec.ClusterRef.Name == cluster && operation.Digest(file.Raw) == digest {
			return file
		}
	}
	return nil
}

func actionOf(spec schema.OperationSpec) string {
	if spec.Node != nil {
		return spec.Node.Action
	}
	return ""
}

// Detail is everything that is known of one operation. Its JSON form is stable.
type Detail struct {
	Entry
	// Events are those of the audit that belong to it: acceptance, steps, intents and their outcomes, pauses, the end.
	Events []Event `json:"events"`
	// Intent is the call that is under way; null where none is.
	Intent *reconcile.IntentStatus `json:"intent"`
	// Next are the commands by which a person goes on with it.
	Next []string `json:"next"`
}

// Event is an entry of the audit in a Detail.
type Event struct {
	At      string            `json:"at"`
	Action  string            `json:"action"`
	Machine string            `json:"machine,omitempty"`
	Message string            `json:"message,omitempty"`
	Details map[string]string `json:"details,omitempty"`
}

// Describe gives all that is known of one operation. status is its cluster's, nil where the state doesn't know that; events are
// the cluster's audit.
func Describe(entry Entry, status *reconcile.ClusterStatus, events []statefile.Event) Detail {
	detail := Detail{Entry: entry, Events: []Event{}, Next: Next(entry.Cluster, entry.OperationStatus)}
	for _, e := range events {
		if entry.Digest != "" && e.Operation == entry.Digest {
			detail.Events = append(detail.Events, Event{At: e.At.UTC().Format(time.RFC3339), Action: e.Action, Machine: e.Machine, Message: e.Message, Details: e.Details})
		}
	}
	// The holder of the lock is the operation that calls are made for; it bears the first digits of the digest.
	if status != nil && status.Waiting != nil && status.Lock != nil && len(entry.Digest) >= 12 && strings.HasSuffix(status.Lock.Holder, entry.Digest[:12]) {
		detail.Intent = status.Waiting
	}
	return detail
}

var (
	isLabel  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	isDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Next are the commands that make sense for an operation as it stands. They are for a shell, so names that a forged state or another
// agent made up give none.
func Next(cluster string, op reconcile.OperationStatus) []string {
	if !isLabel.MatchString(cluster) || !isLabel.MatchString(op.Name) || !isDigest.MatchString(op.Digest) {
		return []string{}
	}
	of := fmt.Sprintf("%s --cluster %s --digest %s", op.Name, cluster, op.Digest)
	switch statefile.OperationPhase(op.Phase) {
	case statefile.OperationPaused:
		return []string{fmt.Sprintf("ichor run-op resume %s --pause %d", of, op.Pause), "ichor run-op cancel " + of}
	case statefile.OperationPending:
		return []string{"ichor run-op cancel " + of}
	}
	return []string{}
}
