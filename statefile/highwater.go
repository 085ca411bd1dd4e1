package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"ichor.maesh.dev/internal/wholefile"
)

// StateRolledBackError says that the state is older than one that was seen before.
type StateRolledBackError struct {
	Cluster string
	Why     string
}

func (e *StateRolledBackError) Error() string {
	return fmt.Sprintf("the state of %s was rolled back: %s; nothing is done for it until `ichor state accept %s` says to go on from here",
		e.Cluster, e.Why, e.Cluster)
}

// highWater remembers the highest generation of a cluster's state that this machine has seen, over restarts.
type highWater struct {
	cluster string
	file    string // empty: in memory only

	generation uint64
	nonce      string
	// unsaved says that the file is behind.
	unsaved bool
}

type highWaterFile struct {
	Generation uint64 `json:"generation"`
	Nonce      string `json:"nonce"`
}

func openHighWater(cacheDir, location, cluster string) (*highWater, error) {
	w := &highWater{cluster: cluster}
	if cacheDir == "" {
		return w, nil
	}
	w.file = filepath.Join(cacheDir, "highwater", location, cluster+".json")
	saved, err := w.load()
	if err != nil {
		return nil, err
	}
	w.generation, w.nonce = saved.Generation, saved.Nonce
	return w, nil
}

func (w *highWater) load() (highWaterFile, error) {
	data, err := os.ReadFile(w.file)
	if errors.Is(err, fs.ErrNotExist) {
		return highWaterFile{}, nil
	}
	if err != nil {
		return highWaterFile{}, fmt.Errorf("reading the highest generation seen of %s from the cache: %w", w.cluster, err)
	}
	var saved highWaterFile
	if err := decodeStrict(data, &saved); err != nil {
		return highWaterFile{}, fmt.Errorf("the highest generation seen of %s can't be read from %s (%w); "+
			"removing the file gives up the guard against a rolled-back state, once", w.cluster, w.file, err)
	}
	return saved, nil
}

// check says whether a record is older than what was seen, or another of the same age.
func (w *highWater) check(record *Record) error {
	switch {
	case record.Generation < w.generation:
		return &StateRolledBackError{Cluster: w.cluster,
			Why: fmt.Sprintf("it has generation %d, and generation %d was seen before", record.Generation, w.generation)}
	case record.Generation == w.generation && record.Checked && w.nonce != "" && record.Nonce != w.nonce:
		return &StateRolledBackError{Cluster: w.cluster,
			Why: fmt.Sprintf("its generation %d is another one than was seen before, so it was rolled back and written again", record.Generation)}
	}
	return nil
}

// raise remembers a record whose seal was checked.
func (w *highWater) raise(record *Record) error {
	w.raiseLater(record)
	return w.retry()
}

// raiseLater is raise for after a write, whose success a full cache disk must not hide: the next call says so.
func (w *highWater) raiseLater(record *Record) {
	if !record.Checked || record.Generation <= w.generation {
		return
	}
	w.generation, w.nonce, w.unsaved = record.Generation, record.Nonce, true
	_ = w.retry()
}

// retry saves what is not saved yet.
func (w *highWater) retry() error {
	if !w.unsaved {
		return nil
	}
	if w.file != "" {
		saved, err := w.load()
		if err != nil {
			return err
		}
		if saved.Generation <= w.generation { // another process may have seen more
			if err := w.save(); err != nil {
				return fmt.Errorf("saving the highest generation seen of %s in %s: %w", w.cluster, w.file, plain(err))
			}
		}
	}
	w.unsaved = false
	return nil
}

func (w *highWater) save() error {
	data, err := json.Marshal(highWaterFile{Generation: w.generation, Nonce: w.nonce})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(w.file), 0o700); err != nil {
		return err
	}
	return wholefile.Write(w.file, append(data, '\n'))
}
