package machined

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/resources/block"
)

// volumes are the machine's partitions as its operating system sees them, and the file system that they make up.
type volumes struct {
	m *Machine

	mu        sync.Mutex
	state     bool // mounted
	ephemeral bool
}

// systemPartitions are Talos's partitions in the order of the table.
func systemPartitions() []struct {
	label string
	index int
	size  uint64
} {
	return []struct {
		label string
		index int
		size  uint64
	}{{metaLabel, 4, 1 << 20}, {stateLabel, 5, 100 << 20}, {ephemeralLabel, 6, 10 << 30}}
}

// locate publishes what is on the system disk, and makes STATE where it is due: with a config at hand and Talos installed.
func (v *volumes) locate() {
	m := v.m
	if m.conf.configured() && (m.cfg.Store.Installed() || m.cfg.Container) && !m.cfg.Store.Has(stateLabel) {
		if err := m.cfg.Store.provision(stateLabel); err != nil {
			m.log.Error("making STATE", "err", err)
		}
		v.mountState()
		m.conf.flush()
	}
	v.publish()
}

func (v *volumes) publish() {
	m := v.m
	disk := m.cfg.Store.systemDisk()
	if disk != "" && !m.cfg.Container {
		sd := block.NewSystemDisk(block.NamespaceName, block.SystemDiskID)
		sd.TypedSpec().DevPath, sd.TypedSpec().DiskID = disk, path.Base(disk)
		m.put(sd)
	}
	v.mu.Lock()
	mounted := map[string]bool{metaLabel: false, stateLabel: v.state, ephemeralLabel: v.ephemeral}
	v.mu.Unlock()
	for _, p := range systemPartitions() {
		if m.cfg.Container && p.label == metaLabel {
			continue
		}
		r := block.NewVolumeStatus(block.NamespaceName, p.label)
		spec := r.TypedSpec()
		spec.Type, spec.Phase = block.VolumeTypePartition, block.VolumePhaseMissing
		switch {
		case m.cfg.Container:
			spec.Type, spec.Phase = block.VolumeTypeDirectory, block.VolumePhaseReady
		case m.cfg.Store.Has(p.label):
			spec.Phase, spec.Location, spec.ParentLocation = block.VolumePhaseLocated, partitionPath(disk, p.index), disk
			spec.MountLocation, spec.PartitionIndex = spec.Location, p.index
			spec.Filesystem = block.FilesystemTypeXFS
			if p.label == metaLabel {
				spec.Filesystem = block.FilesystemTypeNone
			}
			spec.SetSize(p.size)
			if mounted[p.label] || p.label == metaLabel {
				spec.Phase = block.VolumePhaseReady
			}
		}
		m.put(r)
		v.publishMount(p.label, spec, mounted[p.label])
	}
	v.publishDirectories(mounted[ephemeralLabel])
	v.publishDiscovered(disk)
}

func partitionPath(disk string, index int) string {
	if disk == "" {
		return ""
	}
	if last := disk[len(disk)-1]; last >= '0' && last <= '9' {
		return fmt.Sprintf("%sp%d", disk, index)
	}
	return fmt.Sprintf("%s%d", disk, index)
}

func (v *volumes) publishMount(label string, spec *block.VolumeStatusSpec, mounted bool) {
	r := block.NewMountStatus(block.NamespaceName, label)
	if !mounted {
		v.m.drop(r)
		return
	}
	target := map[string]string{stateLabel: "/system/state", ephemeralLabel: "/var"}[label]
	ms := r.TypedSpec()
	ms.Spec.VolumeID, ms.Spec.Requesters = label, []string{"sequencer"}
	ms.Source, ms.Target, ms.Filesystem = spec.Location, target, spec.Filesystem
	v.m.put(r)
}

// publishDirectories shows the volumes that are directories under EPHEMERAL: they have no location of their own.
func (v *volumes) publishDirectories(mounted bool) {
	for _, id := range []string{"/var/lib", "/var/log", "/var/lib/kubelet", "ETCD"} {
		r := block.NewVolumeStatus(block.NamespaceName, id)
		r.TypedSpec().Type, r.TypedSpec().Phase = block.VolumeTypeDirectory, block.VolumePhaseWaiting
		if mounted {
			r.TypedSpec().Phase = block.VolumePhaseReady
		}
		v.m.put(r)
	}
}

func (v *volumes) publishDiscovered(systemDisk string) {
	m := v.m
	for _, d := range m.cfg.Disks {
		name := path.Base(d.DevPath)
		whole := block.NewDiscoveredVolume(block.NamespaceName, name)
		spec := whole.TypedSpec()
		spec.Type, spec.DevPath, spec.DevicePath = "disk", d.DevPath, "/devices/virtual/block/"+name
		spec.SetSize(d.Size)
		own := d.DevPath == systemDisk
		left := d.Partitions
		if m.cfg.Store.diskWiped(d.DevPath) {
			left = nil
		}
		if own || len(left) > 0 {
			spec.Name = "gpt"
		}
		m.put(whole)
		if own {
			v.publishOwn(d)
			continue
		}
		for i, p := range d.Partitions {
			if len(left) > 0 {
				v.putPartition(d, i+1, p)
			} else {
				m.drop(block.NewDiscoveredVolume(block.NamespaceName, path.Base(partitionPath(d.DevPath, i+1))))
			}
		}
	}
}

