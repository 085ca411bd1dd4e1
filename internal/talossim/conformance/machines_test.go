package conformance_test

import (
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim"
)

type farmOptions struct {
	first                  string
	controlPlanes, workers int
	more                   []string
	scale                  float64
	container, impatient   bool
	// parent is the farm with whose test this one ends; nil: this test's.
	parent *machines
}

// machines are simulated ones with their power buttons.
type machines struct {
	test  *testing.T
	farms []*talossim.Farm
}

func startMachines(t *testing.T, o farmOptions) *machines {
	t.Helper()

	m := o.parent
	if m == nil {
		m = &machines{test: t}
	}

	options := talossim.Options{
		Dir: m.test.TempDir(), First: o.first, ControlPlanes: o.controlPlanes, Workers: o.workers, TimeScale: o.scale, Impatient: o.impatient,
	}
	if o.container {
		options.Platform = talossim.Container
	}

	if os.Getenv("CONFORMANCE_CONSOLE") != "" {
		options.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}

	for _, name := range o.more {
		options.Nodes = append(options.Nodes, talossim.NodeSpec{Name: name})
	}

	farm, err := talossim.Start(m.test.Context(), options)
	require.NoError(t, err)
	m.test.Cleanup(func() { require.NoError(m.test, farm.Close()) })

	m.farms = append(m.farms, farm)

	if o.parent == nil {
		return m
	}

	return &machines{test: m.test, farms: []*talossim.Farm{farm}}
}

func (m *machines) addresses(names ...string) []string {
	var list []string

	for _, name := range names {
		for _, farm := range m.farms {
			if n := farm.Node(name); n != nil {
				list = append(list, n.Address())
			}
		}
	}

	return list
}

func (m *machines) at(address string) *talossim.Node {
	for _, farm := range m.farms {
		for _, n := range farm.Nodes() {
			if n.Address() == address {
				return n
			}
		}
	}

	return nil
}

func (m *machines) isOn(address string) bool { return m.at(address).Powered() }

// holdGoingDown keeps a machine that goes down answering until the returned function is called; given nodes take the seconds that
// they take.
func (e *env) holdGoingDown(t *testing.T, node string) (goOn func()) {
	t.Helper()

	return e.hold(t, node, talossim.BeforeGoingDown)
}

func (e *env) hold(t *testing.T, node, point string) (goOn func()) {
	t.Helper()

	if e.own == nil {
		return func() {}
	}

	goOn = e.own.at(node).Inject(talossim.Fault{Method: point, Kind: talossim.Hang})
	e.own.test.Cleanup(goOn)

	return goOn
}

func (e *env) powerOn(_ *testing.T, node string) { e.own.at(node).PowerOn() }

func (e *env) powerOff(t *testing.T, node string) {
	t.Helper()
	require.NoError(t, e.own.at(node).PowerOff())
}

func (e *env) powerCycle(t *testing.T, node string) {
	t.Helper()
	require.NoError(t, e.own.at(node).PowerCycle())
}
