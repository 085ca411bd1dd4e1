package conformance_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/client/config"
	talosconfigs "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// short bounds a call that should be answered at once.
const short = 30 * time.Second

func tlsOf(t *testing.T, c *config.Config) *tls.Config {
	t.Helper()

	at := c.Contexts[c.Context]
	require.NotNil(t, at, "the talosconfig's context %q isn't in it", c.Context)

	decode := func(s string) []byte {
		raw, err := base64.StdEncoding.DecodeString(s)
		require.NoError(t, err)

		return raw
	}

	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(decode(at.CA)))

	cert, err := tls.X509KeyPair(decode(at.Crt), decode(at.Key))
	require.NoError(t, err)

	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
}

// dial makes a client of exactly one node, closed at the test's end.
func dial(t *testing.T, node string, config *tls.Config) *client.Client {
	t.Helper()

	quick := backoff.DefaultConfig
	quick.BaseDelay, quick.MaxDelay = 50*time.Millisecond, 500*time.Millisecond

	c, err := client.New(t.Context(), client.WithTLSConfig(config), client.WithEndpoints(node),
		client.WithGRPCDialOptions(grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: 5 * time.Second})))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // nothing depends on it

	return c
}

// admin is a client with the talosconfig's own certificate.
func (e *cluster) admin(t *testing.T, node string) *client.Client {
	t.Helper()

	return dial(t, node, tlsOf(t, e.config))
}

// insecure is a client that verifies nothing and shows nothing, as for maintenance mode.
func insecure(t *testing.T, node string) *client.Client {
	t.Helper()

	return dial(t, node, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}) //nolint:gosec // that's the point
}

// as is a client with a certificate of the given roles, minted by a control plane.
func (e *cluster) as(t *testing.T, node string, roles ...role.Role) *client.Client {
	t.Helper()

	names := role.MakeSet(roles...).Strings()
	key := fmt.Sprint(names)

	if e.minted[key] == nil {
		resp, err := e.admin(t, e.cps[0]).GenerateClientConfiguration(within(t, short), &machine.GenerateClientConfigurationRequest{
			Roles: names, CrtTtl: durationpb.New(time.Hour),
		})
		require.NoError(t, err)

		minted, err := config.FromBytes(resp.Messages[0].Talosconfig)
		require.NoError(t, err)

		e.minted[key] = tlsOf(t, minted)
	}

	return dial(t, node, e.minted[key])
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)

	return ctx
}

// refused wants an error of this code whose text contains the given one.
func refused(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()

	require.Error(t, err)
	require.Equal(t, code.String(), status.Code(err).String(), "%v", err)
	require.ErrorContains(t, err, text)
}

// gone wants the error of a call to a node that went away under it.
func gone(t *testing.T, err error) {
	t.Helper()

	require.Error(t, err)
	require.Contains(t, []codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded}, status.Code(err), "%v", err)
}

// eventually polls until the condition holds. Talos's times are for real nodes; simulated ones are faster, so that the deadline is
// only what a busy machine needs.
func (e *cluster) eventually(t *testing.T, d time.Duration, condition func(context.Context) error) {
	t.Helper()

	period := 250 * time.Millisecond
	if e.simulated() {
		d, period = max(time.Duration(float64(d)/e.scale), 5*time.Minute), 25*time.Millisecond
	}

	ctx := within(t, d)
	ticker := time.NewTicker(period)

	defer ticker.Stop()

	var last error

	for {
		call, cancel := context.WithTimeout(ctx, short)
		err := condition(call)

		cancel()

		if err == nil {
			return
		}

		if ctx.Err() == nil || last == nil {
			last = err
		}

		select {
		case <-ctx.Done():
			require.NoError(t, last, "not within %s", d)
		case <-ticker.C:
		}
	}
}

// until polls with a fresh connection to a node each time: one kept from before lags behind by its back-off.
func (e *cluster) until(t *testing.T, node string, d time.Duration, condition func(context.Context, *client.Client) error) {
	t.Helper()

	config := tlsOf(t, e.config)

	e.eventually(t, d, func(ctx context.Context) error {
		c, err := client.New(ctx, client.WithTLSConfig(config), client.WithEndpoints(node))
		if err != nil {
			return err
		}

		defer c.Close() //nolint:errcheck // nothing depends on it

		if err := condition(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", node, err)
		}

		return nil
	})
}

func read(ctx context.Context, c *client.Client, path string) (string, error) {
	r, err := c.Read(ctx, path)
	if err != nil {
		return "", err
	}

	defer r.Close() //nolint:errcheck // only read from

	raw, err := io.ReadAll(r)

	return string(bytes.TrimSpace(raw)), err
}

const bootIDPath = "/proc/sys/kernel/random/boot_id"

func (e *cluster) bootID(t *testing.T, node string) string {
	t.Helper()

	return e.rebooted(t, node, "")
}

// rebooted waits for another boot than the one given, and returns its ID.
func (e *cluster) rebooted(t *testing.T, node, before string) string {
	t.Helper()

	var id string

	e.until(t, node, 10*time.Minute, func(ctx context.Context, c *client.Client) error {
		var err error

		if id, err = read(ctx, c, bootIDPath); err != nil {
			return err
		}

		if id == "" || id == before {
			return fmt.Errorf("the boot ID is still %q", id)
		}

		return nil
	})

	return id
}

