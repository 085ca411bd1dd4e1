package main

import "testing"

func TestUnitsThatAreNotGosOwnAreKept(t *testing.T) {
	line := "BenchmarkPass-2  1  123456 ns/op  0 fetches/op  7.5 MiB-live  4096 B/op  12 allocs/op\n"
	if got, want := extraUnits(line), "0 fetches/op, 7.5 MiB-live"; got != want {
		t.Errorf("extraUnits = %q, want %q", got, want)
	}
}

func TestFiguresReadWell(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{duration(1.5e9), "1.50 s"}, {duration(2.5e6), "2.5 ms"}, {duration(900), "0.9 µs"},
		{size(3 << 20), "3.0 MiB"}, {size(512), "0.5 KiB"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestOnlyTheBenchmarksOfTheTableRun(t *testing.T) {
	table := []row{{pkg: "a", benchmark: "BenchmarkX/1"}, {pkg: "a", benchmark: "BenchmarkX/2", peer: "BenchmarkY"}, {pkg: "b", benchmark: "BenchmarkZ"}}
	if got, want := pattern(rowsTitled(table, ""), "a"), "^(BenchmarkX|BenchmarkY)$"; got != want {
		t.Errorf("pattern = %q, want %q", got, want)
	}
}

func TestEveryMemoryRowNamesASubBenchmarkOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range memoryRows() {
		if seen[r.benchmark] || seen[r.title] {
			t.Errorf("%s is there twice", r.title)
		}
		seen[r.benchmark], seen[r.title] = true, true
	}
	if !seen["BenchmarkSnapshotMemory/get_--decrypt_1024_MiB"] || len(rowsTitled(rows, "memory of backup")) != len(operations)*len(sizes) {
		t.Errorf("the rows are %v", memoryRows())
	}
}
