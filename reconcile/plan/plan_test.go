package plan_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/reconcile/plan"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// repository is a fleet repository in memory.
type repository struct {
	t          *testing.T
	files      fstest.MapFS
	identities *sealed.Identities
	recipients []sealed.Recipient
	bundle     *talos.Bundle
}

const approvedMachine = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: %[1]s}
spec:
  clusterRef: {name: prod}
  role: %[2]s
  endpoint: 10.0.0.%[3]d
  uuid: 11111111-1111-4111-8111-1111111111%[3]d
  approved: true
  approvalDecision: {at: 2026-11-29T10:%[3]d:00Z, by: alice@example.com}
`

func newRepository(t *testing.T) *repository {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	r := &repository{t: t, files: fstest.MapFS{}}
	r.identities, err = sealed.ParseIdentities("test", []byte(identity.String()))
	require.NoError(t, err)
	r.recipients, err = sealed.ParseRecipients("test", []byte(identity.Recipient().String()))
	require.NoError(t, err)
	r.bundle = r.newBundle("clusters/prod/secrets.age")
	r.write("clusters/prod/cluster.yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: prod}
spec:
  id: "%s"
  endpoint: https://10.0.0.9:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  controlPlane: {count: 3}
  secrets: {file: secrets.age}
  install: {disk: /dev/sda}
`, schema.ClusterID(r.bundle.ClusterID())))
	for n, name := range []string{"cp-1", "cp-2", "cp-3"} {
		r.machine(name, "controlplane", 11+n)
	}
	r.machine("w-1", "worker", 21)
	r.machine("w-2", "worker", 22)
	return r
}

func (r *repository) newBundle(name string) *talos.Bundle {
	bundle, err := talos.GenerateBundle(validate.StandInContract)
	require.NoError(r.t, err)
	text, err := bundle.Marshal()
	require.NoError(r.t, err)
	r.seal(name, string(text))
	return bundle
}

func (r *repository) seal(name, text string) {
	data, err := sealed.Seal(r.recipients, []byte(text))
	require.NoError(r.t, err)
	r.write(name, string(data))
}

