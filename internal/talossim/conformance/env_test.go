package conformance_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	talosconfig1 "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	machinetype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// simulatedScale divides Talos's times for the suite's own machines.
const simulatedScale = 20

// cluster is a set of nodes with one CA.
type cluster struct {
	name         string
	scale        float64 // 0 for nodes that were given
	config       *clientconfig.Config
	bundle       *secrets.Bundle
	cps, workers []string
	minted       map[string]*tls.Config
}

// env is what the expectations are asked of.
type env struct {
	*cluster
	own *machines // nil against given nodes

	given        map[string]bool // which of the own machines have a config
	bootstrapped bool
	idleNode     string
	waitingNode  string
	platform     string
	learners     []func() // let those that joined as learners be promoted

	twinCluster, soloCluster, fastCluster, boxCluster *cluster
}

func (e *cluster) simulated() bool { return e.scale > 0 }

func newEnv(t *testing.T) *env {
	t.Helper()

	if *talosconfig != "" {
		return givenNodes(t)
	}

	e := &env{given: map[string]bool{}, platform: "metal"}
	e.own = startMachines(t, farmOptions{first: "127.0.30.1", controlPlanes: 3, workers: 1, more: []string{"twin-1", "twin-2", "solo", "idle"}, scale: simulatedScale})
	e.cluster = newCluster(t, "conformance", simulatedScale, e.own.addresses("cp-1", "cp-2", "cp-3"), e.own.addresses("w-1"))
	e.idleNode = e.own.addresses("idle")[0]
	e.waitingNode = e.idleNode

	return e
}

// givenNodes finds out what the nodes of the command line are.
func givenNodes(t *testing.T) *env {
	t.Helper()

	file, err := clientconfig.Open(*talosconfig)
	require.NoError(t, err)

	e := &env{cluster: &cluster{config: file, minted: map[string]*tls.Config{}}}

	for node := range strings.SplitSeq(*nodes, ",") {
		v, err := e.admin(t, node).Version(within(t, short))
		if err != nil {
			_, err = insecure(t, node).Version(within(t, short))
			require.NoError(t, err, "%s answers neither with the talosconfig nor in maintenance mode", node)

			e.waitingNode = node

			continue
		}

		e.platform = v.Messages[0].GetPlatform().GetMode()

		kind, err := safe.StateGet[*config.MachineType](within(t, short), e.admin(t, node).COSI, metadata(config.NamespaceName, config.MachineTypeType, config.MachineTypeID))
		require.NoError(t, err)

		if kind.MachineType() == machinetype.TypeWorker {
			e.workers = append(e.workers, node)
		} else {
			e.cps = append(e.cps, node)
		}
	}

	return e
}

// lacks says why an expectation can't be asked of these nodes; empty when it can.
func (e *env) lacks(needs phase) string {
	if e.own != nil {
		return ""
	}

	switch {
	case needs == maintenance && e.waitingNode == "":
		return "none of the given nodes waits in maintenance mode"
	case needs == unplugged:
		return "would give the waiting machine a config, or needs its power button"
	case needs == configured:
		return "the given nodes are not taken through their bootstrap"
	case needs == power:
		return "nobody pushes the given nodes' power button or turns their clock"
	case needs == container && e.platform != "container":
		return "the given nodes are not on the container platform"
	case needs == maintenance || needs == container:
		return ""
	case len(e.cps) < 3 || len(e.workers) < 1:
		return fmt.Sprintf("needs three control planes and a worker; given are %d and %d", len(e.cps), len(e.workers))
	case (needs == changing || needs == disruptive) && !*destructive:
		return "changes or disturbs the nodes: only with -destructive"
	case needs == disruptive && e.platform == "container":
		return "nodes on the container platform can't be rebooted"
	default:
		return ""
	}
}

// reach takes the suite's own machines to where an expectation needs them.
func (e *env) reach(t *testing.T, needs phase) {
	t.Helper()

	if e.own == nil || needs == maintenance || needs == unplugged || needs == container {
		return
	}

	for _, node := range append(slices.Clone(e.cps), e.workers...) {
		if !e.given[node] {
			kind := roleControlPlane
			if slices.Contains(e.workers, node) {
				kind = roleWorker
			}

			e.give(t, node, e.generate(t, kind))
		}
	}

	if needs == configured || e.bootstrapped {
		return
	}

	e.until(t, e.cps[0], 5*minute, func(ctx context.Context, c *client.Client) error {
		err := c.Bootstrap(ctx, &machine.BootstrapRequest{})
		if status.Code(err) == codes.AlreadyExists {
			return nil
		}

		return err
	})
	e.voters(t, e.cps[0], len(e.cps))
	e.ready(t, append(slices.Clone(e.cps), e.workers...)...)

	e.bootstrapped = true
}

// waiting is a machine in maintenance mode that is only looked at.
func (e *env) waiting(*testing.T) string { return e.waitingNode }

// idle is a machine of the suite's own in maintenance mode.
func (e *env) idle(*testing.T) string { return e.idleNode }

// give sends a machine in maintenance mode its config.
func (e *env) give(t *testing.T, node string, data []byte) {
	t.Helper()

	e.eventually(t, 2*minute, func(ctx context.Context) error {
		c := insecure(t, node)
		defer c.Close() //nolint:errcheck // nothing depends on it

		_, err := c.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{Data: data, Mode: auto})

		return err
	})

	if e.given != nil {
		e.given[node] = true
	}
}

