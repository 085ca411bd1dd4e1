package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// Connection is one connection to one boot of one machine. It never reconnects.
type Connection interface {
	Maintenance() bool
	Fingerprint() string
	UUID(ctx context.Context) (string, error)
	BootID(ctx context.Context) (string, error)
	EtcdData(ctx context.Context) (talos.Fact, error)
	Services(ctx context.Context) ([]talos.Service, error)
	Members(ctx context.Context) ([]talos.EtcdMember, error)

	// The calls that change something.
	ApplyConfig(ctx context.Context, request talos.ApplyRequest) error
	Reset(ctx context.Context, request talos.ResetRequest) error
	Reboot(ctx context.Context, mode talos.RebootMode) error
	RestartService(ctx context.Context, id string) error
	RemoveMember(ctx context.Context, id uint64) error

	Close() error
}

// Session is a connection with what a recovery needs besides; *talos.Session is one.
type Session interface {
	Connection
	EtcdSnapshot(ctx context.Context) (io.ReadCloser, error)
	// APIServer says whether a kube-apiserver runs.
	APIServer(ctx context.Context) (talos.Fact, error)

	// The calls that change something.
	UploadSnapshot(ctx context.Context, snapshot io.Reader) error
	RecoverEtcd(ctx context.Context) error
	LeaveEtcd(ctx context.Context) error
}

// Nodes reaches the machines.
type Nodes interface{ talos.Machines[Session] }

// Fence keeps agents from acting meanwhile.
type Fence interface {
	// Hold fails when it isn't held any more.
	Hold(ctx context.Context) error
	// Begin is Hold for a call that is about to be made: where agents keep such intents it is written there, before the marker.
	Begin(ctx context.Context, intent Intent) error
	// Check is Hold for a call that nothing hangs on, as to Kubernetes: it writes nothing.
	Check(ctx context.Context) error
}

// errMoved: the machine is no longer what was decided on, so nothing was sent.
var errMoved = errors.New("it changed since it was looked at")

func target(m Machine) talos.Target {
	return talos.Target{Name: m.Name, Endpoint: m.Endpoint, ControlPlane: true}
}

func workerTarget(m Machine) talos.Target { return talos.Target{Name: m.Name, Endpoint: m.Endpoint} }

// target gives a control plane's or a worker's.
func (r *Run) target(name string) talos.Target {
	if m := r.marker.machine(name); m != nil {
		return target(*m)
	}
	return workerTarget(*r.marker.anyone(name))
}

// replace deletes a pod, so that its DaemonSet makes it anew. It may be asked for again at will: it is that pod or none.
func (r *Run) replace(ctx context.Context, a *action) error {
	if err := r.Fence.Check(ctx); err != nil {
		return err
	}
	r.Say(a.Why)
	ctx, cancel := context.WithTimeout(ctx, r.Timing.Call)
	defer cancel()
	return r.Kubernetes.DeleteAgent(ctx, kube.Agent{DaemonSet: a.Pod.DaemonSet, Name: a.Pod.Name, UID: a.Pod.UID, Node: a.Pod.Node})
}

// do makes one call: it reads on the connection that will carry it that this is the machine and the boot that was decided for, writes the
// intent, sends once while that is young, and writes the outcome. A nil error means that the marker says what became of it.
func (r *Run) do(ctx context.Context, a *action) error {
	switch {
	case a.Kind == ActVerify:
		return r.verify(ctx, a)
	case a.Kind == ActReplace:
		return r.replace(ctx, a)
	case a.Kind.onKubernetes():
		return r.onKubernetes(ctx, a)
	}
	limit := r.Timing.Call
	switch a.Kind {
	case ActLeave:
		limit = r.Timing.Leave
	case ActUpload:
		limit += time.Duration(r.Prepared.After.Size>>20) * time.Second
	}
	looking, cancel := context.WithTimeout(ctx, r.Timing.Call)
	defer cancel()
	session, err := r.dial(looking, a)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	facts, err := r.recheck(looking, session, a)
	if err != nil {
		return err
	}
	started := r.Clocks.Now()
	intent := Intent{Nonce: statefile.NewNonce(), Action: a.Kind, Machine: a.Machine, UUID: a.UUID, BootID: a.Boot, Facts: facts, Attempt: a.Attempt}
	if err := r.Fence.Begin(looking, intent); err != nil {
		return err
	}
	if err := r.write(looking, func(m *Marker) error {
		intent.Driver, intent.Epoch, intent.At = m.Driver.ID, m.Driver.Epoch, r.now()
		m.begin(intent)
		m.note(a.Note)
		if a.Undrained != "" {
			m.drainOf(a.Machine, r.now()).Undrained = a.Undrained
		}
		return nil
	}); err != nil {
		r.notBegun(intent.Nonce)
		return fmt.Errorf("%s on %s was not begun: %w", a.Kind, a.Machine, err)
	}
	if elapsed := r.Clocks.Now().Since(started); elapsed >= r.Timing.Fresh || ctx.Err() != nil {
		return r.outcome(ctx, intent, statefile.OutcomeRefused, fmt.Sprintf("%swriting its intent took %s", notSent, elapsed.Round(time.Millisecond)))
	}
	r.calls[intent.Nonce] = callTimes{begun: r.passed(), ended: r.passed()}
	r.Say(a.Why)
	// From here on the call is made whatever becomes of ctx, within its own deadline.
	sending, stop := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer stop()
	err = r.send(sending, session, a)
	outcome, message := statefile.Outcome(talos.Classify(err)), ""
	if err != nil {
		message = r.Scrubber.Text(err.Error())
	}
	return r.outcome(ctx, intent, outcome, message)
}