func (r *repository) write(name, text string) {
	r.files[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
}

func (r *repository) machine(name, role string, number int) {
	r.write("clusters/prod/machines/"+name+".yaml", fmt.Sprintf(approvedMachine, name, role, number))
}

// edit replaces a text that stands in a file once.
func (r *repository) edit(name, old, text string) {
	before := string(r.files[name].Data)
	require.Equal(r.t, 1, strings.Count(before, old), "%s holds %q", name, old)
	r.write(name, strings.Replace(before, old, text, 1))
}

// spec adds to the cluster's spec.
func (r *repository) spec(text string) {
	r.write("clusters/prod/cluster.yaml", string(r.files["clusters/prod/cluster.yaml"].Data)+text)
}

func (r *repository) copy() *repository {
	c := *r
	c.files = maps.Clone(r.files)
	return &c
}

func (r *repository) fleet() (*schema.Fleet, []schema.Problem) {
	return schema.Load(r.files, []string{"."})
}

// planned makes the plan of the step from base (nil: none) to r.
func (r *repository) planned(base *repository, identities *sealed.Identities) *plan.Report {
	r.t.Helper()
	var old *schema.Fleet
	if base != nil {
		old, _ = base.fleet()
	}
	fleet, problems := r.fleet()
	engine, err := validate.New()
	require.NoError(r.t, err)
	findings := append(validate.FromProblems(problems), engine.Check(old, fleet, validate.WithProblems(problems))...)
	report, err := plan.Of(context.Background(), plan.Change{Base: old, BaseCommit: "0123456789abcdef", Proposed: fleet, Findings: findings},
		plan.Options{Now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Identities: identities})
	require.NoError(r.t, err)
	return report
}

// outcomes are outcome and reason by machine.
func outcomes(r *plan.Report) map[string]string {
	found := map[string]string{}
	for _, m := range r.Clusters[0].Machines {
		found[m.Name] = string(m.Outcome) + " " + m.Reason
	}
	return found
}

func calls(r *plan.Report) []string {
	var found []string
	for _, s := range r.Clusters[0].Steps {
		found = append(found, s.Action+" "+s.Machine)
	}
	return found
}

func text(t *testing.T, write func(io.Writer) error) string {
	var b bytes.Buffer
	require.NoError(t, write(&b))
	return b.String()
}

const live = "  patches: {all: [{inline: {machine: {sysctls: {vm.swappiness: \"7\"}}}}]}\n"

func TestWhatHappensToEachMachine(t *testing.T) {
	base := newRepository(t)
	for _, c := range []struct {
		name    string
		change  func(r *repository)
		machine string
		outcome string
		steps   int
		text    string
	}{
		{"nothing changes", func(*repository) {}, "w-1", "nothing Ready", 0, "5 machines stay as they are"},
		{"a live change is tried and kept on each", func(r *repository) { r.spec(live) }, "w-2", "live Ready", 10, "5 machines change without a reboot"},
		{"a change that needs a reboot is stored, and the machines are rebooted one by one", func(r *repository) {
			r.spec("  patches: {worker: [{inline: {machine: {kernel: {modules: [{name: x}]}, systemDiskEncryption: {ephemeral: {provider: luks2, keys: [{slot: 0, nodeID: {}}]}}}}}]}\n")
		}, "w-1", "reboot Ready", 10, "w-1 reboots: a changed config waits for its boot"},
		{"a change that needs a reboot waits for a hand where reboots are manual", func(r *repository) {
			r.spec("  rollout: {reboots: manual}\n  patches: {worker: [{inline: {machine: {systemDiskEncryption: {ephemeral: {provider: luks2, keys: [{slot: 0, nodeID: {}}]}}}}}]}\n")
		}, "w-1", "reboot RebootRequired", 2, "w-1: it waits (rollout.reboots is manual)"},
		{"a control plane's reboot says what it means for etcd", func(r *repository) {
			r.edit("clusters/prod/machines/cp-2.yaml", "approved: true", "patches: [{inline: {machine: {files: [{path: /var/x, content: y, permissions: 0o600, op: create}]}}}]\n  approved: true")
		}, "cp-2", "reboot Ready", 5, "etcd has 2 of 3 members meanwhile and needs 2"},
		{"a machine that is not approved any more is left alone", func(r *repository) {
			r.edit("clusters/prod/machines/w-1.yaml", "approved: true", "approved: false")
			r.spec(live)
		}, "w-1", "waiting NotApproved", 8, "w-1 (NotApproved)"},
		{"a paused machine is left alone", func(r *repository) {
			r.edit("clusters/prod/machines/w-1.yaml", "{name: w-1}", "{name: w-1, annotations: {ichor.maesh.dev/paused: disk is being changed}}")
			r.spec(live)
		}, "w-1", "waiting Paused", 8, "disk is being changed"},
		{"a paused cluster is left alone", func(r *repository) {
			r.edit("clusters/prod/cluster.yaml", "{name: prod}", "{name: prod, annotations: {ichor.maesh.dev/paused: freeze}}")
			r.spec(live)
		}, "w-1", "waiting ChangePending", 0, "the cluster is paused: freeze"},
		{"a machine that goes is no longer managed", func(r *repository) { delete(r.files, "clusters/prod/machines/w-1.yaml") }, "w-1", "unmanaged Unmanaged", 0,
			"w-1 (Unmanaged): w-1 (10.0.0.21) is no longer in Git and was not removed"},
		{"a new worker gets its first config", func(r *repository) { r.machine("w-3", "worker", 23) }, "w-3", "first-config Ready", 1,
			"1 machine gets its first config, 5 stay as they are"},
		{"a fourth control plane joins", func(r *repository) { r.machine("cp-4", "controlplane", 14) }, "cp-4", "first-config Ready", 2,
			"etcd ends with 4 members: cp-1, cp-2, cp-3, cp-4"},
		{"a fifth control plane is held", func(r *repository) {
			r.machine("cp-4", "controlplane", 14)
			r.machine("cp-5", "controlplane", 15)
		}, "cp-5", "waiting ControlPlaneOverCap", 2, "approval-cap"},
		{"a new address is the same machine", func(r *repository) {
			r.edit("clusters/prod/machines/w-1.yaml", "10.0.0.21", "10.0.0.99")
		}, "w-1", "live Ready", 2, "10.0.0.99"},
		{"a version is not brought by a config change", func(r *repository) {
			r.edit("clusters/prod/cluster.yaml", "v1.36.2", "v1.36.3")
		}, "cp-1", "waiting UpgradePending", 0, "cp-1, cp-2, cp-3 (UpgradePending)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := base.copy()
			r.t = t
			c.change(r)
			report := r.planned(base, nil)
			require.Equal(t, c.outcome, outcomes(report)[c.machine])
			require.Len(t, report.Clusters[0].Steps, c.steps, "%v", calls(report))
			require.Contains(t, text(t, report.WriteText), c.text)
			withKey := r.planned(base, base.identities)
			require.Equal(t, outcomes(report), outcomes(withKey), "made-up secrets change nothing")
			require.Equal(t, calls(report), calls(withKey))
			require.Equal(t, report.Changes, report.Clusters[0].Change != "same")
			require.Equal(t, c.name != "nothing changes", report.Changes)
		})
	}
}

