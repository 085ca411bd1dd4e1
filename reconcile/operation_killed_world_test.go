package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
	"ichor.maesh.dev/talos"
)

// mortals is what is made once for many worlds: keys take long to make.
type mortals struct {
	bundle  *talos.Bundle
	sealer  *statefile.Sealer
	alice   *signer
	signers *operation.AllowedSigners
}

func newMortals(t *testing.T) *mortals {
	t.Helper()
	m := &mortals{bundle: newBundle(t), alice: newSigner(t)}
	material := m.bundle.SealingMaterial()
	var err error
	m.sealer, err = statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	require.NoError(t, err)
	m.signers = signersOf(t, m.alice.line("alice", `namespaces="ichor-operation@prod,ichor-override@prod"`))
	return m
}

// world is what outlives an agent: modelled machines and their Kubernetes, the store with the state, and signed files in Git.
type world struct {
	*mortals
	t     *testing.T
	story *story
	model *model
	store *storetest.Memory
	files []Submitted
	// agents counts those that were started, snapshots what the keeper of the backups stored.
	agents, snapshots int
	// configs says that machines take configs.
	configs bool
	// unheard says of which writes of the state the acknowledgement is lost.
	unheard func(write string) bool
}

// newWorld lets a script of the transcripts make the machines; the state that it leads to is put into a new store.
func (m *mortals) newWorld(t *testing.T, script string) *world {
	t.Helper()
	s := &story{t: t}
	for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
		s.do(strings.TrimSpace(line))
	}
	w := &world{mortals: m, t: t, story: s, model: s.drive.model, store: storetest.NewMemory()}
	s.drive.overlay, s.drive.operations, s.drive.begun = s.overlay, nil, nil
	s.drive.cluster.Object.Spec.ID = schema.ClusterID(m.bundle.ClusterID())
	clear(w.model.accepted)
	state := cloneState(s.drive.state)
	require.Nil(t, state.Intent)
	state.OperationsFrom = "c0"
	require.NoError(t, w.handle("nobody").Create(t.Context(), state))
	return w
}

func (w *world) handle(writer string) *statefile.Cluster {
	cluster, err := statefile.OpenCluster(w.store, statefile.Options{Name: "prod", Sealer: w.sealer, WriterID: writer, Clock: modelClock{model: w.model}})
	require.NoError(w.t, err)
	return cluster
}

func (w *world) state() *statefile.State {
	w.t.Helper()
	state, err := w.handle("reader").Load(w.t.Context())
	require.NoError(w.t, err)
	return state
}

// sign puts a signed file into Git.
func (w *world) sign(name, body string) {
	w.t.Helper()
	text := operationText(name, schema.ClusterID(w.bundle.ClusterID()), w.model.now, 4*time.Hour, body)
	read, refusal := operation.Read(name+".yaml", []byte(text))
	require.Nil(w.t, refusal, "%s: %+v", text, refusal)
	w.files = append(w.files, Submitted{Source: sourceGit, File: "operations/" + name + ".yaml", Data: []byte(text), Digest: operation.Digest([]byte(text)),
		Kind: read.Spec.Kind, ExpiresAt: read.Spec.ExpiresAt, Signature: w.alice.sign(text, operation.Namespaces(read.Spec, false)[0])})
}

// mortal is one agent's process, which dies where its tap says so.
type mortal struct {
	*worker
	world *world
	tap   *tap
	// snapshot says that this process is about to store a snapshot.
	snapshot bool
}

func (w *world) mortal(dies func(string) bool) *mortal {
	w.agents++
	p := newTap(dies)
	agent := New(Config{Leases: []ShardLease{&heldLease{token: uint64(w.agents)}}, Mark: "mark", Timing: DefaultTiming(), Clock: modelClock{model: w.model},
		Clocks: modelClocks{w.model}, Log: slog.New(slog.DiscardHandler), Scrubber: scrub.New(),
		OpenKubernetes: func(*talos.Bundle, []string) (Kubernetes, error) {
			return tappedKubernetes{tap: p, inner: modelKubernetes{w.model}}, nil
		}})
	m := &mortal{worker: newWorker(agent, "prod"), world: w, tap: p}
	p.unheard = w.unheard
	m.bundle, m.nodes = w.bundle, tappedNodes{tap: p, inner: modelNodes{w.model}}
	m.state = tappedState{tap: p, inner: w.handle(fmt.Sprintf("agent-%d", w.agents))}
	return m
}

