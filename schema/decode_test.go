package schema

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestEachKindIsRead(t *testing.T) {
	fleet, problems := loadAll(map[string]string{
		"clusters/prod/cluster.yaml":           clusterYAML,
		"clusters/prod/machines/cp-1.yaml":     machineYAML,
		"clusters/prod/backup.yml":             backupYAML,
		"operations/20261129-reboot-w1.yaml":   operationYAML,
		"policies/house.yaml":                  policyYAML,
		"operations/20261129-reboot-w1.md":     "not YAML: [",
		"clusters/prod/machines/cp-1.yaml.bak": "not YAML: [",
	})
	requireClean(t, problems)
	require.Equal(t, 5, fleet.Files)
	require.Len(t, fleet.Clusters, 1)
	require.Equal(t, "prod", fleet.Clusters[0].Metadata.Name)
	require.Equal(t, 3, fleet.Clusters[0].Spec.ControlPlane.Count)
	require.Equal(t, "secrets.age", fleet.Clusters[0].Spec.Secrets.File)
	require.Len(t, fleet.MachinesOf("prod"), 1)
	require.Equal(t, RoleControlPlane, fleet.Machines[0].Spec.Role)
	require.Len(t, fleet.Backups, 1)
	require.Equal(t, "https://s3.example.com", fleet.Backups[0].Spec.Destination.S3.Endpoint)
	require.Len(t, fleet.Operations, 1)
	require.Equal(t, ActionReboot, fleet.Operations[0].Spec.Node.Action)
	require.Equal(t, time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC), fleet.Operations[0].Spec.CreatedAt)
	require.Len(t, fleet.Policies, 1)
	require.Empty(t, fleet.Broken)
}

func TestEveryFieldIsRead(t *testing.T) {
	files := map[string]string{}
	for i, document := range strings.Split(fullYAML, "\n---\n") {
		files[fmt.Sprintf("%02d.yaml", i)] = document + "\n"
	}
	fleet, problems := loadAll(files)
	requireClean(t, problems)

	cluster := fleet.Clusters[0].Spec
	require.False(t, cluster.ControlPlanesSchedulable())
	require.Equal(t, "v1.12", cluster.ContractVersion())
	require.Equal(t, []string{"10.244.0.0/16", "fd00:10:244::/56"}, cluster.Network.PodSubnets)
	require.Equal(t, "none", cluster.Network.CNI)
	require.Equal(t, IntOrPercent("25%"), cluster.Rollout.MaxUnavailableWorkers)
	require.Equal(t, RebootsWindow, cluster.Rollout.RebootPolicy())
	require.Equal(t, Duration(4*time.Hour), cluster.Rollout.Windows[0].Duration)
	require.Equal(t, 15*time.Minute, cluster.Rollout.Drain.Limit())
	require.True(t, cluster.Rollout.Drain.Force)
	require.Equal(t, "patches/all.yaml", cluster.Patches.All[0].File)
	want := `{"machine":{"kernel":null,"nodeTaints":[],"sysctls":{"net.core.somaxconn":"65535","when":"2026-01-01"},"time":{"bootTimeout":2.5,"disabled":false},"uid":1000}}`
	got, err := json.Marshal(cluster.Patches.ControlPlane[0].Inline)
	require.NoError(t, err)
	require.JSONEq(t, want, string(got))

	machine := fleet.Machines[0].Spec
	require.Equal(t, "4c4c4544-0039-3510-8052-b4c04f4e3732", machine.UUID, "a UUID is kept in lower case")
	require.Equal(t, "[fd00::11]:50001", machine.Address())
	require.Equal(t, "fd00::11", machine.Host())
	require.Equal(t, "alice@example.com", machine.ApprovalDecision.By)
	require.Equal(t, map[string]any{"size": ">= 100GB", "type": "nvme"}, machine.Install.DiskSelector)
	require.Equal(t, []string{"dedicated=gpu:NoSchedule", "broken:NoExecute"}, machine.Taints)
	require.Equal(t, map[string]string{"example.com/rack": "r1", "empty": ""}, machine.Labels)

	backup := fleet.Backups[0].Spec
	last, daily, weekly := backup.Kept()
	require.Equal(t, []int{0, 7, 4}, []int{last, daily, weekly})
	require.Equal(t, "path", backup.Destination.S3.AddressingStyle())
	require.Equal(t, "ca.crt", backup.Destination.S3.CA.File)

	restore := fleet.Operations[0].Spec.EtcdRestore
	require.False(t, restore.BumpsRevision())
	require.Equal(t, map[string]string{"cp-1": "4c4c4544-0039-3510-8052-b4c04f4e3732"}, restore.ControlPlanes)
}

