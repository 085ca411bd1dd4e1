package recovery

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
	"ichor.maesh.dev/talos"
)

// fenceFunc is told of each intent.
type fenceFunc func(Intent)

func (f fenceFunc) Hold(context.Context) error { return nil }

func (f fenceFunc) Check(context.Context) error { return nil }

func (f fenceFunc) Begin(_ context.Context, i Intent) error { f(i); return nil }

// stage is a world with a marker's store.
type stage struct {
	*world
	t      *testing.T
	store  *storetest.Memory
	sealer *statefile.Sealer
	file   string
	wipe   []string
	holder string
	own    string
	target string
	said   []string
	// kubernetes is nil where no way to it is known.
	kubernetes *testCluster
	cancel     bool
	// resumed: a person has each process go on.
	resumed bool
}

func newStage(t *testing.T, w *world, wipe ...string) *stage {
	t.Helper()
	sealer, err := statefile.NewSealer("cluster", "secret", "")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, os.WriteFile(file, []byte("the snapshot"), 0o600))
	return &stage{world: w, t: t, store: storetest.NewMemory(), sealer: sealer, file: file, wipe: wipe}
}

// marker is a new recovery of all machines of the world on the first.
func (s *stage) marker() *Marker {
	m := &Marker{ID: "recover:0123456789abcdef", Cluster: Cluster{Name: "prod", ID: "1f3a9c0d2b4e6f78"}, Wipe: s.wipe,
		Snapshot: Snapshot{Name: "snapshot.db", Revision: 7, Keys: 42, Raised: 1_000_000_007}}
	for name, b := range s.machines {
		list := &m.Machines
		if b.worker {
			list = &m.Workers
		}
		*list = append(*list, Machine{Name: name, Endpoint: name, UUID: b.uuid})
	}
	for _, list := range [][]Machine{m.Machines, m.Workers} {
		slices.SortFunc(list, func(a, b Machine) int { return strings.Compare(a.Name, b.Name) })
	}
	m.Target, m.Holder, m.Own = nameOr(s.target, m.Machines[0].Name), s.holder, s.own
	return m
}

// process is a run of the command that dies at one of its points, or at none.
func (s *stage) process(at int) (*Run, *mortal, context.Context) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	p := &mortal{at: at, end: cancel}
	r := &Run{
		Nodes: mortalNodes{s.world, p}, Marker: mortalMarker{backup.NewMarker(s.store, s.sealer), p}, Fence: NoFence{},
		Prepared: &revision.Prepared{Path: s.file}, Clock: s.clock, Clocks: turnedClocks{s.clock}, Timing: DefaultTiming(), Scrubber: scrub.New(),
		Config: func(name string, seen talos.Observation) (Config, string) {
			return Config{Bytes: []byte("config of " + name), Digest: "digest"}, ""
		},
		Count: func(context.Context, io.Reader, int64) (revision.Contents, error) { return s.held, nil },
		Say:   func(line string) { s.said = append(s.said, line) }, Cancel: s.cancel,
	}
	if s.kubernetes != nil {
		r.Kubernetes = mortalKubernetes{s.kubernetes, p}
	}
	return r, p, ctx
}

// begin does what the command does at its start: a new marker, or the one that is there.
func (s *stage) begin(ctx context.Context, r *Run) error {
	content, err := r.Marker.Read(ctx)
	if err != nil {
		return err
	}
	m := s.marker()
	if content != nil {
		if m, err = DecodeMarker(content); err != nil {
			return err
		}
		if m.Phase == PhaseDone {
			r.marker = m
			return nil
		}
		if s.resumed {
			m.Resume(s.clock.Now(), m.Pause+1)
		}
	}
	return r.Begin(ctx, m)
}

// read gives the marker as it stands in the store.
func (s *stage) read() (*Marker, error) {
	content, err := backup.NewMarker(s.store, s.sealer).Read(s.t.Context())
	if err != nil {
		return nil, err
	}
	return DecodeMarker(content)
}

// run is a whole run.
func (s *stage) run(at int) (*Marker, int, error) {
	r, p, ctx := s.process(at)
	if err := s.begin(ctx, r); err != nil {
		return nil, p.points, err
	}
	m, err := r.Go(ctx)
	return m, p.points, err
}

// requireWhole says that there is one etcd, of all machines, recovered once from the snapshot on the target.
func (s *stage) requireWhole(m *Marker) {
	s.t.Helper()
	require.Equal(s.t, PhaseDone, m.Phase)
	require.Empty(s.t, s.wrong)
	require.False(s.t, m.Cancelled)
	require.Len(s.t, s.recovered.members, len(m.Machines))
	for _, one := range m.Machines {
		require.True(s.t, s.machines[one.Name].runs(s.recovered), one.Name)
		require.Empty(s.t, s.cordons[one.Name])
	}
	at := slices.IndexFunc(s.recovered.members, func(member talos.EtcdMember) bool { return member.Name == m.Target })
	require.True(s.t, s.recovered.members[at].Restored())
	for _, one := range s.accepted {
		if strings.HasPrefix(one, "recover ") || strings.HasPrefix(one, "upload ") {
			require.True(s.t, strings.HasSuffix(one, " "+m.Target), one)
		}
	}
}

// requireOld says that there is the old etcd, of all machines, and that nothing was lost.
func (s *stage) requireOld(m *Marker) {
	s.t.Helper()
	require.Equal(s.t, PhaseDone, m.Phase)
	require.Empty(s.t, s.wrong)
	require.True(s.t, m.Cancelled)
	require.Len(s.t, s.old.members, len(s.machines))
	for name, b := range s.machines {
		require.True(s.t, b.runs(s.old), name)
		require.Empty(s.t, s.cordons[name])
	}
	require.Zero(s.t, s.count("reset")+s.count("upload")+s.count("recover"))
}
