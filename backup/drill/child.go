package drill

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"ichor.maesh.dev/backup/keyspace"
	"ichor.maesh.dev/internal/childprocess"
)

// work is what a child is started for.
const work = "drill"

// order is what a child is to do: restore the snapshot File into Dir, and count.
type order struct {
	File string `json:"file"`
	Dir  string `json:"dir"`
}

// RunIfChild does a child's work and ends the process if it was started as one; else it returns at once. The program calls it first.
func RunIfChild() {
	childprocess.RunIfChild(work, func(encoded []byte) (any, error) {
		var asked order
		if err := json.Unmarshal(encoded, &asked); err != nil {
			return nil, fmt.Errorf("the order doesn't parse: %w", err)
		}
		return restore(asked)
	})
}

// restore makes a data folder as `etcdutl snapshot restore` would, which checks the trailer, and counts what is in it.
func restore(asked order) (Counts, error) {
	const peer = "http://127.0.0.1:2380" // nothing listens there: the folder is never served
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: asked.File, Name: "drill", OutputDataDir: asked.Dir, PeerURLs: []string{peer}, InitialCluster: "drill=" + peer, InitialClusterToken: "drill",
	})
	if err != nil {
		return Counts{}, fmt.Errorf("etcd would not restore it: %w", err)
	}
	db, err := bbolt.Open(filepath.Join(asked.Dir, "member", "snap", "db"), 0o400, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return Counts{}, fmt.Errorf("opening the restored database: %w", err)
	}
	counts, err := keyspace.Count(db)
	return counts, errors.Join(err, db.Close())
}