func TestWhatIsNotGivenHasItsDefault(t *testing.T) {
	var cluster ClusterSpec
	require.True(t, cluster.ControlPlanesSchedulable())
	require.Equal(t, "v1.13", cluster.ContractVersion())
	require.Equal(t, RebootsAutomatic, cluster.Rollout.RebootPolicy())
	require.Equal(t, 10*time.Minute, cluster.Rollout.Drain.Limit())

	var backup BackupSpec
	require.Equal(t, "0 * * * *", backup.Cron())
	last, daily, weekly := backup.Kept()
	require.Equal(t, []int{24, 0, 0}, []int{last, daily, weekly})
	last, daily, weekly = BackupSpec{Retention: &Retention{KeepDaily: 3}}.Kept()
	require.Equal(t, []int{24, 3, 0}, []int{last, daily, weekly})
	require.Equal(t, "auto", S3Destination{}.AddressingStyle())

	require.Equal(t, "powerOff", NodeOperation{}.ThenAction())
	require.True(t, RestoreOperation{}.BumpsRevision())
	require.Equal(t, "error", Rule{}.SeverityOrError())
}

func TestAShareOfTheWorkersIsRoundedDownAndAtLeastOne(t *testing.T) {
	for _, c := range []struct {
		value       IntOrPercent
		total, want int
	}{{"", 10, 1}, {"25%", 11, 2}, {"5%", 3, 1}, {"100%", 3, 3}, {"4", 3, 4}} {
		got, err := c.value.Of(c.total)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%s of %d", c.value, c.total)
	}
	for _, value := range []IntOrPercent{"0", "-1", "x%", "%"} {
		_, err := value.Of(3)
		require.Error(t, err, value)
	}
}

func TestTheAddressOfAMachineHasThePortOfTalosUnlessOneIsGiven(t *testing.T) {
	for endpoint, want := range map[string]string{
		"10.0.0.11":            "10.0.0.11:50000",
		"10.0.0.11:6000":       "10.0.0.11:6000",
		"fd00::11":             "[fd00::11]:50000",
		"[fd00::11]":           "[fd00::11]:50000",
		"[fd00::11]:6000":      "[fd00::11]:6000",
		"cp-1.example.com":     "cp-1.example.com:50000",
		"cp-1.example.com:443": "cp-1.example.com:443",
	} {
		require.Equal(t, want, MachineSpec{Endpoint: endpoint}.Address())
	}
}

func TestTheClusterIDIsOfTheBundlesID(t *testing.T) {
	// printf 'ichor.maesh.dev/cluster/v1%s' 'WqWDNzXr…' | sha256sum | cut -c1-16
	require.Equal(t, "bcfbbeffbb9c70b7", ClusterID("WqWDNzXrFiaG5jHqSNNvcD8rhQhRb9zfDtLUAvPBVWQ="))
	require.Regexp(t, `^[0-9a-f]{16}$`, ClusterID(""))
	require.NotEqual(t, ClusterID("a"), ClusterID("b"))
}

func TestPositionsPointAtValuesAndKeys(t *testing.T) {
	fleet, problems := loadAll(map[string]string{"a.yaml": "# head\n---\n" + clusterYAML + `  patches:
    all:
    - file: all.yaml
    - inline: {machine: {}}
`, "all.yaml": "machine: {}\n"})
	requireClean(t, problems)
	source := fleet.Clusters[0].Source
	require.Equal(t, Position{"a.yaml", 3, 1}, source.Position)
	for path, want := range map[string]Position{
		"metadata":                     {"a.yaml", 5, 1},
		"metadata.name":                {"a.yaml", 6, 9},
		"spec.controlPlane":            {"a.yaml", 12, 3},
		"spec.controlPlane.count":      {"a.yaml", 13, 12},
		"spec.secrets.file":            {"a.yaml", 15, 11},
		"spec.patches.all":             {"a.yaml", 17, 5},
		"spec.patches.all[0]":          {"a.yaml", 18, 7},
		"spec.patches.all[0].file":     {"a.yaml", 18, 13},
		"spec.patches.all[1].inline":   {"a.yaml", 19, 7},
		"spec.patches.all[1].inline.x": {"a.yaml", 19, 7},
		"spec.controlPlane.no.such":    {"a.yaml", 12, 3},
		"nothing":                      {"a.yaml", 3, 1},
	} {
		require.Equal(t, want, source.At(path), path)
	}
}

