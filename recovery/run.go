package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// MarkerFile is where the marker is; *backup.Marker is one.
type MarkerFile interface {
	Read(ctx context.Context) (json.RawMessage, error)
	Swap(ctx context.Context, content json.RawMessage) error
}

// Config is what a machine in maintenance mode is given.
type Config struct {
	Bytes  []byte
	Digest string
}

// Run is one process that drives a recovery.
type Run struct {
	Nodes  Nodes
	Marker MarkerFile
	Fence  Fence
	// Kubernetes is asked once etcd answers again; nil: no way to it is known.
	Kubernetes Kubernetes
	// Prepared is the snapshot as it is uploaded.
	Prepared *revision.Prepared
	// Config renders the config of a machine in maintenance mode, as it was last seen, or says in a sentence why it gets none. Nil: none
	// is given any.
	Config func(name string, seen talos.Observation) (Config, string)
	// Count counts what a snapshot of the recovered etcd held as of a revision; [CountIn] makes one.
	Count func(ctx context.Context, snapshot io.Reader, at int64) (revision.Contents, error)
	// DrainLimit is how long the pods of a machine may take to be moved away before its reboot, zero for 15 minutes; DrainForce moves those
	// too that nothing makes anew.
	DrainLimit time.Duration
	DrainForce bool
	// Cancel: a person cancelled it.
	Cancel bool
	// Say shows a line of progress.
	Say      func(line string)
	Clock    clock.WithTicker
	Clocks   statefile.Clocks
	Timing   Timing
	Scrubber *scrub.Scrubber

	marker  *Marker
	seen    map[string]Seen
	started statefile.Instant
	// What was seen since when is counted from started on, by the clock that nobody sets; see passed.
	//
	// silent is since when the target has held data without answering; notSeen: it doesn't.
	silent time.Duration
	// outside is since when a machine has been a member that the target's etcd doesn't list.
	outside map[string]time.Duration
	// unjoined is since when a member has been a learner, or without a name, by its ID in hex; drains are what the last rounds left.
	unjoined map[string]time.Duration
	drains   map[string]kube.Drain
	// away is since when the Kubernetes API has been asked in vain; notSeen: it answered, or was not asked.
	away time.Duration
	// moved is since when nothing that lived through the restore has come right, and open how many things are not right; see input.Stuck.
	moved time.Duration
	open  int
	// calls are when this process made its calls, by the nonce of the intent.
	calls map[string]callTimes
	// unsent are the nonces of intents whose calls this process did not make.
	unsent []string
	said   string
	// lost is set once another process was found to be the driver: nothing more is done then, whoever asks.
	lost error
}

// StoppedError: the recovery can't go on by itself, and why. The marker stays; the same command goes on.
type StoppedError struct{ Why string }

func (e *StoppedError) Error() string { return e.Why }

// ErrOtherDriver: another process goes on with the recovery.
var ErrOtherDriver = errors.New("another process has taken this recovery over, and goes on with it")

func (r *Run) now() time.Time { return r.Clock.Now().UTC().Round(0).Truncate(time.Millisecond) }

// Begin writes a new marker, or makes this process the driver of the one that is there (then marker is what it holds, with what the caller
// changed of it). From here on the recovery is under way.
func (r *Run) Begin(ctx context.Context, marker *Marker) error {
	next := marker.clone()
	next.SchemaVersion, next.Kind = markerVersion, markerKind
	next.Driver = statefile.Writer{ID: statefile.NewNonce(), Epoch: marker.Driver.Epoch + 1, Since: r.now()}
	next.Problem = ""
	if next.Began.IsZero() {
		next.Phase, next.Began = PhaseConfiguring, r.now()
		if next.Holder != "" {
			next.Phase = PhaseLeaving
		}
	}
	content, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encoding the restore's marker: %w", err)
	}
	if err := r.Marker.Swap(ctx, content); err != nil {
		return err
	}
	r.marker, r.started, r.seen = next, r.Clocks.Now(), map[string]Seen{}
	r.outside, r.unjoined, r.drains = map[string]time.Duration{}, map[string]time.Duration{}, map[string]kube.Drain{}
	r.silent, r.away, r.moved, r.calls = notSeen, notSeen, notSeen, map[string]callTimes{}
	return nil
}

