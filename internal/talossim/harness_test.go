package talossim_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/internal/talossim"
)

// bench is a farm with the configs of one cluster for its machines.
type bench struct {
	t     *testing.T
	farm  *talossim.Farm
	input *generate.Input
	talos *clientconfig.Config

	mu sync.Mutex
	// clients are those that aren't closed yet.
	clients []*client.Client
}

func newBench(t *testing.T, opts talossim.Options) *bench {
	t.Helper()
	t.Parallel() // each farm has addresses of its own
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	if opts.TimeScale == 0 {
		opts.TimeScale = 20
	}
	if os.Getenv("TALOSSIM_DEBUG") != "" {
		opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	farm, err := talossim.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, farm.Close()) })
	bundle, err := secrets.NewBundle(secrets.NewFixedClock(time.Now().Add(-time.Minute)), config.TalosVersionCurrent)
	require.NoError(t, err)
	b := &bench{t: t, farm: farm}
	t.Cleanup(func() { b.closeFrom(0) })
	var endpoints []string
	for _, n := range farm.Nodes() {
		if n.Role() == talossim.ControlPlane {
			endpoints = append(endpoints, n.Address())
		}
	}
	b.input, err = generate.NewInput("sim", "https://"+endpoints[0]+":6443", constants.DefaultKubernetesVersion,
		generate.WithSecretsBundle(bundle), generate.WithInstallDisk("/dev/sda"), generate.WithEndpointList(endpoints))
	require.NoError(t, err)
	b.talos, err = b.input.Talosconfig()
	require.NoError(t, err)
	return b
}

func (b *bench) config(role talossim.Role) []byte {
	b.t.Helper()
	kind := machine.TypeControlPlane
	if role == talossim.Worker {
		kind = machine.TypeWorker
	}
	p, err := b.input.Config(kind)
	require.NoError(b.t, err)
	data, err := p.Bytes()
	require.NoError(b.t, err)
	return data
}

// insecure is a client of a machine in maintenance mode.
func (b *bench) insecure(n *talossim.Node) *client.Client {
	b.t.Helper()
	c, err := client.New(b.t.Context(), client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), client.WithEndpoints(n.Address()), //nolint:gosec // maintenance
		client.WithGRPCDialOptions(grpc.WithDisableServiceConfig()))
	require.NoError(b.t, err)
	return b.kept(c)
}

// admin is a new client of a configured machine.
func (b *bench) admin(n *talossim.Node) *client.Client {
	b.t.Helper()
	c, err := client.New(b.t.Context(), client.WithConfig(b.talos), client.WithEndpoints(n.Address()))
	require.NoError(b.t, err)
	return b.kept(c)
}

// kept is closed with the attempt of eventually that asked for it, else at the end of the test: a slow host makes many attempts.
func (b *bench) kept(c *client.Client) *client.Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients = append(b.clients, c)
	return c
}

func (b *bench) keptSoFar() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.clients)
}

func (b *bench) closeFrom(first int) {
	b.mu.Lock()
	clients := b.clients[first:]
	b.clients = b.clients[:first:first]
	b.mu.Unlock()
	for _, c := range clients {
		_ = c.Close() // nothing depends on it
	}
}

// patience only ends a test that hangs: how long real etcds take depends on what else the host does.
const patience = 5 * time.Minute

// attempt is how long one look may take: a call that had its effect and was given up on is made twice.
const attempt = 30 * time.Second

// eventually polls f, with a new deadline each time, until it returns nil.
func (b *bench) eventually(what string, f func(ctx context.Context) error) {
	b.t.Helper()
	var last error
	ok := poll(patience, func() bool {
		defer b.closeFrom(b.keptSoFar())
		ctx, cancel := context.WithTimeout(b.t.Context(), attempt)
		defer cancel()
		last = f(ctx)
		return last == nil
	})
	require.True(b.t, ok, "%s: %v", what, last)
}

func poll(within time.Duration, f func() bool) bool {
	deadline := time.Now().Add(within)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			return false
		}
		<-tick.C
	}
	return true
}