func TestAnchorsAliasesAndMergeKeysAreFollowed(t *testing.T) {
	fleet, problems := loadAll(map[string]string{"a.yaml": `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: prod, annotations: &notes {team: a}, labels: *notes}
spec:
  id: 1f3a9c0d2b4e6f78
  endpoint: https://10.0.0.10:6443
  talosVersion: &version v1.36.2
  kubernetesVersion: *version
  controlPlane: {count: 1}
  secrets: {file: secrets.age}
  patches:
    all:
    - &base
      inline: &machine {machine: &m {time: {disabled: true}, kernel: {}}}
    worker:
    - inline:
        <<: *machine
        cluster: {a: 1}
    - inline: {machine: {<<: [*m, {extra: x, time: lost}], kernel: mine}}
`})
	requireClean(t, problems)
	spec := fleet.Clusters[0].Spec
	require.Equal(t, "v1.36.2", spec.KubernetesVersion)
	require.Equal(t, map[string]string{"team": "a"}, fleet.Clusters[0].Metadata.Labels)
	time := map[string]any{"disabled": true}
	require.Equal(t, map[string]any{"machine": map[string]any{"time": time, "kernel": map[string]any{}}, "cluster": map[string]any{"a": int64(1)}},
		spec.Patches.Worker[0].Inline)
	require.Equal(t, map[string]any{"machine": map[string]any{"time": time, "kernel": "mine", "extra": "x"}}, spec.Patches.Worker[1].Inline)
}

func TestAnEmptyFieldIsAsGoodAsNone(t *testing.T) {
	fleet, problems := loadAll(map[string]string{"a.yaml": clusterYAML + "  contract:\n  patches:\n    all:\n  network: ~\n"})
	requireClean(t, problems)
	require.Equal(t, "v1.13", fleet.Clusters[0].Spec.ContractVersion())

	_, problems = loadAll(map[string]string{"a.yaml": edited(clusterYAML, "count: 3", "count:")})
	require.Equal(t, "a.yaml:11:5: [prod] spec.controlPlane.count is empty; it must be 1, 3 or 5: an even number bears no more failures than one less\n", lines(problems))
}

func TestDecodeReadsAFileThatStandsAlone(t *testing.T) {
	fleet, problems := Decode("operations/x.yaml", []byte(operationYAML))
	requireClean(t, problems)
	require.Equal(t, "20261129-reboot-w1", fleet.Operations[0].Metadata.Name)

	_, problems = Decode("operations/x.yaml", []byte(edited(operationYAML, "kind: node", "kind: nod")))
	require.Equal(t, "operations/x.yaml:7:9: [] spec.kind is \"nod\"; it must be node, etcd-backup, etcd-restore, adopt, bootstrap, resume or cancel; did you mean \"node\"?\n", lines(problems))
}

func TestOverridesAreKnown(t *testing.T) {
	require.True(t, OperationSpec{Kind: OperationEtcdRestore}.NeedsOverride())
	require.True(t, OperationSpec{Kind: OperationBootstrap}.NeedsOverride())
	require.True(t, OperationSpec{Kind: OperationNode, Node: &NodeOperation{Action: ActionRemove}}.NeedsOverride())
	require.False(t, OperationSpec{Kind: OperationNode, Node: &NodeOperation{Action: ActionReboot}}.NeedsOverride())
	require.False(t, OperationSpec{Kind: OperationAdopt}.NeedsOverride())
}

// fullYAML gives every field of every kind, but for those that exclude each other.
const fullYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: prod
  labels: {tier: prod}
  annotations: {ichor.maesh.dev/paused: "moving racks", ichor.maesh.dev/allow-delete: prod, "example.com/x": "a b\nc"}
