package operation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/schema"
)

// Sentence says what an operation does, with everything in it that its signer answers for: "reboots w-1 (4c4c...) of prod".
func Sentence(spec schema.OperationSpec) string {
	cluster := printable.Text(spec.ClusterRef.Name)
	switch {
	case spec.Node != nil:
		return nodeSentence(*spec.Node, cluster)
	case spec.EtcdBackup != nil:
		return fmt.Sprintf("takes a snapshot of the etcd of %s for the backup %s", cluster, spec.EtcdBackup.BackupRef.Name)
	case spec.EtcdRestore != nil:
		return restoreSentence(*spec.EtcdRestore, cluster)
	case spec.Adopt != nil:
		return fmt.Sprintf("lets Ichor change %s of %s, which it did not configure", machine(spec.Adopt.MachineRef), cluster)
	case spec.Bootstrap != nil:
		return fmt.Sprintf("permits that the etcd of %s begins anew on %s, where there may have been one", cluster, machine(spec.Bootstrap.MachineRef))
	case spec.Resume != nil:
		return fmt.Sprintf("goes on with the operation %s (digest %s) of %s after its pause number %d", spec.Resume.Operation, spec.Resume.Digest, cluster, spec.Resume.Pause)
	case spec.Cancel != nil:
		return fmt.Sprintf("ends the operation %s (digest %s) of %s", spec.Cancel.Operation, spec.Cancel.Digest, cluster)
	}
	return fmt.Sprintf("does nothing that is known (kind %q)", printable.Text(string(spec.Kind)))
}

func nodeSentence(node schema.NodeOperation, cluster string) string {
	target := machine(node.MachineRef) + " of " + cluster
	switch node.Action {
	case schema.ActionReboot:
		return "reboots " + target
	case schema.ActionShutdown:
		return "shuts down " + target
	case schema.ActionRestartService:
		return fmt.Sprintf("restarts the service %s on %s", node.Service, target)
	case schema.ActionEtcdDefrag:
		if node.AllowLeader {
			return "defragments the etcd database of " + target + ", even while it leads"
		}
		return "defragments the etcd database of " + target + ", unless it leads"
	case schema.ActionEtcdForfeit:
		return "has another member lead etcd in the place of " + target
	case schema.ActionRemove:
		end := "powers it off"
		if node.Then == "reboot" {
			end = "reboots it"
		}
		if node.Gone {
			return "takes " + target + " out of the cluster without touching it, because it is off for good"
		}
		return "takes " + target + " out of the cluster, wipes it, and " + end
	}
	return fmt.Sprintf("does nothing that is known (action %q) to %s", printable.Text(node.Action), target)
}

func restoreSentence(restore schema.RestoreOperation, cluster string) string {
	text := fmt.Sprintf("puts the snapshot %s (sha256 %s) of the backup %s in the place of the etcd of %s, and what was written since is lost; its control planes are %s",
		restore.Snapshot.Name, restore.Snapshot.SHA256, restore.BackupRef.Name, cluster, machines(restore.ControlPlanes))
	if len(restore.Without) > 0 {
		text += "; off for good are " + machines(restore.Without)
	}
	if restore.LocalDataLoss != "" {
		text += "; that local volumes on them are lost is accepted"
	}
	if restore.RevisionBump != nil && !*restore.RevisionBump {
		text += "; revisions are not bumped, so clients may see them go back"
	}
	if restore.AcceptUnlisted {
		text += "; the snapshot may be one that the index doesn't list"
	}
	return text
}

func machine(ref schema.MachineRef) string { return fmt.Sprintf("%s (%s)", ref.Name, ref.UUID) }

func machines(uuids map[string]string) string {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(uuids)) {
		each = append(each, machine(schema.MachineRef{Name: name, UUID: uuids[name]}))
	}
	return strings.Join(each, ", ")
}