// once is one pass: all of an agent's own, but that Git and the comparison of configs are the story's.
func (m *mortal) once(ctx context.Context) error {
	state, err := m.own(ctx)
	if err != nil {
		return err
	}
	age := m.writerAge()
	in := m.world.story.drive.input()
	in.State, in.WriterAge = cloneState(state), &age
	m.settleUnsent(in.State)
	in.Operations = &Operations{Commit: "c1", Nonce: statefile.NewNonce(), Gone: map[string]bool{}, RunExisting: map[string]bool{}, Signers: m.world.signers,
		Refused: map[string]*operation.Refusal{}, Files: m.world.files, Begun: m.begun, Taken: m.taken, Judged: m.judged}
	plan := Decide(in)
	if plan.NeedKubernetes {
		in.Kubernetes = m.lookAtKubernetes(ctx, in.Cluster, &in)
		plan = Decide(in)
	}
	if plan.NeedBackups {
		in.Backups = m.world.story.drive.listing
		plan = Decide(in)
	}
	if err := m.store(ctx, state, plan); err != nil {
		return err
	}
	for _, digest := range plan.Judged {
		m.judged[digest] = true
	}
	if settled, err := m.beginOperations(ctx, plan); err != nil || settled {
		return err
	}
	if !m.world.configs { // whether one is due is not what is tried there
		plan.Actions = slices.DeleteFunc(plan.Actions, func(a Action) bool { return a.Kind == ActTry || a.Kind == ActStage || a.Kind == ActFirstConfig })
	}
	m.compare = m.world.rendered()
	if _, err := m.act(ctx, in.Cluster, plan, in); err != nil {
		return err
	}
	return m.keep(ctx)
}

// rendered knows the config that each machine should run, which is its own digest.
func (w *world) rendered() *Comparer {
	c := NewComparer(nil, w.story.drive.cluster.Object, w.bundle, nil, "mark")
	for _, name := range w.model.names() {
		config := &talos.Rendered{Bytes: []byte(w.story.drive.wanted), Digest: w.story.drive.wanted}
		c.rendered[renderKey{machine: name, marked: true}] = renderResult{config: config}
	}
	return c
}

// keep is what the keeper of the backups does about a request, in the writes in which it does it.
func (m *mortal) keep(ctx context.Context) error {
	state, _ := m.state.Known()
	for name, memory := range state.Backups {
		r := memory.Request
		if r == nil || !r.Done.IsZero() {
			continue
		}
		change := func(what string, f func(*statefile.BackupRequest)) error {
			return m.state.Swap(ctx, func(s *statefile.State) error { f(s.Backups[name].Request); return nil }, statefile.Event{Action: what})
		}
		at := stamp(m.world.model.now)
		switch {
		case r.Started.IsZero():
			m.snapshot = true
			return change("SnapshotBegun", func(r *statefile.BackupRequest) { r.Started = at })
		case !m.snapshot: // another process began it, and died
			return change("SnapshotLost", func(r *statefile.BackupRequest) { r.Done, r.Outcome = at, "failed: the agent that took it is gone" })
		}
		if err := m.tap.around("snapshot", func() error { m.world.snapshots++; return nil }); err != nil {
			return err
		}
		return change("SnapshotStored", func(r *statefile.BackupRequest) { r.Done, r.Outcome = at, "stored etcd.snapshot.age" })
	}
	return nil
}

// aTurn is how much time passes after a pass that did something; after those that do nothing it is more and more.
const aTurn = 5 * time.Second

// live lets an agent work until done says so, or it dies; true where it died.
func (w *world) live(dies func(string) bool, done func(*statefile.State) bool) (killed bool, at string) {
	w.t.Helper()
	points := 0
	m := w.mortal(func(point string) bool { points++; return dies != nil && dies(point) })
	var last error
	turn := aTurn
	for range 300 {
		before := points
		last = m.once(w.t.Context())
		if m.tap.alive() != nil {
			return true, m.tap.at
		}
		if turn = min(2*turn, time.Minute); points > before {
			turn = aTurn
		}
		w.model.tick(turn)
		if state, _ := m.state.Known(); state != nil && done(state) {
			return false, ""
		}
	}
	state := w.state()
	for _, op := range state.Operations {
		w.t.Logf("%s %s (%s): %s", op.Name, op.Phase, op.Step, op.Message)
	}
	require.Fail(w.t, "it never ends", "intent %+v, lock %+v, rollout %+v, cordoned %v, last error %v", state.Intent, state.Lock, state.Rollout, w.cordoned(), last)
	return false, ""
}