// write swaps the marker. A store that doesn't answer is asked again until ctx ends.
func (r *Run) write(ctx context.Context, change func(*Marker) error) error {
	next := r.marker.clone()
	if err := change(next); err != nil {
		return err
	}
	content, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encoding the restore's marker: %w", err)
	}
	if err := r.Marker.Swap(ctx, content); err != nil {
		if again := r.reread(ctx); again != nil {
			return errors.Join(err, again)
		}
		return err
	}
	r.marker = next
	return nil
}

// reread takes what stands in the store as the marker, if this process is its driver still.
func (r *Run) reread(ctx context.Context) error {
	content, err := r.Marker.Read(ctx)
	if err != nil {
		return err
	}
	if content == nil {
		return errors.New("the restore's marker is gone from the store: someone deleted it; nothing more is done without it")
	}
	now, err := DecodeMarker(content)
	if err != nil {
		return err
	}
	if now.Driver.ID != r.marker.Driver.ID || now.Driver.Epoch != r.marker.Driver.Epoch {
		r.lost = fmt.Errorf("%w (run number %d)", ErrOtherDriver, now.Driver.Epoch)
		return r.lost
	}
	r.marker = now
	r.settleUnsent()
	return nil
}

// Go drives the recovery to its end. Errors: [*StoppedError], [ErrOtherDriver], [*FenceError], ctx's. Whatever the error, another run
// goes on from the marker.
func (r *Run) Go(ctx context.Context) (*Marker, error) {
	for r.marker.Phase != PhaseDone {
		if err := ctx.Err(); err != nil {
			return r.marker, err
		}
		if err := r.step(ctx); err != nil {
			return r.marker, err
		}
	}
	return r.marker, nil
}

// Advance looks once and does at most one thing. It gives the marker as it stands then, and what is done or waited for. Errors are those of
// [Run.Go]; what passes by itself is none.
func (r *Run) Advance(ctx context.Context) (*Marker, string, error) {
	if r.marker.Phase == PhaseDone {
		return r.marker, r.said, nil
	}
	_, err := r.once(ctx)
	return r.marker, r.said, err
}

// step looks, decides, and does one thing or waits.
func (r *Run) step(ctx context.Context) error {
	waits, err := r.once(ctx)
	if err != nil || !waits {
		return err
	}
	return r.pause(ctx)
}

// once is a step without the wait; waits says that there is one.
func (r *Run) once(ctx context.Context) (waits bool, err error) {
	if r.lost != nil {
		return false, r.lost // reading it has made this process able to swap what is another's
	}
	r.look(ctx)
	driven := r.passed()
	in := input{Marker: r.marker, Seen: r.seen, Driven: driven, Calls: r.callAges(), Kubernetes: r.lookAtKubernetes(ctx), Timing: r.Timing, Cancel: r.Cancel,
		Drains: r.drains, DrainLimit: r.DrainLimit}
	in.Now = r.now()
	if r.silent != notSeen {
		in.Silent = driven - r.silent
	}
	in.Outside, in.Unjoined = ages(r.outside, driven), ages(r.unjoined, driven)
	in.Stuck = r.stuck(in)
	step := decide(in)
	r.notice(step.Open)
	switch {
	case step.Stop != "":
		err := r.write(ctx, func(m *Marker) error {
			m.Problem = step.Stop
			return nil
		})
		if errors.Is(err, ErrOtherDriver) {
			return false, err
		}
		return false, &StoppedError{step.Stop} // whether or not the marker has it
	case step.Phase != "", step.Survivors != nil:
		err = r.enter(ctx, step)
	case step.Action != nil:
		err = r.doAll(ctx, in, step.Action)
	default:
		r.progress(step.Wait)
		return true, nil
	}
	var fenced *FenceError
	switch {
	case err == nil:
		return step.Action != nil && step.Action.Kind == ActEvict, nil // between two rounds pods go
	case errors.Is(err, ErrOtherDriver), errors.As(err, &fenced):
		return false, err
	case errors.Is(err, errVerified):
		return false, &StoppedError{err.Error()}
	case in.spent() > r.Timing.All:
		return false, &StoppedError{r.Scrubber.Text(err.Error())}
	}
	r.progress(r.Scrubber.Text(err.Error()))
	if again := r.reread(ctx); errors.Is(again, ErrOtherDriver) {
		return false, again
	}
	return true, nil
}

