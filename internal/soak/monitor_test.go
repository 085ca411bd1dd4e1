package soak

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// scene is a cluster of three control planes with an etcd, and a worker, with one agent that is the writer.
func scene(t *testing.T, keys *Keys) (*World, *process) {
	t.Helper()
	w := newWorld(1, keys)
	c := w.addCluster("prod", 1, keys.Clusters[0])
	for _, name := range []string{"cp-1", "cp-2", "cp-3", "w-1"} {
		role := schema.RoleControlPlane
		if name == "w-1" {
			role = schema.RoleWorker
		}
		m := w.addMachine(c, name, role)
		m.stage, m.service = stageRunning, "Running"
	}
	c.machine("cp-1").bootstrap()
	e := c.etcds[0]
	for n, name := range []string{"cp-2", "cp-3"} {
		member := e.members[0]
		member.ID, member.Name = uint64(n+1), name
		e.members = append(e.members, member)
		m := c.machine(name)
		m.etcd, m.member = e, member.ID
	}
	return w, &process{w: w, host: &host{w: w, name: "agent-1"}, id: "agent-1.1"}
}

// put lets a process write a state.
func put(t *testing.T, w *World, p *process, s *statefile.State) {
	t.Helper()
	s.SchemaVersion = 1
	content, err := json.Marshal(s)
	require.NoError(t, err)
	data, err := statefile.EncodeRecord(w.clusters[0].keys.Sealer, "prod/state.json", 1, statefile.NewNonce(), content)
	require.NoError(t, err)
	_, err = (&watchedStore{Memory: w.store, p: p}).Put(context.Background(), "prod/state.json", data, statefile.If{})
	require.NoError(t, err)
}

// TestTheMonitorSeesBrokenPromises shows that each promise can be found broken.
func TestTheMonitorSeesBrokenPromises(t *testing.T) {
	keys := sharedKeys(t)
	mine := statefile.Writer{ID: "agent-1.1", Epoch: 1}
	lock := &statefile.Lock{Holder: "operation:1", Reason: "a test"}
	intent := func(w *World, name, action, operation string) *statefile.Intent {
		m := w.clusters[0].machine(name)
		return &statefile.Intent{Nonce: "n-" + name + action, Action: action, Machine: name, UUID: m.uuid, BootID: m.bootID(), Operation: operation, Writer: mine}
	}
	for _, test := range []struct {
		name, broken string
		do           func(w *World, p *process)
	}{
		{"a reboot that was meant breaks none", "", func(w *World, p *process) {
			put(t, w, p, &statefile.State{Writer: mine, Lock: lock, Intent: intent(w, "cp-2", "reboot", "")})
			w.monitor.accepted(p, taken{m: w.clusters[0].machine("cp-2"), method: "Reboot", action: "reboot"})
		}},
		{"a call that nobody meant", "without an intent that explains it", func(w *World, p *process) {
			put(t, w, p, &statefile.State{Writer: mine, Lock: lock, Intent: intent(w, "cp-2", "reboot", "")})
			w.monitor.accepted(p, taken{m: w.clusters[0].machine("cp-3"), method: "Reboot", action: "reboot"})
		}},
		{"a call made twice for one intent", "accepted twice for one intent", func(w *World, p *process) {
			put(t, w, p, &statefile.State{Writer: mine, Lock: lock, Intent: intent(w, "w-1", "reboot", "")})
			for range 2 {
				w.monitor.accepted(p, taken{m: w.clusters[0].machine("w-1"), method: "Reboot", action: "reboot"})
			}
		}},
		{"a destructive intent without the lock", "without the cluster lock", func(w *World, p *process) {
			put(t, w, p, &statefile.State{Writer: mine, Intent: intent(w, "w-1", "reboot", "")})
		}},
		{"a second bootstrap", "a second bootstrap", func(w *World, p *process) {
			for _, name := range []string{"cp-2", "cp-3"} {
				put(t, w, p, &statefile.State{Writer: mine, Lock: lock, Intent: intent(w, name, "bootstrap", "")})
				w.monitor.accepted(p, taken{m: w.clusters[0].machine(name), method: "Bootstrap", action: "bootstrap"})
				put(t, w, p, &statefile.State{Writer: mine, Lock: lock})
			}
		}},
		{"a quorum that is lost", "leaves 1 of 3 members", func(w *World, p *process) {
			w.clusters[0].machine("cp-1").off()
			put(t, w, p, &statefile.State{Writer: mine, Lock: lock, Intent: intent(w, "cp-2", "reboot", "")})
			w.monitor.accepted(p, taken{m: w.clusters[0].machine("cp-2"), method: "Reboot", action: "reboot"})
		}},
		{"an operation that nobody signed", "which nobody signed who may", func(w *World, p *process) {
			put(t, w, p, &statefile.State{Writer: mine, Lock: lock, Intent: intent(w, "w-1", "reboot", "0123456789abcdef")})
		}},
		{"a write of one who isn't the writer", "names agent-9 as its writer", func(w *World, p *process) {
			put(t, w, p, &statefile.State{Writer: statefile.Writer{ID: "agent-9", Epoch: 1}})
		}},
		{"an operation that is done and wasn't", "took 0 calls for it", func(w *World, p *process) {
			w.monitor.signed["d"] = true
			put(t, w, p, &statefile.State{Writer: mine, Operations: []*statefile.OperationState{{Name: "op-1", Digest: "d", Kind: "node", Action: "reboot",
				Target: "w-1", Phase: statefile.OperationCompleted}}})
		}},
		{"a machine that is Ready and is off", "says that w-1 is Ready", func(w *World, p *process) {
			w.clusters[0].machine("w-1").off()
			put(t, w, p, &statefile.State{Writer: mine, Machines: map[string]*statefile.MachineState{"w-1": {Ready: statefile.Condition{Status: true}}}})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, p := scene(t, keys)
			test.do(w, p)
			if test.broken == "" {
				require.Empty(t, w.monitor.broken)
				return
			}
			require.NotEmpty(t, w.monitor.broken)
			require.Contains(t, w.monitor.broken[0], test.broken)
		})
	}
}
