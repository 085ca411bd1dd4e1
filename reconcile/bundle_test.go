package reconcile

import (
	"regexp"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// withToken gives a bundle of the same cluster with another token for machines that join.
func withToken(t *testing.T, bundle *talos.Bundle, token string) *talos.Bundle {
	t.Helper()
	plain, err := bundle.Marshal()
	require.NoError(t, err)
	other, err := talos.LoadBundle(regexp.MustCompile(`bootstraptoken: \S+`).ReplaceAll(plain, []byte("bootstraptoken: "+token)))
	require.NoError(t, err)
	return other
}

func TestASecretThatWasRenewedInTheBundleIsUsedWithoutARestart(t *testing.T) {
	b := newBench(t, "prod")
	const token = "abcdef.0123456789abcdef"
	var mu sync.Mutex
	var opened []*talos.Bundle
	b.run(func(config *Config) {
		inner := config.OpenNodes
		config.OpenNodes = func(bundle *talos.Bundle) Nodes {
			mu.Lock()
			defer mu.Unlock()
			opened = append(opened, bundle)
			return inner(bundle)
		}
	})
	b.until("prod", applied(b.source.revisions[0].Commit))
	mu.Lock()
	renewed := withToken(t, opened[0], token)
	mu.Unlock()
	require.True(t, renewed.Same(withToken(t, renewed, token)))
	b.write("clusters/prod/secrets.age", sealBundle(t, b.recipients, renewed))
	b.until("prod", applied(b.source.push(b.files)))
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(opened) == 2 && opened[1].Same(renewed)
	}, ample, 5*time.Millisecond)
}

func TestAPatchThatCouldNotBeOpenedIsReadOnceTheIdentityIsThere(t *testing.T) {
	right, recipients := newKeys(t)
	wrong, _ := newKeys(t)
	bundle := newBundle(t)
	patch, err := sealed.Seal(recipients, []byte("machine: {sysctls: {net.core.somaxconn: \"4096\"}}\n"))
	require.NoError(t, err)
	files := fstest.MapFS{"patch.age": {Data: patch}}
	write := func(name, text string) { files[name] = &fstest.MapFile{Data: []byte(text)} }
	write("cluster.yaml", benchCluster("prod", schema.ClusterID(bundle.ClusterID()), 1))
	write("cp-1.yaml", benchMachine("prod", "cp-1", "controlplane", "10.0.0.1", 1)+"  patches: [{file: patch.age}]\n")
	fleet, problems := schema.Load(files, []string{"."})
	require.Empty(t, problems)
	desired := ClusterOf(fleet, "prod", "c1")
	w := &worker{agent: &Agent{mark: "mark"}, bundle: bundle, good: &fleetAt{fleet: fleet}}
	look := talos.Observation{Mode: talos.ModeMaintenance}

	w.renewComparer(desired, wrong)
	before := w.compare
	require.Contains(t, w.compare.View(desired.Machine("cp-1"), look).Problem, "patch.age")
	w.renewComparer(desired, wrong)
	require.Same(t, before, w.compare)
	w.renewComparer(desired, right)
	require.Empty(t, w.compare.View(desired.Machine("cp-1"), look).Problem)
}
