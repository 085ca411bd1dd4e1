package validate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/cputime"
	"ichor.maesh.dev/schema"
)

const clusterYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: %[1]s
spec:
  id: a%015[2]x
  endpoint: https://%[1]s.example.com:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  contract: v1.13
  controlPlane: {count: 3, schedulable: false}
  secrets: {file: secrets.age}
  install: {image: factory.talos.dev/installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba, disk: /dev/sda}
  patches: {all: [{file: patches/all.yaml}]}
`

const machineYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: %[2]s
  labels: {rack: r1}
spec:
  clusterRef: {name: %[1]s}
  role: %[3]s
  endpoint: %[4]s
  uuid: %[5]s
  hostname: %[2]s
  approved: true
  approvalDecision: {at: 2026-11-29T10:00:00Z, by: alice@example.com}
  patches: [{file: ../patches/all.yaml}]
`

// writeFleet writes a repository of clusters with so many machines each, three of them control planes.
func writeFleet(tb testing.TB, clusters, machines int) string {
	tb.Helper()
	root := tb.TempDir()
	write := func(name, text string) {
		name = filepath.Join(root, name)
		require.NoError(tb, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(tb, os.WriteFile(name, []byte(text), 0o644))
	}
	number := 0
	for c := range clusters {
		cluster := fmt.Sprintf("cluster-%d", c)
		folder := "clusters/" + cluster + "/"
		write(folder+"cluster.yaml", fmt.Sprintf(clusterYAML, cluster, c+1))
		write(folder+"secrets.age", "")
		write(folder+"patches/all.yaml", "machine: {}\n")
		for m := range machines {
			role, name := "worker", fmt.Sprintf("w-%d", m)
			if m < 3 {
				role, name = "controlplane", fmt.Sprintf("cp-%d", m)
			}
			number++
			address := fmt.Sprintf("10.%d.%d.%d", number>>16&255, number>>8&255, number&255)
			uuid := fmt.Sprintf("%08x-0039-4210-8052-b4c04f4d3132", number)
			write(folder+"machines/"+name+".yaml", fmt.Sprintf(machineYAML, cluster, name, role, address, uuid))
		}
	}
	return root
}

func loadFolder(tb testing.TB, root string) *schema.Fleet {
	tb.Helper()
	fleet, problems := schema.Load(os.DirFS(root), []string{"."})
	require.Empty(tb, problems)
	return fleet
}

func shapes() map[string][2]int {
	return map[string][2]int{
		"1000 clusters of 9 machines": {1000, 9},
		"9 clusters of 1110 machines": {9, 1110},
		"1 cluster of 10000 machines": {1, 9999},
	}
}

// BenchmarkValidate10000 reads and judges 10,000 documents with a base, as a pull request is judged: old and new are decoded,
// every machine is edited.
func BenchmarkValidate10000(b *testing.B) {
	engine, err := New()
	require.NoError(b, err)
	for name, shape := range shapes() {
		root := writeFleet(b, shape[0], shape[1])
		b.Run("decode and judge "+name, func(b *testing.B) {
			defer cputime.Of(b)()
			for b.Loop() {
				require.Empty(b, engine.Check(nil, loadFolder(b, root)))
			}
		})
		old := loadFolder(b, root)
		proposed := loadFolder(b, root)
		for _, m := range proposed.Machines {
			m.Spec.Hostname += "-x"
		}
		b.Run("judge a change of "+name, func(b *testing.B) {
			defer cputime.Of(b)()
			for b.Loop() {
				require.Empty(b, engine.Check(old, proposed))
			}
		})
		for _, m := range proposed.Machines {
			m.Spec.Approved = false
		}
		b.Run("judge a disaster of "+name, func(b *testing.B) {
			defer cputime.Of(b)()
			for b.Loop() {
				require.NotEmpty(b, engine.Check(old, proposed))
			}
		})
	}
}

func TestTheSizeOfAFleetIsNoTrouble(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	var text strings.Builder
	text.WriteString("cluster prod schedulable=false\n")
	for i := range 3000 {
		fmt.Fprintf(&text, "machine prod/w-%d worker approved uuid=same endpoint=same hostname=same\n", i)
	}
	old := fleetOf(t, "cluster prod schedulable=false")
	findings := engine.Check(old, fleetOf(t, text.String()))
	require.Len(t, findings, 3*3000)
	for _, f := range findings {
		require.Less(t, len(f.Message), 1000)
	}
}