spec:
  id: 1f3a9c0d2b4e6f78
  endpoint: https://k8s.example.com
  talosVersion: v1.14.0-beta.1
  kubernetesVersion: v1.36.2
  contract: v1.12
  controlPlane: {count: 5, schedulable: false}
  secrets: {file: sealed/../secrets.age}
  install: {image: "factory.talos.dev/metal-installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba", disk: /dev/sda}
  network:
    podSubnets: [10.244.0.0/16, "fd00:10:244::/56"]
    serviceSubnets: [10.96.0.0/12]
    dnsDomain: cluster.local
    cni: none
  patches:
    all: [{file: patches/all.yaml}]
    controlPlane:
    - inline:
        machine: {sysctls: {net.core.somaxconn: "65535", when: 2026-01-01}, time: {disabled: false, bootTimeout: 2.5}, uid: 1_000, nodeTaints: [], kernel: ~}
    worker: [{file: patches/worker.age}]
  rollout:
    maxUnavailableWorkers: 25%
    reboots: window
    windows: [{schedule: "0 2 * * SAT", duration: 4h}]
    drain: {timeout: 15m, force: true}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: cp-1}
spec:
  clusterRef: {name: prod}
  role: controlplane
  endpoint: "[fd00::11]:50001"
  uuid: 4C4C4544-0039-3510-8052-B4C04F4E3732
  fingerprint: 47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=
  hostname: cp-1.example.com
  approved: true
  approvalDecision: {at: 2026-11-29T10:00:00+01:00, by: alice@example.com}
  install: {diskSelector: {size: ">= 100GB", type: nvme}, wipe: true}
  labels: {example.com/rack: r1, empty: ""}
  taints: ["dedicated=gpu:NoSchedule", "broken:NoExecute"]
  patches: [{inline: {machine: {}}}]
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec:
  clusterRef: {name: prod}
  schedule: "*/15 * * * *"
  suspend: true
  destination:
    s3:
      endpoint: http://127.0.0.1:9000
      region: eu-1
      bucket: backups
      prefix: talos/prod
      credentials: {file: s3.age}
      ca: {file: ca.crt}
      addressing: path
  retention: {keepLast: 0, keepDaily: 7, keepWeekly: 4}
  drill: {schedule: "30 4 * * *"}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-restore}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: etcd-restore
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-29T22:00:00.5+01:00
  reason: "yesterday's upgrade"
  etcdRestore:
    backupRef: {name: hourly}
    snapshot: {name: etcd-20261129T090000Z.snapshot.age, sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
    confirm: prod
    controlPlanes: {cp-1: 4C4C4544-0039-3510-8052-B4C04F4E3732}
    without: {cp-3: 4c4c4544-0039-3510-8052-b4c04f4e3734}
    localDataLoss: accepted
    revisionBump: false
    acceptUnlisted: true
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-remove-w1}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: node
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  node: {machineRef: {name: w-1, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3733}, action: remove, confirm: w-1, then: reboot}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-restart-kubelet}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: node
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-12-06T10:00:00Z
  node: {machineRef: {name: w-1, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3733}, action: restart-service, service: kubelet}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-defrag}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: node
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  node: {machineRef: {name: cp-1, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3732}, action: etcd-defrag, allowLeader: true}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-backup}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: etcd-backup
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  etcdBackup: {backupRef: {name: hourly}}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-adopt}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: adopt
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  adopt: {machineRef: {name: cp-1, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3732}}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-bootstrap}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: bootstrap
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  bootstrap: {machineRef: {name: cp-1, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3732}, confirm: prod}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-resume}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: resume
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  resume: {operation: 20261129-restore, digest: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855, pause: 1}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: 20261129-cancel}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: cancel
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  cancel: {operation: 20261129-restore, digest: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
---
apiVersion: ichor.maesh.dev/v1alpha1
kind: Policy
metadata: {name: house}
spec:
  rules:
  - {name: prod-is-ha, scope: cluster, field: spec.controlPlane.count, when: "true", expr: "self.spec.controlPlane.count >= 3", message: "'no'", severity: warning}
`
