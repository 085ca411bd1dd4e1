package validate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/cputime"
)

// BenchmarkRenderConfigs reads, judges and renders a fleet: 10,000 machines that differ in name and address only, and 100
// with a patch of their own each.
func BenchmarkRenderConfigs(b *testing.B) {
	engine, err := New()
	require.NoError(b, err)
	for name, shape := range map[string]struct {
		machines int
		own      bool
		distinct int
	}{
		"10000 like machines":             {9_999, false, 2},
		"100 machines with patches apart": {100, true, 100},
	} {
		root := writeFleet(b, 1, shape.machines)
		if shape.own {
			giveOwnPatches(b, root)
		}
		b.Run(name, func(b *testing.B) {
			defer cputime.Of(b)()
			for b.Loop() {
				fleet := loadFolder(b, root)
				require.Empty(b, engine.Check(nil, fleet))
				got, err := RenderConfigs(fleet, nil)
				require.NoError(b, err)
				require.Empty(b, got.Findings)
				require.Equal(b, shape.machines, got.Rendered)
				require.Equal(b, shape.distinct, got.Distinct)
			}
		})
	}
}

// giveOwnPatches gives each machine of a fleet a patch file of its own.
func giveOwnPatches(tb testing.TB, root string) {
	tb.Helper()
	machines, err := filepath.Glob(filepath.Join(root, "clusters/*/machines/*.yaml"))
	require.NoError(tb, err)
	for n, file := range machines {
		patch := fmt.Sprintf("own-%d.yaml", n)
		text, err := os.ReadFile(file)
		require.NoError(tb, err)
		changed := strings.Replace(string(text), "../patches/all.yaml", "../patches/"+patch, 1)
		require.NoError(tb, os.WriteFile(file, []byte(changed), 0o644))
		own := fmt.Sprintf("machine:\n  sysctls:\n    net.core.somaxconn: \"%d\"\n---\napiVersion: v1alpha1\nkind: KmsgLogConfig\nname: remote\nurl: tcp://10.0.0.5:%d/\n", n, 1000+n)
		require.NoError(tb, os.WriteFile(filepath.Join(filepath.Dir(file), "../patches", patch), []byte(own), 0o644))
	}
}