func TestAClusterThatIsNewOrGone(t *testing.T) {
	r := newRepository(t)
	report := r.planned(nil, nil)
	require.Equal(t, "new", report.Clusters[0].Change)
	require.Equal(t, []string{"first-config cp-1", "first-config cp-2", "first-config cp-3", "first-config w-1", "first-config w-2",
		"bootstrap cp-1", "join cp-2", "join cp-3"}, calls(report))
	require.Contains(t, text(t, report.WriteText), "there is no base")

	kept := r.copy()
	kept.edit("clusters/prod/cluster.yaml", "{name: prod}", "{name: prod, annotations: {ichor.maesh.dev/allow-delete: prod}}")
	empty := r.copy()
	empty.files = fstest.MapFS{"clusters/readme.yaml": &fstest.MapFile{Data: []byte("# nothing\n")}}
	report = empty.planned(kept, nil)
	require.Equal(t, "removed", report.Clusters[0].Change)
	require.Equal(t, "unmanaged NoCluster", outcomes(report)["cp-1"])
	require.Empty(t, calls(report))
}

func TestARefusedClusterHasNoSteps(t *testing.T) {
	base := newRepository(t)
	r := base.copy()
	r.spec(live)
	r.edit("clusters/prod/machines/w-1.yaml", "role: worker", "role: controlplane")
	report := r.planned(base, nil)
	require.True(t, report.Refused)
	require.Empty(t, calls(report))
	require.Contains(t, report.Rules(), "role-immutable")
	require.Contains(t, report.Clusters[0].Refused[0], "role-immutable: ")
}

func TestAnotherBundleIsRefusedAndASealedAnewOneIsNot(t *testing.T) {
	base := newRepository(t)
	again := base.copy()
	plain, err := base.bundle.Marshal()
	require.NoError(t, err)
	again.seal("clusters/prod/secrets.age", string(plain))
	report := again.planned(base, base.identities)
	require.False(t, report.Changes)
	require.Contains(t, text(t, again.planned(base, nil).WriteText), "the file of the secrets bundle changed")

	other := base.copy()
	bundle := other.newBundle("clusters/prod/secrets.age")
	other.edit("clusters/prod/cluster.yaml", schema.ClusterID(base.bundle.ClusterID()), schema.ClusterID(bundle.ClusterID()))
	report = other.planned(base, base.identities)
	require.True(t, report.Refused)
	require.Contains(t, strings.Join(report.Clusters[0].Refused, "\n"), "WrongBundle")
}

