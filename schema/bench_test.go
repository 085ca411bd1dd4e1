package schema

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/internal/cputime"
)

// manyMachines is a fleet of small files: a cluster and its machines, as a large team has them.
func manyMachines(count int) fstest.MapFS {
	files := fstest.MapFS{}
	for c := range count / 100 {
		name := fmt.Sprintf("cluster-%d", c)
		files[fmt.Sprintf("clusters/%s/cluster.yaml", name)] = &fstest.MapFile{Data: []byte(edited(clusterYAML, "name: prod", "name: "+name))}
		for m := range 99 {
			machine := edited(edited(machineYAML, "name: prod", "name: "+name), "name: cp-1", fmt.Sprintf("name: m-%d", m))
			machine = edited(machine, "10.0.0.11", fmt.Sprintf("10.%d.%d.11", c, m))
			machine = edited(machine, "b4c04f4e3732", fmt.Sprintf("%012x", c*100+m))
			machine += "  approved: true\n  approvalDecision: {at: 2026-11-29T10:00:00Z, by: alice@example.com}\n  labels: {example.com/rack: r1}\n"
			files[fmt.Sprintf("clusters/%s/machines/m-%d.yaml", name, m)] = &fstest.MapFile{Data: []byte(machine)}
		}
	}
	return files
}

// BenchmarkDecode10000 reads 10,000 small files and reports documents a second, and the heap that the fleet keeps.
func BenchmarkDecode10000(b *testing.B) {
	const documents = 10_000
	files := manyMachines(documents)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var fleet *Fleet
	b.ReportAllocs()
	defer cputime.Of(b)()
	for b.Loop() {
		var problems []Problem
		fleet, problems = Load(files, []string{"."})
		if len(problems) > 0 || len(fleet.Machines)+len(fleet.Clusters) != documents {
			b.Fatal(len(problems), len(fleet.Machines), problems[:1])
		}
	}
	b.ReportMetric(documents*float64(b.N)/b.Elapsed().Seconds(), "docs/s")
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "kept-MiB")
	runtime.KeepAlive(fleet)
}

// BenchmarkDecode10000Loosely is the peer: the same files through sigs.k8s.io/yaml into the same types, as most tools read
// them: no lines, no suggestions, no bounds.
func BenchmarkDecode10000Loosely(b *testing.B) {
	const documents = 10_000
	files := manyMachines(documents)
	b.ReportAllocs()
	defer cputime.Of(b)()
	for b.Loop() {
		for name, file := range files {
			var into any = &TalosMachine{}
			if strings.HasSuffix(name, "/cluster.yaml") {
				into = &TalosCluster{}
			}
			if err := yaml.UnmarshalStrict(file.Data, into); err != nil {
				b.Fatal(name, err)
			}
		}
	}
}