func newCluster(t *testing.T, name string, scale float64, cps, workers []string) *cluster {
	t.Helper()

	bundle, err := secrets.NewBundle(secrets.NewClock(), talosconfig1.TalosVersion1_13)
	require.NoError(t, err)

	cert, err := bundle.GenerateTalosAPIClientCertificateWithTTL(role.MakeSet(role.Admin), 24*time.Hour)
	require.NoError(t, err)

	return &cluster{
		name: name, scale: scale, bundle: bundle, cps: cps, workers: workers, minted: map[string]*tls.Config{},
		config: clientconfig.NewConfig(name, cps, bundle.Certs.OS.Crt, cert),
	}
}

const (
	roleControlPlane = machinetype.TypeControlPlane
	roleWorker       = machinetype.TypeWorker
)

type generateOption func(*[]generate.Option)

// withoutDisk leaves out where to install.
func withoutDisk(options *[]generate.Option) {
	*options = append(*options, generate.WithInstallDisk(""))
}

// generate makes a config with the cluster's secrets; of nodes that were given none are known, and a fresh cluster's do.
func (e *cluster) generate(t *testing.T, kind machinetype.Type, more ...generateOption) []byte {
	t.Helper()

	endpoint := "127.0.30.1"
	if len(e.cps) > 0 {
		endpoint = e.cps[0]
	}

	options := []generate.Option{generate.WithVersionContract(talosconfig1.TalosVersion1_13), generate.WithInstallDisk("/dev/sda")}
	if e.bundle != nil {
		options = append(options, generate.WithSecretsBundle(e.bundle))
	}

	for _, m := range more {
		m(&options)
	}

	input, err := generate.NewInput("conformance", "https://"+endpoint+":6443", constants.DefaultKubernetesVersion, options...)
	require.NoError(t, err)

	provider, err := input.Config(kind)
	require.NoError(t, err)

	data, err := provider.Bytes()
	require.NoError(t, err)

	return data
}

// stays wants a condition to hold for all of d.
func (e *cluster) stays(t *testing.T, d time.Duration, condition func(context.Context, *client.Client) error, node string) {
	t.Helper()

	c := e.admin(t, node)
	end := time.NewTimer(d)
	ticker := time.NewTicker(50 * time.Millisecond)

	defer ticker.Stop()

	for {
		select {
		case <-end.C:
			return
		case <-ticker.C:
			require.NoError(t, condition(within(t, short), c))
		}
	}
}

// twins are two control planes with one config and no etcd between them.
func (e *env) twins(t *testing.T) *cluster {
	t.Helper()

	if e.twinCluster == nil {
		e.twinCluster = newCluster(t, "twins", simulatedScale, e.own.addresses("twin-1", "twin-2"), nil)
		e.prepare(t, e.twinCluster)
	}

	return e.twinCluster
}

// solo is one control plane on its own, without etcd when it is first asked for.
func (e *env) solo(t *testing.T) *cluster {
	t.Helper()

	if e.soloCluster == nil {
		e.soloCluster = newCluster(t, "solo", simulatedScale, e.own.addresses("solo"), nil)
		e.prepare(t, e.soloCluster)
	}

	return e.soloCluster
}

// fast is one control plane whose clock runs so fast that half an hour passes while one looks.
func (e *env) fast(t *testing.T) *cluster {
	t.Helper()

	if e.fastCluster == nil {
		const scale = 400

		own := startMachines(t, farmOptions{first: "127.0.30.101", controlPlanes: 1, scale: scale, impatient: true, parent: e.own})
		e.fastCluster = newCluster(t, "fast", scale, own.addresses("cp-1"), nil)
		e.giveAll(t, e.fastCluster)
	}

	return e.fastCluster
}

// containers is a control plane on the container platform.
func (e *env) containers(t *testing.T) *cluster {
	t.Helper()

	if e.own == nil {
		return e.cluster
	}

	if e.boxCluster == nil {
		own := startMachines(t, farmOptions{first: "127.0.30.121", controlPlanes: 1, scale: simulatedScale, container: true, parent: e.own})
		e.boxCluster = newCluster(t, "box", simulatedScale, own.addresses("cp-1"), nil)
		e.prepare(t, e.boxCluster)
	}

	return e.boxCluster
}

func (e *env) giveAll(t *testing.T, c *cluster) {
	t.Helper()

	for _, node := range c.cps {
		e.give(t, node, c.generate(t, roleControlPlane))
	}
}

// prepare gives the control planes their configs and waits until they could be bootstrapped.
func (e *env) prepare(t *testing.T, c *cluster) {
	t.Helper()

	e.giveAll(t, c)

	for _, node := range c.cps {
		c.serviceState(t, node, "etcd", "Preparing", "")
	}
}

// off waits until a machine doesn't answer any more.
func (e *env) off(t *testing.T, node string) {
	t.Helper()

	e.eventually(t, 5*minute, func(context.Context) error {
		if e.own.isOn(node) {
			return errors.New("the machine is on")
		}

		return nil
	})

	_, err := insecure(t, node).MachineClient.Version(within(t, time.Second), &emptypb.Empty{})
	gone(t, err)
}