// enter writes the next phase.
func (r *Run) enter(ctx context.Context, step nextStep) error {
	if err := r.Fence.Hold(ctx); err != nil {
		return err
	}
	r.said = "" // what was waited for is over
	return r.write(ctx, func(m *Marker) error {
		if step.Survivors != nil {
			m.Survivors = step.Survivors
			return nil
		}
		before := m.Phase
		m.Phase = step.Phase
		m.note(step.Note)
		switch step.Phase {
		case PhaseJoining:
			m.Recovered = &Recovered{Member: hexID(step.Member), At: r.now(), Boots: map[string]string{}}
			for name, seen := range r.seen {
				if seen.BootID != "" {
					m.Recovered.Boots[name] = seen.BootID
				}
			}
		case PhaseDone:
			m.Ended, m.Cancelled = r.now(), m.Cancelled || r.Cancel || before == PhaseCancelling
			if before == PhaseCancelling {
				m.note(m.cancelled())
			}
		case PhaseLeaving, PhaseConfiguring, PhaseRecovering, PhaseReconciling, PhaseCancelling:
		}
		return nil
	})
}

// stuck is for how long nothing that lived through the restore has come right. What can't be seen doesn't count.
func (r *Run) stuck(in input) time.Duration {
	if in.Kubernetes == nil || in.Kubernetes.Problem != "" || r.moved == notSeen {
		r.moved = in.Driven
	}
	return in.Driven - r.moved
}

// notice keeps how many things are not right.
func (r *Run) notice(open int) {
	if open < r.open || r.open == 0 {
		r.moved = r.passed()
	}
	if open > 0 && (open < r.open || r.open == 0) {
		r.open = open
	}
}

// doAll makes a call. Kubelets are restarted on one look, as many as there is time for: a look at many machines takes long where some are off,
// and each call looks again at its own.
func (r *Run) doAll(ctx context.Context, in input, a *action) error {
	began := r.Clocks.Now()
	for {
		err := r.do(ctx, a)
		if err != nil || a.Kind != ActRestart || r.Clocks.Now().Since(began) > r.Timing.Call {
			return err
		}
		in.Marker, in.Calls = r.marker, r.callAges()
		next := decide(in)
		if next.Action == nil || next.Action.Kind != ActRestart {
			return nil
		}
		a = next.Action
	}
}

func (r *Run) progress(line string) {
	if line != r.said {
		r.said = line
		r.Say(line)
	}
}

func (r *Run) pause(ctx context.Context) error {
	timer := r.Clock.NewTimer(r.Timing.Look)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}

