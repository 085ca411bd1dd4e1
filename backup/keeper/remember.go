package keeper

import (
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/statefile"
)

// remember puts what a destination was seen to hold into the memory. A snapshot that is remembered, and that the index doesn't list
// although nothing pruned it, is kept as lost until the retention would have let it go.
func remember(m *statefile.BackupState, location string, c backup.Contents, retention backup.Retention, guard backup.Guard) {
	before := m.Snapshots
	if m.Destination != location {
		before, m.Destination = nil, location
	}
	var now []statefile.BackupSnapshot
	all := slices.Clone(c.Snapshots)
	listed := map[string]bool{}
	for _, s := range c.Snapshots {
		listed[s.Name] = true
		now = append(now, entry(s))
		noteDrill(m, s)
	}
	var lost []statefile.BackupSnapshot
	for _, s := range before {
		if !listed[s.Name] && !s.Deleting {
			s.Lost = true
			lost = append(lost, s)
			all = append(all, backup.Snapshot{Name: s.Name, Time: s.Time, Missing: true})
		}
	}
	doomed, _ := backup.Prune(all, retention, guard)
	for _, s := range lost {
		if !slices.Contains(doomed, s.Name) {
			now = append(now, s)
		}
	}
	m.Snapshots = newestFirst(now)
}

func newestFirst(list []statefile.BackupSnapshot) []statefile.BackupSnapshot {
	slices.SortFunc(list, func(a, b statefile.BackupSnapshot) int { return strings.Compare(b.Name, a.Name) })
	return list[:min(len(list), statefile.MaxSnapshots)]
}

func entry(s backup.Snapshot) statefile.BackupSnapshot {
	e := statefile.BackupSnapshot{Name: s.Name, Time: s.Time, Size: s.Size, Revision: s.Revision, Missing: s.Missing && !s.Deleting, Deleting: s.Deleting}
	if s.Drill != nil {
		e.Drill = word(s.Drill.Passed)
	}
	return e
}

func word(passed bool) string {
	if passed {
		return "passed"
	}
	return "failed"
}

// noteDrill takes a snapshot's drill as the newest one if it is. One that was made by command stands in the index alone.
func noteDrill(m *statefile.BackupState, s backup.Snapshot) {
	if s.Drill == nil || m.Drill != nil && !s.Drill.At.After(m.Drill.At) {
		return
	}
	m.Drill = &statefile.BackupDrill{Snapshot: s.Name, At: s.Drill.At, Passed: s.Drill.Passed, Problem: s.Drill.Problem, Keys: s.Drill.Keys,
		Revision: s.Drill.Revision, Resources: s.Drill.Resources}
}

// stored makes the state's description of a snapshot from the index's, and back.
func stored(s backup.Snapshot) *statefile.StoredSnapshot {
	return &statefile.StoredSnapshot{Name: s.Name, Time: s.Time, SHA256: s.SHA256, SealedSize: s.SealedSize, Size: s.Size, Revision: s.Revision,
		Member: s.Member, TalosVersion: s.TalosVersion, KubernetesVersion: s.KubernetesVersion}
}

func described(s *statefile.StoredSnapshot) backup.Snapshot {
	return backup.Snapshot{Name: s.Name, Time: s.Time, SHA256: s.SHA256, SealedSize: s.SealedSize, Size: s.Size, Revision: s.Revision,
		Member: s.Member, TalosVersion: s.TalosVersion, KubernetesVersion: s.KubernetesVersion}
}

// failed notes the end of an attempt that came to nothing.
func failed(m *statefile.BackupState, why Verdict, at time.Time) {
	m.LastReason, m.LastError = why.Reason, why.Message
	m.Failures++
	answer(m, "failed: "+why.Message, at)
	m.Attempt = nil
}

// succeeded notes the end of an attempt whose snapshot is stored and listed.
func succeeded(m *statefile.BackupState, snapshot backup.Snapshot, at time.Time) {
	m.LastReason, m.LastError = "", ""
	if snapshot.Time.After(m.LastSuccess) {
		m.LastSuccess = snapshot.Time
	}
	if !slices.ContainsFunc(m.Snapshots, func(have statefile.BackupSnapshot) bool { return have.Name == snapshot.Name }) {
		m.Snapshots = newestFirst(append(m.Snapshots, entry(snapshot)))
	}
	answer(m, "stored "+snapshot.Name, at)
	m.Attempt = nil
}

// answer ends the request that the attempt was made for.
func answer(m *statefile.BackupState, outcome string, at time.Time) {
	if r := m.Request; r != nil && m.Attempt != nil && m.Attempt.Request == r.Digest {
		r.Done, r.Outcome = at, outcome
	}
}
