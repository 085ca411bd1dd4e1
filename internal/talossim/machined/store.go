package machined

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// The partitions that a machine's store keeps as folders.
const (
	metaLabel      = "META"
	stateLabel     = "STATE"
	ephemeralLabel = "EPHEMERAL"
)

const (
	configFile   = "config.yaml"
	identityFile = "node-identity.yaml"
	metaFile     = "meta.json"
	diskFile     = "disk.json"
)

// Store is a machine's system disk: a folder with one folder a partition. A partition exists while its folder does.
type Store struct {
	dir string

	mu sync.Mutex
}

// OpenStore opens a machine's disk, making an empty one.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the disk in %s: %w", dir, err)
	}
	return &Store{dir: dir}, nil
}

// Path returns a path inside a partition.
func (s *Store) Path(label string, elem ...string) string {
	return filepath.Join(append([]string{s.dir, label}, elem...)...)
}

// Has says whether a partition exists.
func (s *Store) Has(label string) bool {
	info, err := os.Stat(s.Path(label))
	return err == nil && info.IsDir()
}

// provision makes a partition when there is none.
func (s *Store) provision(label string) error {
	if err := os.MkdirAll(s.Path(label), 0o700); err != nil {
		return fmt.Errorf("making partition %s: %w", label, err)
	}
	return nil
}

// Wipe removes partitions with what is on them; none named means all.
func (s *Store) Wipe(labels ...string) error {
	if len(labels) == 0 {
		labels = []string{metaLabel, stateLabel, ephemeralLabel}
		if err := s.changeDisks(func(d *diskState) { d.Wiped, d.SystemDisk = append(d.Wiped, d.SystemDisk), "" }); err != nil {
			return err
		}
	}
	for _, label := range labels {
		if err := os.RemoveAll(s.Path(label)); err != nil {
			return fmt.Errorf("wiping partition %s: %w", label, err)
		}
	}
	return nil
}

// Installed says whether Talos is on the disk. Talos judges it by META.
func (s *Store) Installed() bool { return s.Has(metaLabel) }

// Install makes the disk one that Talos is installed on. disk is the device's path.
func (s *Store) Install(disk string) error {
	if err := s.provision(metaLabel); err != nil {
		return err
	}
	return s.changeDisks(func(d *diskState) {
		d.SystemDisk, d.Ever = disk, true
		d.Wiped = append(d.Wiped, disk) // the installer leaves nothing of what was there
	})
}

// diskState is what is known about the disks beyond the partitions' folders.
type diskState struct {
	SystemDisk string   `json:"systemDisk,omitempty"`
	Wiped      []string `json:"wiped,omitempty"`
	Ever       bool     `json:"everInstalled,omitempty"`
}

func (s *Store) disks() diskState {
	var d diskState
	_ = s.readJSON(filepath.Join(s.dir, diskFile), &d) // a machine without one has nothing to tell
	return d
}

func (s *Store) changeDisks(f func(*diskState)) error {
	d := s.disks()
	f(&d)
	return s.writeJSON(filepath.Join(s.dir, diskFile), d)
}

// wipeDisk removes what someone else left on a disk.
func (s *Store) wipeDisk(dev string) error {
	return s.changeDisks(func(d *diskState) { d.Wiped = append(d.Wiped, dev) })
}

// diskWiped says whether a disk has lost what it once held.
func (s *Store) diskWiped(dev string) bool { return slices.Contains(s.disks().Wiped, dev) }

// EverInstalled says whether Talos was on the disk at any time.
func (s *Store) EverInstalled() bool { return s.disks().Ever }

// systemDisk is the device that Talos is installed on, "" when it isn't.
func (s *Store) systemDisk() string {
	return s.disks().SystemDisk
}

// Config returns the config on STATE, nil when there is none.
func (s *Store) Config() ([]byte, error) {
	data, err := os.ReadFile(s.Path(stateLabel, configFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the config from STATE: %w", err)
	}
	return data, nil
}

// writeConfig writes the config to STATE; it does nothing while STATE isn't there.
func (s *Store) writeConfig(data []byte) error {
	if !s.Has(stateLabel) {
		return nil
	}
	return s.replace(s.Path(stateLabel, configFile), data)
}

// Meta returns META's keys.
func (s *Store) Meta() map[uint8]string {
	keys := map[uint8]string{}
	_ = s.readJSON(s.Path(metaLabel, metaFile), &keys) // no META is an empty META
	return keys
}

// setMeta writes META's keys; it does nothing while META isn't there.
func (s *Store) setMeta(keys map[uint8]string) error {
	if !s.Has(metaLabel) {
		return nil
	}
	return s.writeJSON(s.Path(metaLabel, metaFile), keys)
}

func (s *Store) readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

func (s *Store) writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", filepath.Base(path), err)
	}
	return s.replace(path, data)
}

// replace leaves the old file or the new one, never half of one.
func (s *Store) replace(path string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.WriteFile(path+".part", data, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(path+".part", path); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	return nil
}