// look looks at every machine, side by side.
func (r *Run) look(ctx context.Context) {
	seen := LookAt(ctx, r.Nodes, r.marker.Machines, r.Config)
	if r.marker.Phase == PhaseReconciling {
		maps.Copy(seen, lookAt(ctx, r.Nodes, r.marker.Workers, workerTarget, nil))
	}
	r.seen = seen
	on := seen[r.marker.Target]
	if on.Etcd.Data != talos.Yes || on.Etcd.Members != nil {
		r.silent = notSeen
	} else if r.silent == notSeen {
		r.silent = r.passed()
	}
	r.askServers(ctx)
	lists := on.Etcd.Members
	if r.marker.Phase == PhaseCancelling {
		lists = seen[r.marker.Holder].Etcd.Members
	}
	if lists == nil {
		clear(r.outside)
		clear(r.unjoined)
		return
	}
	outside, unjoined := map[string]bool{}, map[string]bool{}
	for _, m := range r.marker.Machines {
		one := seen[m.Name]
		outside[m.Name] = one.Etcd.Data == talos.Yes && !slices.ContainsFunc(lists, func(member talos.EtcdMember) bool { return isMember(m, one, member) })
	}
	for _, member := range lists {
		unjoined[hexID(member.ID)] = member.Learner || member.Name == ""
	}
	watch(r.outside, outside, r.passed())
	watch(r.unjoined, unjoined, r.passed())
}

// isMember says whether a member is a machine's: by its ID where the machine knows it, else by its name or its address.
func isMember(m Machine, seen Seen, member talos.EtcdMember) bool {
	if seen.Etcd.MemberID != 0 {
		return seen.Etcd.MemberID == member.ID
	}
	if member.Name != "" && seen.Hostname != "" {
		return member.Name == seen.Hostname
	}
	return slices.ContainsFunc(member.PeerURLs, func(text string) bool {
		parsed, err := url.Parse(text)
		return err == nil && (parsed.Hostname() == target(m).Host() || slices.Contains(seen.Addresses, parsed.Hostname()))
	})
}

// askServers asks those that left etcd whether their API servers run still.
func (r *Run) askServers(ctx context.Context) {
	if r.marker.Phase != PhaseLeaving {
		return
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	asked := map[string]talos.Fact{}
	for _, m := range r.marker.Machines {
		seen := r.seen[m.Name]
		if m.Name == r.marker.Holder || seen.Mode != talos.ModeConfigured || seen.Etcd.Data != talos.No {
			continue
		}
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, r.Timing.Call)
			defer cancel()
			session, err := r.Nodes.Dial(ctx, target(m))
			if err != nil {
				return // unknown
			}
			defer func() { _ = session.Close() }()
			server, err := session.APIServer(ctx)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			asked[m.Name] = server
		})
	}
	group.Wait()
	for name, server := range asked {
		seen := r.seen[name]
		seen.APIServer = server
		r.seen[name] = seen
	}
}

// config renders the config of a machine as it was last seen.
func (r *Run) config(name string) (Config, string) {
	if r.Config == nil {
		return Config{}, "no config can be made for " + name
	}
	return r.Config(name, r.seen[name].Observation)
}

// LookAt looks at control planes side by side. Config may be nil.
func LookAt(ctx context.Context, nodes Nodes, machines []Machine, config func(string, talos.Observation) (Config, string)) map[string]Seen {
	return lookAt(ctx, nodes, machines, target, config)
}

func lookAt(ctx context.Context, nodes Nodes, machines []Machine, target func(Machine) talos.Target, config func(string, talos.Observation) (Config, string)) map[string]Seen {
	var mu sync.Mutex
	var group sync.WaitGroup
	all := map[string]Seen{}
	for _, m := range machines {
		group.Go(func() {
			seen := Seen{Observation: nodes.Observe(ctx, target(m))}
			if seen.Mode == talos.ModeMaintenance {
				seen.ConfigProblem = m.Name + " is in maintenance mode, and without a fleet checkout no config can be made for it: give --fleet"
				if config != nil {
					var rendered Config
					rendered, seen.ConfigProblem = config(m.Name, seen.Observation)
					seen.ConfigDigest = rendered.Digest
				}
			}
			if seen.Active != nil {
				seen.Owner = talos.StateAnnotationOf(seen.Active)
			}
			mu.Lock()
			defer mu.Unlock()
			all[m.Name] = seen
		})
	}
	group.Wait()
	return all
}
