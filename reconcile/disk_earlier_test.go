package reconcile

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// TestAnInstalledTalosWithDataGetsNoFirstConfig: it doesn't install itself again, and its etcd would start with what EPHEMERAL held: in a new cluster
// that of another one was adopted.
func TestAnInstalledTalosWithDataGetsNoFirstConfig(t *testing.T) {
	bundle := newBundle(t)
	tree := fstest.MapFS{"prod/secrets.age": {}, "prod/cluster.yaml": {Data: []byte(benchCluster("prod", schema.ClusterID(bundle.ClusterID()), 1))},
		"prod/cp-1.yaml": {Data: []byte(benchMachine("prod", "cp-1", "controlplane", "10.0.0.1", 1))}}
	fleet, problems := schema.Load(tree, []string{"."})
	require.Empty(t, problems)
	m := *fleet.MachinesOf("prod")[0]
	rendered, err := NewComparer(fleet, fleet.Cluster("prod"), bundle, nil, "mark").Render(&m, nil, true)
	require.NoError(t, err)
	path := rendered.Config.Machine().Install().Disk()
	for name, test := range map[string]struct {
		contents, other []string
		wipe            bool
		says            string
	}{
		"EPHEMERAL is there, and may be lost":   {[]string{"gpt", "partition EFI vfat", "partition META talosmeta", "partition EPHEMERAL xfs"}, nil, true, "keeps what its partition EPHEMERAL holds"},
		"EPHEMERAL is there":                    {[]string{"partition META talosmeta", "partition EPHEMERAL luks"}, nil, false, "wipe " + path + " first"},
		"etcd's own partition, on another disk": {[]string{"partition META talosmeta"}, []string{"partition ETCD xfs"}, true, "keeps what its partition ETCD holds"},
		"all was wiped but META":                {[]string{"gpt", "partition EFI vfat", "partition META talosmeta", "partition EPHEMERAL"}, nil, true, ""},
		"another system, which may be lost":     {[]string{"partition EPHEMERAL xfs", "partition root ext4"}, nil, true, ""},
		"another system":                        {[]string{"partition root ext4"}, nil, false, "set spec.install.wipe: true"},
		"nothing":                               {nil, nil, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m.Spec.Install = &schema.MachineInstall{Wipe: test.wipe}
			_, problem := installDisk(&m, rendered.Config, []talos.Disk{{Path: path, Contents: test.contents}, {Path: "/dev/other", Contents: test.other}})
			if test.says == "" {
				require.Empty(t, problem)
				return
			}
			require.Contains(t, problem, test.says)
		})
	}
}