// quiet says whether nothing is under way or left behind.
func (w *world) quiet(s *statefile.State) bool {
	return s.Intent == nil && s.Lock == nil && len(w.cordoned()) == 0
}

func (w *world) cordoned() []string {
	var names []string
	for _, name := range w.model.names() {
		if k := w.model.nodes[name].kubernetes; k != nil && k.Unschedulable {
			names = append(names, name)
		}
	}
	return names
}

// modelClock is the model's time.
type modelClock struct {
	clock.RealClock
	model *model
}

func (c modelClock) Now() time.Time                       { return c.model.now }
func (c modelClock) Since(then time.Time) time.Duration   { return c.model.now.Sub(then) }
func (c modelClock) NewTimer(d time.Duration) clock.Timer { panic("nobody waits in a model") }

// modelClocks are three clocks that agree.
type modelClocks struct{ model *model }

func (c modelClocks) Now() statefile.Instant {
	since := c.model.now.Sub(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))
	return statefile.Instant{Monotonic: since, Boot: since, Wall: c.model.now}
}

// modelNodes reach the machines of a model.
type modelNodes struct{ model *model }

func (n modelNodes) Observe(_ context.Context, target talos.Target) talos.Observation {
	return n.model.observe(n.model.nodes[target.Name])
}

func (n modelNodes) Dial(_ context.Context, target talos.Target) (Session, error) {
	node := n.model.nodes[target.Name]
	if !node.up || node.stage == "maintenance" {
		return nil, fmt.Errorf("%s: connection refused: %w", target.Name, talos.ErrNotSent)
	}
	return &modelSession{model: n.model, node: node, boot: node.bootID()}, nil
}

func (n modelNodes) DialMaintenance(_ context.Context, target talos.Target, fingerprint string) (Session, error) {
	node := n.model.nodes[target.Name]
	if !node.up || node.stage != "maintenance" || node.fingerprint() != fingerprint {
		return nil, fmt.Errorf("%s: connection refused: %w", target.Name, talos.ErrNotSent)
	}
	return &modelSession{model: n.model, node: node, boot: fingerprint, maintenance: true}, nil
}

func (n modelNodes) Recovery() recovery.Nodes { return nil }

func (n modelNodes) Member(talos.Target) backup.Node { return nil }
func (n modelNodes) Close() error                    { return nil }

// modelSession is a connection to one boot of a machine of a model.
type modelSession struct {
	model *model
	node  *modelNode
	boot  string
	// maintenance: it is in maintenance mode, and boot the fingerprint.
	maintenance bool
}

func (s *modelSession) Maintenance() bool                            { return s.maintenance }
func (s *modelSession) Fingerprint() string                          { return s.boot }
func (s *modelSession) Close() error                                 { return nil }
func (s *modelSession) UUID(context.Context) (string, error)         { return s.node.uuid, nil }
func (s *modelSession) BootID(context.Context) (string, error)       { return s.node.bootID(), nil }
func (s *modelSession) EtcdData(context.Context) (talos.Fact, error) { return s.look().Etcd.Data, nil }
func (s *modelSession) Services(context.Context) ([]talos.Service, error) {
	return s.look().Services, nil
}
func (s *modelSession) Members(context.Context) ([]talos.EtcdMember, error) {
	return s.look().Etcd.Members, nil
}

func (s *modelSession) EtcdStatus(context.Context) (talos.EtcdObservation, error) {
	return s.look().Etcd, nil
}

func (s *modelSession) ConfigDigests(context.Context) (active, persistent string, err error) {
	return s.node.active, s.node.persistent, nil
}

func (s *modelSession) look() talos.Observation { return s.model.observe(s.node) }

