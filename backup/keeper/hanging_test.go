package keeper_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/internal/etcdfile"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

func TestMain(m *testing.M) {
	s3gateway.RunIfChild()
	os.Exit(m.Run())
}

const (
	access = "keeper-access-key"
	secret = "keeper-secret-key-0123456789"
)

// kept is a cluster whose backup "hourly" is kept.
type kept struct {
	state  *statefile.Cluster
	keeper *keeper.Keeper
	want   keeper.Want
}

// host is what the clusters of one agent share.
type host struct {
	server *s3gateway.Child
	spool  *backup.Spool
	limits *keeper.Limits
	clock  *testclock.FakeClock
	// drill and drillLimit are the keeper's own where they are not given.
	drill      func(ctx context.Context, plain io.Reader, size int64, spool *backup.Spool) (drill.Counts, error)
	drillLimit time.Duration
}

// newHost makes one, and gives a snapshot that a control plane may stream.
func newHost(t *testing.T) (*host, []byte) {
	t.Helper()
	server, err := s3gateway.StartChild(t.Context(), s3gateway.Options{Dir: t.TempDir(), Access: access, Secret: secret, Buckets: []string{"backups"}})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	spool, err := backup.OpenSpool(t.TempDir())
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "snapshot")
	_, err = etcdfile.Write(file, etcdfile.Options{Keys: 100, ValueSize: 100})
	require.NoError(t, err)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return &host{server: server, spool: spool, limits: keeper.NewLimits(2), clock: testclock.NewFakeClock(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC))}, data
}

func (h *host) keep(t *testing.T, name string, node backup.Node) *kept {
	t.Helper()
	owner, err := backup.NewOwner(name+"-id", name+"-secret", name+"-encryption-secret")
	require.NoError(t, err)
	state, err := statefile.OpenCluster(storetest.NewMemory(), statefile.Options{Name: name, Sealer: owner.Sealer, WriterID: "agent", Clock: h.clock})
	require.NoError(t, err)
	require.NoError(t, state.Create(t.Context(), &statefile.State{Cluster: statefile.ClusterIdentity{Name: name, ID: owner.ClusterID}, Origin: statefile.OriginNew}))
	document := &schema.TalosEtcdBackup{Metadata: schema.ObjectMeta{Name: "hourly"}, Spec: schema.BackupSpec{ClusterRef: schema.ClusterRef{Name: name},
		Destination: schema.BackupDestination{S3: &schema.S3Destination{Bucket: "backups", Prefix: name}}}}
	return &kept{state: state, want: keeper.Want{Fleet: &schema.Fleet{}, Backups: []*schema.TalosEtcdBackup{document}, Owner: owner, Nodes: []backup.Node{node}},
		keeper: keeper.New(keeper.Options{State: state, Opener: h, Spool: h.spool, Limits: h.limits, Clock: h.clock, Drill: h.drill, DrillLimit: h.drillLimit,
			Log: slog.New(slog.DiscardHandler), Scrubber: scrub.New()})}
}

// Open implements keeper.Opener.
func (h *host) Open(ctx context.Context, _ *schema.Fleet, b *schema.TalosEtcdBackup, owner backup.Owner) (*keeper.Place, error) {
	config := statefile.S3Config{Endpoint: h.server.Endpoint, Region: s3gateway.Region, Bucket: b.Spec.Destination.S3.Bucket, Prefix: b.Spec.Destination.S3.Prefix,
		Credentials: &statefile.S3Credentials{AccessKeyID: access, SecretAccessKey: secret}, Timeout: time.Minute}
	opened, err := backup.OpenDestination(ctx, config, owner)
	if err != nil {
		return nil, err
	}
	return &keeper.Place{Destination: opened.Destination, Key: config.Prefix, Close: opened.Close}, nil
}

func (k *kept) memory() statefile.BackupState {
	state, _ := k.state.Known()
	if m := state.Backups["hourly"]; m != nil {
		return *m
	}
	return statefile.BackupState{}
}

// streaming is a control plane whose etcd streams a snapshot.
type streaming struct{ data []byte }

func (streaming) Name() string { return "cp-1" }

func (streaming) EtcdStatus(context.Context) (backup.EtcdStatus, error) {
	return backup.EtcdStatus{MemberID: 2, Leader: 1}, nil
}

func (s streaming) EtcdSnapshot(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(s.data)), nil
}

// hung is a control plane that begins to stream and then brings nothing more.
type hung struct {
	streaming
	began chan struct{}
}

func (h *hung) EtcdSnapshot(ctx context.Context) (io.ReadCloser, error) {
	close(h.began)
	return io.NopCloser(io.MultiReader(bytes.NewReader(h.data[:1000]), silence{ctx})), nil
}

type silence struct{ ctx context.Context }

func (s silence) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func TestANodeThatHangsDelaysNoOtherClustersBackup(t *testing.T) {
	h, data := newHost(t)
	node := &hung{streaming{data}, make(chan struct{})}
	hanging, other := h.keep(t, "hanging", node), h.keep(t, "other", streaming{data})
	hanging.keeper.Tend(t.Context(), hanging.want)
	defer hanging.keeper.Close()
	<-node.began
	require.NotNil(t, hanging.memory().Attempt)

	other.keeper.Once(t.Context(), other.want)
	m := other.memory()
	require.True(t, m.Ready.Status, "%+v", m.Ready)
	require.Equal(t, h.clock.Now(), m.LastSuccess)
	m = hanging.memory()
	require.NotNil(t, m.Attempt, "the other was done while this one hung: no time has passed")
	require.True(t, m.LastSuccess.IsZero())
	require.Empty(t, m.LastError)

	// Once the time is up the hanging one is given up.
	require.Eventually(t, func() bool {
		h.clock.Step(time.Second)
		return hanging.memory().LastError != ""
	}, time.Minute*5, 10*time.Millisecond)
	require.Contains(t, hanging.memory().LastError, "its stream brought nothing for 2m0s")
}
