package reconcile

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/schema"
)

// Whose an operation file is, as far as it can be read: one that can't is refused by the cluster that it most likely belongs to.
func TestTheOperationFilesOfACluster(t *testing.T) {
	now := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	files := fstest.MapFS{}
	write := func(name, text string) { files[name] = &fstest.MapFile{Data: []byte(text)} }
	cluster := func(name, id string) string {
		return fmt.Sprintf("apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosCluster\nmetadata: {name: %s}\nspec:\n  id: \"%s\"\n  endpoint: https://10.0.0.1:6443\n"+
			"  talosVersion: v1.13.6\n  kubernetesVersion: v1.36.2\n  contract: v1.13\n  controlPlane: {count: 1}\n  secrets: {file: secrets.age}\n  install: {disk: /dev/sda}\n", name, id)
	}
	const prod, staging = "1f3a9c0d2b4e6f78", "2f3a9c0d2b4e6f78"
	uuid := uuidAt("10.0.0.51")
	write("clusters/prod/cluster.yaml", cluster("prod", prod))
	write("clusters/staging/cluster.yaml", cluster("staging", staging))
	good := operationText("good", prod, now, time.Hour, nodeBody("w-1", uuid, "reboot"))
	write("operations/good.yaml", good)
	write("operations/good.yaml.sig", "a signature")
	write("operations/commented.yaml", "# comment\n"+good)
	write("operations/renamed.yaml", strings.Replace(operationText("renamed", prod, now, time.Hour, nodeBody("w-1", uuid, "reboot")), "    name: prod\n", "    name: production\n", 1))
	write("operations/theirs.yaml", strings.Replace(operationText("theirs", staging, now, time.Hour, nodeBody("w-1", uuid, "reboot")), "    name: prod\n", "    name: staging\n", 1))
	write("operations/claimed.yaml", operationText("claimed", staging, now, time.Hour, nodeBody("w-1", uuid, "reboot")))
	write("clusters/prod/beside.yaml", strings.ReplaceAll(good, "action: reboot", "action: explode"))
	write("operations/restore.yaml", operationText("restore", prod, now, time.Hour, "  kind: etcd-restore\n  etcdRestore:\n    backupRef:\n      name: hourly\n    snapshot:\n"+
		"      name: etcd-20261129T100000Z.snapshot.age\n      sha256: "+strings.Repeat("ab", 32)+"\n    confirm: prod\n    controlPlanes:\n      cp-1: "+uuid+"\n"))
	fleet, problems := schema.Load(files, []string{"."})
	f := &fleetAt{revision: &gitsource.Revision{Commit: "c1", Tree: files}, fleet: fleet, problems: problems}
	names := func(cluster, id string) []string {
		var list []string
		for _, s := range gitOperations(f, cluster, id) {
			list = append(list, strings.TrimSpace(s.File+" "+string(s.Signature)))
			require.Equal(t, string(files[s.File].Data), string(s.Data))
		}
		return list
	}
	require.ElementsMatch(t, []string{"operations/good.yaml a signature", "operations/commented.yaml", "operations/renamed.yaml", "operations/claimed.yaml",
		"operations/restore.yaml", "clusters/prod/beside.yaml"}, names("prod", prod))
	require.ElementsMatch(t, []string{"operations/theirs.yaml", "operations/claimed.yaml"}, names("staging", staging))
}

// countedFiles counts how often each file is read.
type countedFiles struct {
	fstest.MapFS
	read map[string]int
}

func (c *countedFiles) ReadFile(name string) ([]byte, error) {
	c.read[name]++
	return c.MapFS.ReadFile(name)
}

func TestAnOperationFileWithManyProblemsIsReadOnce(t *testing.T) {
	const prod = "1f3a9c0d2b4e6f78"
	files := &countedFiles{fstest.MapFS{}, map[string]int{}}
	files.MapFS["clusters/prod/cluster.yaml"] = &fstest.MapFile{Data: []byte("apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosCluster\nmetadata: {name: prod}\nspec: {id: \"" + prod + "\"}\n")}
	files.MapFS["clusters/prod/flood.yaml"] = &fstest.MapFile{Data: []byte(strings.Repeat("---\napiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosOperation\nmetadata: {name: x}\n", 500))}
	fleet, problems := schema.Load(files, []string{"."})
	clear(files.read)
	f := &fleetAt{revision: &gitsource.Revision{Commit: "c1", Tree: files}, fleet: fleet, problems: problems}
	require.Len(t, gitOperations(f, "prod", prod), 1)
	require.Equal(t, 1, files.read["clusters/prod/flood.yaml"])
}