// canaries are what a sealed patch holds: long and short, and of a place that nobody expects a secret in.
var canaries = []string{"canary-value-1f9c", "q7x", "canary-other-77"}

func sealedPatch(values []string) string {
	return fmt.Sprintf("machine:\n  sysctls: {kernel.core_pattern: %q, kernel.hostname: %q}\n  nodeLabels: {note: %q}\n", values[0], values[1], values[2])
}

func TestNoSecretIsEverShown(t *testing.T) {
	base := newRepository(t)
	base.spec("  patches: {all: [{file: patch.age}]}\n")
	base.seal("clusters/prod/patch.age", sealedPatch(canaries))
	changed, removed, plainer := base.copy(), base.copy(), base.copy()
	newer := []string{"canary-newer-55d0", "w8z", "canary-yet-another"}
	changed.seal("clusters/prod/patch.age", sealedPatch(newer))
	removed.edit("clusters/prod/cluster.yaml", "  patches: {all: [{file: patch.age}]}\n", live)
	plainer.edit("clusters/prod/cluster.yaml", "[{file: patch.age}]", "[{file: patch.age}, {inline: {machine: {sysctls: {vm.swappiness: \"7\"}}}}]")
	for name, r := range map[string]*repository{"changed": changed, "removed": removed, "another patch beside it": plainer} {
		t.Run(name, func(t *testing.T) {
			report := r.planned(base, base.identities)
			require.Equal(t, 5, report.Clusters[0].Counts.Live, "%v", outcomes(report))
			for format, write := range map[string]func(io.Writer) error{"text": report.WriteText, "markdown": report.WriteMarkdown, "json": report.WriteJSON} {
				shown := text(t, write)
				for _, secret := range slices.Concat(base.bundle.Scalars(), canaries, newer) {
					require.NotContains(t, shown, secret, "%s of a patch that was %s", format, name)
				}
				if name != "another patch beside it" {
					require.Contains(t, shown, "(hidden ", "the canaries were met")
				}
			}
		})
	}
}

func TestASealedPatchThatCantBeOpened(t *testing.T) {
	base := newRepository(t)
	base.spec("  patches: {all: [{inline: {machine: {sysctls: {vm.swappiness: \"1\"}}}}], worker: [{file: patch.age}]}\n")
	base.seal("clusters/prod/patch.age", sealedPatch(canaries))
	same, changed := base.copy(), base.copy()
	same.edit("clusters/prod/cluster.yaml", "vm.swappiness: \"1\"", "vm.swappiness: \"7\"")
	report := same.planned(base, nil)
	require.Equal(t, 5, report.Clusters[0].Counts.Live)
	require.Contains(t, text(t, report.WriteText), "clusters/prod/patch.age can't be opened here (give --age-identity): what it sets is left out on both sides")

	changed.seal("clusters/prod/patch.age", sealedPatch(canaries))
	report = changed.planned(base, nil)
	require.Equal(t, plan.Counts{Unknown: 2, Nothing: 3}, report.Clusters[0].Counts)
	require.True(t, report.Changes)
	require.Contains(t, text(t, report.WriteText), "what sealed patches set for w-1 changes, and they can't be opened here (clusters/prod/patch.age)")
	require.False(t, changed.planned(base, base.identities).Changes, "sealed anew, with the same inside")
}