func (r *Run) dial(ctx context.Context, a *action) (Session, error) {
	to := r.target(a.Machine)
	if a.Kind == ActConfig {
		return r.Nodes.DialMaintenance(ctx, to, a.Boot)
	}
	return r.Nodes.Dial(ctx, to)
}

// recheck reads again what the action rests on, and gives the facts for its intent.
func (r *Run) recheck(ctx context.Context, s Session, a *action) (map[string]string, error) {
	moved := func(what, is, was string) error {
		return fmt.Errorf("%s: its %s is %s, and was %s: %w", a.Machine, what, is, was, errMoved)
	}
	uuid, err := s.UUID(ctx)
	if err != nil {
		return nil, err
	}
	if !strings.EqualFold(uuid, a.UUID) {
		return nil, moved("UUID", uuid, a.UUID)
	}
	facts := maps.Clone(a.Facts)
	if a.Kind == ActConfig {
		if !s.Maintenance() || s.Fingerprint() != a.Boot {
			return nil, moved("fingerprint", s.Fingerprint(), a.Boot)
		}
		return facts, nil
	}
	boot, err := s.BootID(ctx)
	if err != nil {
		return nil, err
	}
	if boot != a.Boot {
		return nil, moved("boot ID", boot, a.Boot)
	}
	if a.Kind == ActRestart {
		services, err := s.Services(ctx)
		if err != nil {
			return nil, err
		}
		return map[string]string{factKubelet: started(kubeletOf(services))}, nil
	}
	if a.Kind == ActRemoveMember {
		return facts, stillUnjoined(ctx, s, a)
	}
	data, err := s.EtcdData(ctx)
	if err != nil {
		return nil, err
	}
	if is := data.Presence(); is != a.Facts["data"] {
		return nil, moved("etcd data", is, a.Facts["data"])
	}
	if a.Kind == ActRecover {
		services, err := s.Services(ctx)
		if err != nil {
			return nil, err
		}
		facts[factService] = service(services)
	}
	return facts, nil
}

// stillUnjoined wants a member that is to be removed to be one still that never came to be a voter with a name.
func stillUnjoined(ctx context.Context, s Session, a *action) error {
	members, err := s.Members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.ID == a.Member && (m.Learner || m.Name == "") {
			return nil
		}
	}
	return fmt.Errorf("member %s is gone, or has joined: %w", hexID(a.Member), errMoved)
}

// send makes the one call.
func (r *Run) send(ctx context.Context, s Session, a *action) error {
	switch a.Kind {
	case ActConfig:
		config, problem := r.config(a.Machine)
		if problem != "" || config.Digest != a.Facts["config"] {
			return fmt.Errorf("the config of %s is another one by now: %w", a.Machine, talos.ErrNotSent)
		}
		return s.ApplyConfig(ctx, talos.ApplyRequest{Config: config.Bytes, Mode: talos.ApplyNoReboot})
	case ActReset:
		return s.Reset(ctx, talos.ResetRequest{Partitions: []string{"EPHEMERAL"}, Reboot: true})
	case ActReboot:
		return s.Reboot(ctx, talos.RebootDefault)
	case ActRestart:
		return s.RestartService(ctx, "kubelet")
	case ActRecover:
		return s.RecoverEtcd(ctx)
	case ActLeave:
		return s.LeaveEtcd(ctx)
	case ActRemoveMember:
		return s.RemoveMember(ctx, a.Member)
	case ActUpload:
		file, err := os.Open(r.Prepared.Path)
		if err != nil {
			return fmt.Errorf("%w: %w", err, talos.ErrNotSent)
		}
		defer func() { _ = file.Close() }()
		return s.UploadSnapshot(ctx, file)
	}
	return fmt.Errorf("%s is no call that is known: %w", a.Kind, talos.ErrNotSent)
}

// notBegun remembers an intent whose call is not made, since its write failed: it may have arrived all the same, or arrive later.
func (r *Run) notBegun(nonce string) {
	r.unsent = append(r.unsent, nonce)
	r.settleUnsent()
}

// settleUnsent says in the marker of calls that this process did not make that they weren't sent. The next write of the marker keeps it.
func (r *Run) settleUnsent() {
	for n := range r.marker.Intents {
		if i := &r.marker.Intents[n]; i.Outcome == "" && slices.Contains(r.unsent, i.Nonce) {
			i.Outcome, i.Message, i.OutcomeAt = statefile.OutcomeRefused, notSent+"writing its intent was not acknowledged", r.now()
		}
	}
}

func (r *Run) outcome(ctx context.Context, intent Intent, outcome statefile.Outcome, message string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Timing.Call)
	defer cancel()
	if own, known := r.calls[intent.Nonce]; known {
		r.calls[intent.Nonce] = callTimes{begun: own.begun, ended: r.passed()}
	}
	err := r.write(ctx, func(m *Marker) error {
		i := m.find(intent.Nonce)
		if i == nil {
			return fmt.Errorf("the intent of %s on %s is gone from the marker", intent.Action, intent.Machine)
		}
		i.Outcome, i.Message, i.OutcomeAt = outcome, message, r.now()
		return nil
	})
	if err != nil {
		if strings.HasPrefix(message, notSent) {
			r.notBegun(intent.Nonce)
		}
		return fmt.Errorf("%s on %s was sent (%s), and that could not be written: %w", intent.Action, intent.Machine, outcome, err)
	}
	return nil
}
