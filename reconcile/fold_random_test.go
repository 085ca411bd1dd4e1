package reconcile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

// approvals are which control planes of each cluster are approved; absent ones have no document.
type approvals struct {
	count    map[string]int
	machines map[string]map[string]bool
}

func (a approvals) edited(random *rand.Rand) approvals {
	next := approvals{count: map[string]int{}, machines: map[string]map[string]bool{}}
	for cluster, count := range a.count {
		next.count[cluster] = count
		next.machines[cluster] = map[string]bool{}
		for name, approved := range a.machines[cluster] {
			next.machines[cluster][name] = approved
		}
	}
	for range 1 + random.IntN(3) {
		cluster := []string{"prod", "test"}[random.IntN(2)]
		name := fmt.Sprintf("cp-%d", 1+random.IntN(7))
		switch random.IntN(6) {
		case 0:
			next.count[cluster] = []int{1, 3, 5}[random.IntN(3)]
		case 1:
			delete(next.machines[cluster], name)
		default:
			next.machines[cluster][name] = random.IntN(3) > 0
		}
	}
	return next
}

func (a approvals) files() fstest.MapFS {
	files := fstest.MapFS{}
	for n, cluster := range []string{"prod", "test"} {
		folder := "clusters/" + cluster + "/"
		files[folder+"secrets.age"] = &fstest.MapFile{Data: []byte("sealed"), Mode: 0o644}
		files[folder+"cluster.yaml"] = &fstest.MapFile{Mode: 0o644, Data: fmt.Appendf(nil, `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: %s}
spec:
  id: 1f3a9c0d2b4e6f7%d
  endpoint: https://10.%d.0.10:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  controlPlane: {count: %d}
  secrets: {file: secrets.age}
`, cluster, n, n, a.count[cluster])}
		for name, approved := range a.machines[cluster] {
			number := name[len("cp-"):]
			files[folder+name+".yaml"] = &fstest.MapFile{Mode: 0o644, Data: fmt.Appendf(nil, `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: %s}
spec:
  clusterRef: {name: %s}
  role: controlplane
  endpoint: 10.%d.1.%s
  uuid: 4c4c4544-0039-4a10-8033-00000000%d00%s
  approved: %t
`, name, cluster, n, number, n, number, approved)}
		}
	}
	return files
}

func (a approvals) approved(cluster string) int {
	n := 0
	for _, approved := range a.machines[cluster] {
		if approved {
			n++
		}
	}
	return n
}

// step says, without the rules, whether a step is refused to a cluster, and which approvals exceed the cap in it.
func (a approvals) step(cluster string, next approvals) (refused bool, over []string) {
	wanted := min(a.count[cluster], next.count[cluster])
	for name, approved := range a.machines[cluster] {
		if approved && !next.machines[cluster][name] && next.approved(cluster) < wanted && a.approved(cluster) >= wanted {
			refused = true
		}
	}
	for name, approved := range next.machines[cluster] {
		if approved && !a.machines[cluster][name] && next.approved(cluster) > next.count[cluster]+1 {
			over = append(over, name)
		}
	}
	return refused, over
}