// take lets the machine do what it is asked for.
func (s *modelSession) take(a Action) error {
	if a.Machine == "" {
		a.Machine = s.node.name
	}
	a.Boot = s.boot
	outcome, err := s.model.apply(a)
	if err == nil && outcome != statefile.OutcomeOK {
		err = errors.New("the connection broke off")
	}
	return err
}

func (s *modelSession) ApplyConfig(_ context.Context, request talos.ApplyRequest) error {
	if s.maintenance {
		return s.take(Action{Kind: ActFirstConfig, Digest: string(request.Config)})
	}
	kind := map[talos.ApplyMode]ActionKind{talos.ApplyTry: ActTry, talos.ApplyNoReboot: ActConfirm, talos.ApplyStaged: ActStage}[request.Mode]
	return s.take(Action{Kind: kind, Digest: string(request.Config)})
}

func (s *modelSession) Bootstrap(context.Context) error  { return s.take(Action{Kind: ActBootstrap}) }
func (s *modelSession) Defragment(context.Context) error { return s.take(Action{Kind: ActDefragment}) }
func (s *modelSession) ForfeitLeadership(context.Context) error {
	return s.take(Action{Kind: ActForfeit})
}

func (s *modelSession) RemoveMember(_ context.Context, id uint64) error {
	a := Action{Kind: ActRemoveMember, Member: id, Via: s.node.name}
	for _, name := range s.model.names() {
		if s.model.nodes[name].member == id {
			a.Machine = name
		}
	}
	return s.take(a)
}

func (s *modelSession) Reset(_ context.Context, request talos.ResetRequest) error {
	if !slices.Contains(request.Partitions, "STATE") {
		return s.take(Action{Kind: ActReset})
	}
	return s.take(Action{Kind: ActResetMachine, PowerOff: !request.Reboot})
}

func (s *modelSession) Reboot(context.Context, talos.RebootMode) error {
	return s.take(Action{Kind: ActReboot})
}
func (s *modelSession) Shutdown(context.Context, bool) error {
	return s.take(Action{Kind: ActShutdown})
}

func (s *modelSession) RestartService(_ context.Context, id string) error {
	return s.take(Action{Kind: ActRestartService, Service: id})
}

// modelKubernetes is the Kubernetes API of a model.
type modelKubernetes struct{ model *model }

func (k modelKubernetes) Nodes(context.Context) ([]kube.Node, error) {
	if k.model.kubernetes != "" {
		return nil, errors.New(k.model.kubernetes)
	}
	k.model.beat()
	var nodes []kube.Node
	for _, name := range k.model.names() {
		if node := k.model.nodes[name].kubernetes; node != nil {
			nodes = append(nodes, *node)
		}
	}
	return nodes, nil
}

// ask makes a call about the Node with this UID.
func (k modelKubernetes) ask(a Action) error {
	for _, name := range k.model.names() {
		if node := k.model.nodes[name].kubernetes; node != nil && node.UID == a.NodeUID {
			a.Machine = name
			k.model.accepted[string(a.Kind)+" "+name]++
			k.model.askKubernetes(a)
			return nil
		}
	}
	return fmt.Errorf("another Node: %w", kube.ErrChanged)
}

func (k modelKubernetes) Cordon(_ context.Context, node kube.Node, owner string) error {
	return k.ask(Action{Kind: ActCordon, NodeUID: node.UID, Owner: owner})
}

func (k modelKubernetes) Uncordon(_ context.Context, node kube.Node, owner string) (bool, error) {
	return true, k.ask(Action{Kind: ActUncordon, NodeUID: node.UID, Owner: owner})
}

func (k modelKubernetes) Evict(_ context.Context, node kube.Node, _ kube.EvictOptions) (kube.Drain, error) {
	if err := k.ask(Action{Kind: ActEvict, NodeUID: node.UID}); err != nil {
		return kube.Drain{}, err
	}
	return *k.model.drain, nil
}

func (k modelKubernetes) Revision(context.Context) (int64, error) { return 1, nil }

func (k modelKubernetes) Agents(context.Context) ([]kube.Agent, error) { return nil, nil }

func (k modelKubernetes) DeleteAgent(context.Context, kube.Agent) error { return nil }

func (k modelKubernetes) DeleteNode(_ context.Context, _, uid string) error {
	return k.ask(Action{Kind: ActDeleteNode, NodeUID: uid})
}