// wipeDisk removes what someone else left on a disk.
func (m *Machine) wipeDisk(dev string) error {
	if err := m.cfg.Store.wipeDisk(dev); err != nil {
		return err
	}
	m.volumes.publish()
	return nil
}

// publishOwn shows Talos's own partitions: those that a wipe removed are gone from the table.
func (v *volumes) publishOwn(d Disk) {
	v.putPartition(d, 1, Partition{Label: "EFI", Filesystem: "vfat", Size: 2 << 30})
	for _, p := range systemPartitions() {
		if v.m.cfg.Store.Has(p.label) {
			fs := "xfs"
			if p.label == metaLabel {
				fs = "talosmeta"
			}
			v.putPartition(d, p.index, Partition{Label: p.label, Filesystem: fs, Size: p.size})
			continue
		}
		v.m.drop(block.NewDiscoveredVolume(block.NamespaceName, path.Base(partitionPath(d.DevPath, p.index))))
	}
}

func (v *volumes) putPartition(d Disk, index int, p Partition) {
	dev := partitionPath(d.DevPath, index)
	r := block.NewDiscoveredVolume(block.NamespaceName, path.Base(dev))
	spec := r.TypedSpec()
	spec.Type, spec.DevPath, spec.DevicePath = "partition", dev, "/devices/virtual/block/"+path.Base(dev)
	spec.Parent, spec.ParentDevPath = path.Base(d.DevPath), d.DevPath
	spec.Name, spec.PartitionLabel, spec.PartitionIndex = p.Filesystem, p.Label, uint(index)
	spec.SetSize(p.Size)
	v.m.put(r)
}

func (v *volumes) mountState() {
	v.mu.Lock()
	v.state = true
	v.mu.Unlock()
	v.m.establishIdentity()
}

func (v *volumes) mountEphemeral() error {
	if err := os.MkdirAll(v.m.cfg.Store.Path(ephemeralLabel, "lib", "etcd"), 0o700); err != nil {
		return fmt.Errorf("mounting EPHEMERAL: %w", err)
	}
	v.mu.Lock()
	v.ephemeral = true
	v.mu.Unlock()
	v.locate()
	return nil
}

func (v *volumes) unmountEphemeral() {
	v.mu.Lock()
	v.ephemeral = false
	v.mu.Unlock()
	v.publish()
}

func (v *volumes) ephemeralMounted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ephemeral
}

// path is where a path of the machine lies; "" where nothing is mounted that could hold it.
func (v *volumes) path(p string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	p = path.Clean("/" + p)
	for _, mount := range []struct {
		at, label string
		mounted   bool
	}{{"/var", ephemeralLabel, v.ephemeral}, {"/system/state", stateLabel, v.state}} {
		if p == mount.at || strings.HasPrefix(p, mount.at+"/") {
			if !mount.mounted {
				return ""
			}
			return v.m.cfg.Store.Path(mount.label, strings.TrimPrefix(p, mount.at))
		}
	}
	return ""
}

// stat looks at a path of the machine, with the errors that the machine would give.
func (v *volumes) stat(op, p string) (string, fs.FileInfo, error) {
	real := v.path(p)
	if real == "" {
		return "", nil, &fs.PathError{Op: op, Path: p, Err: errNoEntry}
	}
	info, err := os.Lstat(real)
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			return "", nil, &fs.PathError{Op: op, Path: p, Err: pe.Err}
		}
		return "", nil, err
	}
	return real, info, nil
}

func (v *volumes) exists(p string) bool {
	_, _, err := v.stat("stat", p)
	return err == nil
}

// notEmpty says whether a directory of the machine has any entry.
func (v *volumes) notEmpty(p string) bool {
	real := v.path(p)
	if real == "" {
		return false
	}
	entries, _ := os.ReadDir(real) // what can't be read counts as empty, as Talos counts it
	return len(entries) > 0
}

func (v *volumes) mkdir(p string) error {
	real := v.path(p)
	if real == "" {
		return &fs.PathError{Op: "mkdir", Path: p, Err: errNoEntry}
	}
	return v.inside(os.MkdirAll(real, 0o700))
}

func (v *volumes) removeAll(p string) error {
	real := v.path(p)
	if real == "" {
		return nil
	}
	return os.RemoveAll(real)
}

// inside rewrites an error's paths to the machine's own, so that no path of the simulator's host is told.
func (v *volumes) inside(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ReplaceAll(err.Error(), v.m.cfg.Store.Path(ephemeralLabel), "/var")
	return errors.New(strings.ReplaceAll(text, v.m.cfg.Store.Path(stateLabel), "/system/state"))
}