// An agent that comes late to a random history ends, for each cluster, at the commit that the steps one by one lead to. What
// exceeds the cap on the way is named, and stops nothing.
func TestALateAgentFoldsARandomHistoryStepByStep(t *testing.T) {
	engine, err := validate.New()
	require.NoError(t, err)
	stayed, held := 0, 0
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 5))
		history := []approvals{{count: map[string]int{"prod": 3, "test": 1}, machines: map[string]map[string]bool{
			"prod": {"cp-1": true, "cp-2": true, "cp-3": true}, "test": {"cp-1": true}}}}
		source := &memorySource{}
		source.push(history[0].files())
		for range 12 {
			history = append(history, history[len(history)-1].edited(random))
			source.push(history[len(history)-1].files())
		}
		h := newHistory(source, engine, nil, false, false)
		head := source.revisions[len(source.revisions)-1]
		for _, cluster := range []string{"prod", "test"} {
			good, refusedAtHead := 0, false
			for n := 1; n < len(history); n++ {
				refused, over := history[good].step(cluster, history[n])
				var named []string
				for _, f := range h.judge(source.revisions[good], source.revisions[n]).Held {
					if f.Cluster == cluster {
						named = append(named, f.Name)
					}
				}
				require.ElementsMatch(t, over, named, "seed %d, %s, commit %d after %d", seed, cluster, n, good)
				held += len(over)
				if refusedAtHead = refused; !refused {
					good = n
				}
			}
			got, err := h.fold(context.Background(), cluster, place{applied: source.revisions[0].Commit}, head, folded{})
			require.NoError(t, err)
			require.Equal(t, source.revisions[good].Commit, got.good.revision.Commit, "seed %d, %s", seed, cluster)
			require.Equal(t, refusedAtHead, len(got.refused) > 0, "seed %d, %s: %v", seed, cluster, got.refused)
			requireTheSameInParts(t, h, cluster, source.revisions, got, random)
			if refusedAtHead {
				stayed++
			}
		}
	}
	require.Positive(t, stayed)
	require.Greater(t, held, 10)
}

// requireTheSameInParts walks a history some commits at a time, each time from what the walk before ended with, as a worker does.
func requireTheSameInParts(t *testing.T, h *history, cluster string, revisions []*gitsource.Revision, whole folded, random *rand.Rand) {
	t.Helper()
	on, last := place{applied: revisions[0].Commit}, folded{}
	for n := 1; n < len(revisions); n++ {
		if n < len(revisions)-1 && random.IntN(3) == 0 {
			continue
		}
		got, err := h.fold(context.Background(), cluster, on, revisions[n], last)
		require.NoError(t, err)
		last = got
		if random.IntN(4) > 0 { // else the state couldn't be written
			on.applied = got.good.revision.Commit
		}
	}
	require.Equal(t, whole.good.revision.Commit, last.good.revision.Commit)
	require.Equal(t, whole.refused, last.refused)
}

// countingValidator counts the steps that are judged.
type countingValidator struct {
	Validator
	steps int
}

func (v *countingValidator) Check(old, proposed *schema.Fleet, opts ...validate.Option) []validate.Finding {
	v.steps++
	return v.Validator.Check(old, proposed, opts...)
}

// A cluster can stay on its last good commit for weeks, while others push hundreds: each is judged once for it, not again with each one
// that comes.
func TestACommitThatIsRefusedIsJudgedOnce(t *testing.T) {
	engine, err := validate.New()
	require.NoError(t, err)
	validator := &countingValidator{Validator: engine}
	source := &memorySource{}
	legal := approvals{count: map[string]int{"prod": 3, "test": 1}, machines: map[string]map[string]bool{
		"prod": {"cp-1": true, "cp-2": true, "cp-3": true}, "test": {"cp-1": true}}}
	source.push(legal.files())
	broken := legal.files()
	broken["broken.yaml"] = &fstest.MapFile{Data: []byte("apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMashine\n")}
	h := newHistory(source, validator, nil, false, false)
	base := source.revisions[0].Commit
	const pushed = 3 * 64 // more than fleets are remembered
	var last folded
	for n := range pushed {
		source.push(broken)
		last, err = h.fold(context.Background(), "prod", place{applied: base}, source.revisions[n+1], last)
		require.NoError(t, err)
		require.NotEmpty(t, last.refused)
	}
	require.Equal(t, pushed, validator.steps, "for a cluster that was there all the time")

	for _, cluster := range []string{"prod", "test"} {
		got, err := h.fold(context.Background(), cluster, place{applied: base}, source.revisions[pushed], folded{})
		require.NoError(t, err)
		require.Equal(t, base, got.good.revision.Commit)
		require.Equal(t, last.refused, got.refused)
	}
	require.Equal(t, pushed, validator.steps, "for others that come later")
}
