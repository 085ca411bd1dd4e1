package operation

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/schema"
)

func TestASentenceNamesEverythingThatItsSignerAnswersFor(t *testing.T) {
	const uuid = "4c4c4544-0039-3510-8052-b4c04f4e3733"
	w1 := schema.MachineRef{Name: "w-1", UUID: uuid}
	digest := strings.Repeat("a", 64)
	no := false
	node := func(n schema.NodeOperation) schema.OperationSpec {
		n.MachineRef = w1
		return schema.OperationSpec{Node: &n}
	}
	for want, spec := range map[string]schema.OperationSpec{
		"reboots w-1 (" + uuid + ") of prod":                                                                  node(schema.NodeOperation{Action: "reboot"}),
		"shuts down w-1 (" + uuid + ") of prod":                                                               node(schema.NodeOperation{Action: "shutdown"}),
		"restarts the service kubelet on w-1 (" + uuid + ") of prod":                                          node(schema.NodeOperation{Action: "restart-service", Service: "kubelet"}),
		"defragments the etcd database of w-1 (" + uuid + ") of prod, unless it leads":                        node(schema.NodeOperation{Action: "etcd-defrag"}),
		"defragments the etcd database of w-1 (" + uuid + ") of prod, even while it leads":                    node(schema.NodeOperation{Action: "etcd-defrag", AllowLeader: true}),
		"has another member lead etcd in the place of w-1 (" + uuid + ") of prod":                             node(schema.NodeOperation{Action: "etcd-forfeit-leadership"}),
		"takes w-1 (" + uuid + ") of prod out of the cluster, wipes it, and powers it off":                    node(schema.NodeOperation{Action: "remove"}),
		"takes w-1 (" + uuid + ") of prod out of the cluster, wipes it, and reboots it":                       node(schema.NodeOperation{Action: "remove", Then: "reboot"}),
		"takes w-1 (" + uuid + ") of prod out of the cluster without touching it, because it is off for good": node(schema.NodeOperation{Action: "remove", Gone: true}),
		"takes a snapshot of the etcd of prod for the backup etcd":                                            {EtcdBackup: &schema.EtcdBackupOperation{BackupRef: schema.NameRef{Name: "etcd"}}},
		"lets Ichor change w-1 (" + uuid + ") of prod, which it did not configure":                            {Adopt: &schema.MachineOperation{MachineRef: w1}},
		"permits that the etcd of prod begins anew on w-1 (" + uuid + "), where there may have been one":      {Bootstrap: &schema.BootstrapOperation{MachineRef: w1}},
		"goes on with the operation x (digest " + digest + ") of prod after its pause number 2":               {Resume: &schema.ResumeOperation{Operation: "x", Digest: digest, Pause: 2}},
		"ends the operation x (digest " + digest + ") of prod":                                                {Cancel: &schema.CancelOperation{Operation: "x", Digest: digest}},
		"puts the snapshot s (sha256 " + digest + ") of the backup etcd in the place of the etcd of prod, and what was written since is lost; its control planes are cp-1 (" + uuid +
			"), cp-2 (" + uuid + "); off for good are cp-3 (" + uuid + "); that local volumes on them are lost is accepted; revisions are not bumped, so clients may see them go back; the snapshot may be one that the index doesn't list": {
			EtcdRestore: &schema.RestoreOperation{BackupRef: schema.NameRef{Name: "etcd"}, Snapshot: schema.SnapshotRef{Name: "s", SHA256: digest},
				ControlPlanes: map[string]string{"cp-2": uuid, "cp-1": uuid}, Without: map[string]string{"cp-3": uuid}, LocalDataLoss: "accepted",
				RevisionBump: &no, AcceptUnlisted: true}},
	} {
		spec.ClusterRef.Name = "prod"
		require.Equal(t, want, Sentence(spec))
	}
}

func TestALineWithoutPowerSaysWhy(t *testing.T) {
	line := func(text string) string {
		_, signer := newKey(t, "ed25519")
		return text + " " + string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
	}
	revoked := line("")
	signers, err := ParseAllowedSigners("allowed", []byte(line("git@example.com")+line(`alice@example.com namespaces="ichor-*@prod"`)+
		line(`bob@example.com namespaces="git"`)+`carol@example.com namespaces="ichor-*"`+revoked))
	require.NoError(t, err)
	require.NoError(t, signers.Revoke("revoked", []byte(revoked)))
	said := signers.Powerless("prod", "staging")
	require.Len(t, said, 3)
	require.Regexp(t, `^line 1 \(git@example.com, SHA256:.*\) gives no right: it has no namespaces=, and a key for signing commits must not wipe`, said[0])
	require.Regexp(t, `^line 3 \(bob@example.com, .*gives no right: its namespaces="git" match neither`, said[1])
	require.Regexp(t, `^line 4 \(carol@example.com, .*gives no right: its key is revoked`, said[2])
	require.Regexp(t, "^line 2 .*match neither", signers.Powerless("staging")[1])
}