func TestOperationsAndBackupsOfAChange(t *testing.T) {
	base := newRepository(t)
	r := base.copy()
	r.write("clusters/prod/backup.yaml", `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec:
  clusterRef: {name: prod}
  schedule: "15 * * * *"
  destination: {s3: {endpoint: "https://s3.example.com", bucket: etcd-backups, prefix: prod}}
`)
	r.write("operations/20261130-reboot-w-1.yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata:
  name: 20261130-reboot-w-1
spec:
  clusterRef:
    name: prod
    id: "%s"
  kind: node
  createdAt: 2026-11-30T10:00:00Z
  expiresAt: 2026-11-30T22:00:00Z
  node:
    machineRef:
      name: w-1
      uuid: 11111111-1111-4111-8111-111111111121
    action: reboot
`, schema.ClusterID(base.bundle.ClusterID())))
	report := r.planned(base, nil)
	shown := text(t, report.WriteText)
	require.Contains(t, shown, "backup hourly is new: a snapshot of etcd goes to s3://etcd-backups/prod at https://s3.example.com at \"15 * * * *\" (UTC); the last 24 are kept")
	require.Contains(t, shown, "operation 20261130-reboot-w-1 reboots w-1 (11111111-1111-4111-8111-111111111121) of prod; it runs only with a signature for the namespace "+
		"ichor-operation@prod beside it (operations/20261130-reboot-w-1.yaml.sig)")
	require.True(t, report.Changes)
}

func TestMarkdownFitsIntoAComment(t *testing.T) {
	huge := strings.Repeat("+ a line of a diff that is not short at all\n", 400)
	report := &plan.Report{Summary: "many machines change"}
	cluster := plan.Cluster{Name: "prod", Change: "changed"}
	for n := range 30 {
		cluster.Machines = append(cluster.Machines, plan.Machine{Name: fmt.Sprintf("w-%d", n), Outcome: plan.OutcomeLive, Diff: fmt.Sprintf("@@ %d @@\n%s", n, huge)})
	}
	report.Clusters = []plan.Cluster{cluster}
	shown := text(t, report.WriteMarkdown)
	require.LessOrEqual(t, utf8.RuneCountInString(shown), 65536)
	require.True(t, strings.HasPrefix(shown, plan.Marker+"\n"))
	require.Contains(t, shown, "parts were left out, because a comment has room for 65536 characters")
	require.Equal(t, strings.Count(shown, "<details>"), strings.Count(shown, "</details>"))
	require.NotZero(t, strings.Count(shown, "<details>"), "what fits is shown")
}

func TestMarkdownIsNotEscapedFrom(t *testing.T) {
	report := &plan.Report{Summary: "x", Clusters: []plan.Cluster{{Name: "prod", Change: "changed",
		Notes:    []string{"</details> @alice `code` [a](b) <script>"},
		Machines: []plan.Machine{{Name: "<b>`w`", Outcome: plan.OutcomeLive, Diff: "+ before\n+ ````\n+ </details>\n+ after ```\n"}}}}}
	shown := text(t, report.WriteMarkdown)
	require.Contains(t, shown, "\n`````diff\n")
	require.Contains(t, shown, "\n`````\n</details>\n")
	require.Contains(t, shown, "&lt;/details&gt; @<!-- -->alice \\`code\\` \\[a\\](b) &lt;script&gt;")
	require.Contains(t, shown, "<summary>config of &lt;b&gt;`w` (prod)</summary>")
}

func TestTheJSONFormHasEveryKey(t *testing.T) {
	r := newRepository(t)
	var report map[string]any
	require.NoError(t, json.Unmarshal([]byte(text(t, r.planned(nil, nil).WriteJSON)), &report))
	require.ElementsMatch(t, []string{"base", "live", "refused", "changes", "summary", "notes", "findings", "clusters"}, slices.Collect(maps.Keys(report)))
	cluster := report["clusters"].([]any)[0].(map[string]any)
	require.ElementsMatch(t, []string{"name", "change", "refused", "reason", "message", "counts", "steps", "machines", "reboots", "etcd", "backups",
		"operations", "notes"}, slices.Collect(maps.Keys(cluster)))
	for key, value := range cluster {
		require.NotNil(t, value, key)
	}
	for key, value := range cluster["etcd"].(map[string]any) {
		require.NotNil(t, value, key)
	}
}
