package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

const stepRequested = "snapshot"

// BackupOrder is a snapshot that an operation asks for; the keeper of the cluster's backups takes it.
type BackupOrder struct {
	Backup string
	// Digest is the operation's.
	Digest string
	At     time.Time
}

func (s situation) backup() *schema.TalosEtcdBackup {
	for _, b := range s.in.Cluster.Backups {
		if b.Metadata.Name == s.spec.EtcdBackup.BackupRef.Name {
			return b
		}
	}
	return nil
}

// refuseBackup wants a backup that is there and is kept.
func refuseBackup(s situation) (refuse, wait string) {
	name := s.spec.EtcdBackup.BackupRef.Name
	b := s.backup()
	switch {
	case b == nil:
		return fmt.Sprintf("there is no TalosEtcdBackup %s in the revision that is acted on (%.12s), or this agent takes no backups", name, s.in.Cluster.Commit), ""
	case b.Spec.Suspend:
		return fmt.Sprintf("the backup %s is suspended; set spec.suspend: false, and resume this operation", name), ""
	}
	return "", ""
}

// nextBackup asks for the snapshot once, and reads what became of it in the state. Whatever that was, nothing is asked for again.
func nextBackup(s situation) move {
	name := s.spec.EtcdBackup.BackupRef.Name
	var request *statefile.BackupRequest
	memory := s.in.State.Backups[name]
	if memory != nil {
		request = memory.Request
	}
	mine := request != nil && request.Digest == s.op.Digest
	asked := s.op.Sent[stepRequested] > s.op.Pause // since the last resume
	m := move{step: stepRequested}
	switch {
	case mine && request.Started.IsZero() && request.Done.IsZero():
		m.wait = fmt.Sprintf("a snapshot is asked for, and the backup %s has not begun it yet", name)
		if !memory.Ready.Status && memory.Ready.Message != "" {
			m.wait += ": " + memory.Ready.Message
		}
	case mine && request.Done.IsZero():
		m.wait = fmt.Sprintf("the backup %s takes and stores the snapshot", name)
	case mine && strings.HasPrefix(request.Outcome, "stored "):
		m.done = fmt.Sprintf("the backup %s %s", name, request.Outcome)
	case mine && asked:
		m.pause = fmt.Sprintf("no snapshot was stored; the backup %s says: %s", name, request.Outcome)
	case asked:
		m.pause = fmt.Sprintf("what became of the snapshot is not known, since the backup %s was asked for another one meanwhile; look at ichor backup list", name)
	case request != nil && request.Done.IsZero(), slices.ContainsFunc(s.plan.Backups, func(o BackupOrder) bool { return o.Backup == name }):
		m.wait = fmt.Sprintf("the backup %s takes another snapshot that was asked for", name)
	default:
		s.ask(name)
		m.wait = fmt.Sprintf("a snapshot is asked for of the backup %s", name)
	}
	return m
}

// ask puts the request into the plan; it is stored together with the word that it was made.
func (s situation) ask(name string) {
	if s.op.Sent == nil {
		s.op.Sent = map[string]int{}
	}
	s.op.Sent[stepRequested] = s.op.Pause + 1
	s.plan.Backups = append(s.plan.Backups, BackupOrder{Backup: name, Digest: s.op.Digest, At: s.operationTime()})
}

// place puts a snapshot that is asked for where the keeper of the backups finds it; errStale where another one is asked for.
func (o BackupOrder) place(s *statefile.State) error {
	memory := s.Backups[o.Backup]
	if memory == nil {
		if s.Backups == nil {
			s.Backups = map[string]*statefile.BackupState{}
		}
		memory = &statefile.BackupState{}
		s.Backups[o.Backup] = memory
	}
	if r := memory.Request; r != nil && r.Done.IsZero() {
		return errStale
	}
	memory.Request = &statefile.BackupRequest{Digest: o.Digest, At: o.At}
	return nil
}
