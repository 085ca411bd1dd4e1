package reconcile

import (
	"fmt"
	"slices"
	"strings"

	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// installDisk finds the disk that a first install would take on the machine, as Talos itself would, and says why it is refused:
// it isn't there, it can't be written, or it holds something and install.wipe isn't true.
func installDisk(m *schema.TalosMachine, wanted config.Provider, disks []talos.Disk) (path, problem string) {
	if wanted.Machine() == nil || wanted.Machine().Install() == nil {
		return "", ""
	}
	found, problem := matchingDisks(wanted, disks)
	if problem != "" {
		return "", problem
	}
	if on, left := earlierTalos(disks); left != "" {
		return found[0].Path, fmt.Sprintf("%s is that of an earlier Talos, which starts again without an installation and keeps what its partition %s holds, another cluster's etcd it may "+
			"be, whatever spec.install.wipe says; wipe %s first", on, left, on)
	}
	wipe := m.Spec.Install != nil && m.Spec.Install.Wipe
	for _, disk := range found {
		if disk.ReadOnly {
			return disk.Path, fmt.Sprintf("its install disk %s is read-only; name another in spec.install", disk.Path)
		}
		if len(disk.Contents) > 0 && !wipe {
			return disk.Path, fmt.Sprintf("its install disk %s holds %s; set spec.install.wipe: true to lose that, or name another disk",
				disk.Path, strings.Join(disk.Contents, ", "))
		}
	}
	return found[0].Path, ""
}

// earlierTalos finds a Talos that is installed, which META shows it, and a partition of it with data that would be there again. Empty: there is none,
// or what is left of it holds nothing.
func earlierTalos(disks []talos.Disk) (on, left string) {
	for _, disk := range disks {
		for _, content := range disk.Contents {
			switch label, holds := partitionOf(content); {
			case label == "META":
				on = disk.Path
			case holds && (label == "EPHEMERAL" || label == "ETCD"):
				left = label
			}
		}
	}
	if on == "" {
		return "", ""
	}
	return on, left
}

// partitionOf reads what was found on a disk: the label of a partition, empty for anything else, and whether something is on it.
func partitionOf(content string) (label string, holds bool) {
	if words := strings.Fields(content); len(words) > 1 && words[0] == "partition" {
		return words[1], len(words) > 2
	}
	return "", false
}

// matchingDisks gives the disk named by the config, or all that its selector matches: Talos takes the first of these, in an
// order that is not promised, so each of them has to be fit.
func matchingDisks(wanted config.Provider, disks []talos.Disk) ([]talos.Disk, string) {
	install := wanted.Machine().Install()
	selector, err := install.DiskMatchExpression()
	if err != nil {
		return nil, "its install.diskSelector can't be used: " + err.Error()
	}
	var all []string
	var found []talos.Disk
	for _, disk := range disks {
		all = append(all, disk.Path)
		if selector == nil {
			if disk.Path == install.Disk() || slices.Contains(disk.Symlinks, install.Disk()) {
				found = append(found, disk)
			}
			continue
		}
		matches, err := selector.EvalBool(celenv.DiskLocator(), map[string]any{"disk": diskSpec(disk), "system_disk": false})
		if err != nil {
			return nil, fmt.Sprintf("its install.diskSelector can't be compared with %s: %v", disk.Path, err)
		}
		if matches {
			found = append(found, disk)
		}
	}
	if len(found) > 0 {
		return found, ""
	}
	what := "install.diskSelector matches none of its disks"
	if selector == nil {
		what = fmt.Sprintf("its install disk %s is not there", nameOr(install.Disk(), "(none named)"))
	}
	return nil, fmt.Sprintf("%s; it has %s", what, nameOr(strings.Join(all, ", "), "no disk that could be read"))
}

func diskSpec(d talos.Disk) *blockpb.DiskSpec {
	return &blockpb.DiskSpec{
		DevPath: d.Path, Size: d.Size, Model: d.Model, Serial: d.Serial, Modalias: d.Modalias, Wwid: d.WWID, BusPath: d.BusPath,
		Transport: d.Transport, Rotational: d.Rotational, Readonly: d.ReadOnly, Cdrom: d.CDROM, Uuid: d.UUID, Symlinks: d.Symlinks,
	}
}