func machineStatus(ctx context.Context, c *client.Client) (*runtime.MachineStatusSpec, error) {
	r, err := safe.StateGet[*runtime.MachineStatus](ctx, c.COSI,
		resource.NewMetadata(runtime.NamespaceName, runtime.MachineStatusType, runtime.MachineStatusID, resource.VersionUndefined))
	if err != nil {
		return nil, err
	}

	return r.TypedSpec(), nil
}

// ready waits until a node is running and ready.
func (e *cluster) ready(t *testing.T, nodes ...string) {
	t.Helper()

	for _, node := range nodes {
		e.until(t, node, 10*time.Minute, func(ctx context.Context, c *client.Client) error {
			s, err := machineStatus(ctx, c)
			if err != nil {
				return err
			}

			if s.Stage != runtime.MachineStageRunning || !s.Status.Ready {
				return fmt.Errorf("the stage is %s, ready %v, unmet %v", s.Stage, s.Status.Ready, s.Status.UnmetConditions)
			}

			return nil
		})
	}
}

// stage waits until a node is in one of the stages.
func (e *cluster) stage(t *testing.T, node string, stages ...runtime.MachineStage) {
	t.Helper()

	e.until(t, node, 5*time.Minute, func(ctx context.Context, c *client.Client) error {
		s, err := machineStatus(ctx, c)
		if err != nil {
			return err
		}

		if !slices.Contains(stages, s.Stage) {
			return fmt.Errorf("the stage is %s", s.Stage)
		}

		return nil
	})
}

func machineConfig(ctx context.Context, c *client.Client, id string) (*talosconfigs.MachineConfig, error) {
	return safe.StateGet[*talosconfigs.MachineConfig](ctx, c.COSI,
		resource.NewMetadata(talosconfigs.NamespaceName, talosconfigs.MachineConfigType, id, resource.VersionUndefined))
}

// service returns a service of the list, nil when the node doesn't have it.
func service(ctx context.Context, c *client.Client, id string) (*machine.ServiceInfo, error) {
	resp, err := c.ServiceList(ctx)
	if err != nil {
		return nil, err
	}

	for _, s := range resp.Messages[0].Services {
		if s.Id == id {
			return s, nil
		}
	}

	return nil, nil
}

// serviceState waits for a service to be in a state; text is looked for in its last event.
func (e *cluster) serviceState(t *testing.T, node, id, state, text string) {
	t.Helper()

	e.until(t, node, 5*time.Minute, func(ctx context.Context, c *client.Client) error {
		s, err := service(ctx, c, id)
		if err != nil {
			return err
		}

		if s == nil {
			return fmt.Errorf("there is no service %s", id)
		}

		last := ""
		if events := s.GetEvents().GetEvents(); len(events) > 0 {
			last = events[len(events)-1].Msg
		}

		if s.State != state || !bytes.Contains([]byte(last), []byte(text)) {
			return fmt.Errorf("%s is %s (%s)", id, s.State, last)
		}

		return nil
	})
}

func members(ctx context.Context, c *client.Client) ([]*machine.EtcdMember, error) {
	resp, err := c.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{})
	if err != nil {
		return nil, err
	}

	return resp.Messages[0].Members, nil
}

// voters waits until a node's etcd lists exactly n members, none of them a learner.
func (e *cluster) voters(t *testing.T, node string, n int) []*machine.EtcdMember {
	t.Helper()

	var list []*machine.EtcdMember

	e.until(t, node, 10*time.Minute, func(ctx context.Context, c *client.Client) error {
		var err error

		if list, err = members(ctx, c); err != nil {
			return err
		}

		voting := 0

		for _, m := range list {
			if !m.IsLearner {
				voting++
			}
		}

		if voting != n || len(list) != n {
			return fmt.Errorf("%d of %d members vote, %d should", voting, len(list), n)
		}

		return nil
	})

	return list
}

// memberOf finds the member at a node's address.
func memberOf(list []*machine.EtcdMember, node string) *machine.EtcdMember {
	for _, m := range list {
		for _, url := range m.PeerUrls {
			if bytes.Contains([]byte(url), []byte("//"+node+":")) {
				return m
			}
		}
	}

	return nil
}

func memberID(t *testing.T, c *client.Client) uint64 {
	t.Helper()

	resp, err := c.EtcdStatus(within(t, short))
	require.NoError(t, err)

	return resp.Messages[0].MemberStatus.MemberId
}

// wipeEphemeral is the reset that loses etcd's data and keeps the node's config.
func wipeEphemeral() *machine.ResetRequest {
	return &machine.ResetRequest{
		Reboot: true, Mode: machine.ResetRequest_SYSTEM_DISK,
		SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "EPHEMERAL", Wipe: true}},
	}
}

// listMember asks for etcd's data folder and returns the first answer's error.
func listMember(ctx context.Context, c *client.Client) error {
	stream, err := c.LS(ctx, &machine.ListRequest{Root: "/var/lib/etcd/member"})
	if err != nil {
		return err
	}

	_, err = stream.Recv()

	return err
}