// configure gives every machine its config as soon as it is in maintenance mode. One that took it and whose answer was lost is in
// maintenance mode no more.
func (b *bench) configure(nodes ...*talossim.Node) {
	b.t.Helper()
	for _, n := range nodes {
		c, before := b.insecure(n), len(n.Accepted("ApplyConfiguration"))
		b.eventually(n.Name()+" takes its config", func(ctx context.Context) error {
			_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: b.config(n.Role()), Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
			if len(n.Accepted("ApplyConfiguration")) > before {
				return nil
			}
			return err
		})
		_ = c.Close()
	}
}

// bootstrap starts etcd on a machine. One that has data got an attempt whose answer was lost.
func (b *bench) bootstrap(n *talossim.Node) {
	b.t.Helper()
	b.eventually(n.Name()+" is bootstrapped", func(ctx context.Context) error {
		err := b.admin(n).Bootstrap(ctx, &machineapi.BootstrapRequest{})
		if client.StatusCode(err) == codes.AlreadyExists {
			return nil
		}
		return err
	})
}

// holdGoingDown keeps a machine that goes down answering until the returned function is called.
func (b *bench) holdGoingDown(n *talossim.Node) (goOn func()) {
	return n.Inject(talossim.Fault{Method: talossim.BeforeGoingDown, Kind: talossim.Hang})
}

func (b *bench) status(ctx context.Context, n *talossim.Node) (*runtimeres.MachineStatusSpec, error) {
	c, err := client.New(ctx, client.WithConfig(b.talos), client.WithEndpoints(n.Address()))
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // one read
	r, err := safe.StateGetByID[*runtimeres.MachineStatus](ctx, c.COSI, runtimeres.MachineStatusID)
	if err != nil {
		return nil, err
	}
	return r.TypedSpec(), nil
}

// ready waits until machines are running and ready.
func (b *bench) ready(nodes ...*talossim.Node) {
	b.t.Helper()
	for _, n := range nodes {
		b.eventually(n.Name()+" is ready", func(ctx context.Context) error {
			st, err := b.status(ctx, n)
			if err != nil {
				return err
			}
			if st.Stage != runtimeres.MachineStageRunning || !st.Status.Ready {
				return fmt.Errorf("%s, %v", st.Stage, st.Status.UnmetConditions)
			}
			return nil
		})
	}
}

func (b *bench) members(ctx context.Context, n *talossim.Node) ([]*machineapi.EtcdMember, error) {
	resp, err := b.admin(n).EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
	if err != nil {
		return nil, err
	}
	return resp.GetMessages()[0].GetMembers(), nil
}

// voters waits until etcd has exactly so many members, all started voters.
func (b *bench) voters(n *talossim.Node, count int) []*machineapi.EtcdMember {
	b.t.Helper()
	var members []*machineapi.EtcdMember
	b.eventually(fmt.Sprintf("%d voters", count), func(ctx context.Context) (err error) {
		if members, err = b.members(ctx, n); err != nil {
			return err
		}
		if len(members) != count {
			return fmt.Errorf("%d members", len(members))
		}
		for _, m := range members {
			if m.GetIsLearner() || m.GetHostname() == "" {
				return fmt.Errorf("%v is no started voter", m)
			}
		}
		return nil
	})
	return members
}

func (b *bench) bootID(ctx context.Context, n *talossim.Node) (string, error) {
	r, err := b.admin(n).Read(ctx, "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(r)
	return strings.TrimSpace(string(data)), errors.Join(err, r.Close())
}

func (b *bench) service(ctx context.Context, n *talossim.Node, id string) (*machineapi.ServiceInfo, error) {
	resp, err := b.admin(n).ServiceList(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range resp.GetMessages()[0].GetServices() {
		if s.GetId() == id {
			return s, nil
		}
	}
	return nil, fmt.Errorf("no service %s", id)
}

// onDisk says whether a machine's STATE holds a config.
func (b *bench) onDisk(n *talossim.Node, want string) error {
	data, err := os.ReadFile(filepath.Join(n.Dir(), "STATE", "config.yaml"))
	if err == nil && string(data) != want {
		err = errors.New("another config")
	}
	return err
}
