package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// Gate is the one door for every call that changes a machine, one call at a time for a cluster. It dials the machine itself on a
// connection that never reconnects, reads on it that this is the machine and the boot that was decided for, writes the intent,
// and sends the call once, on that connection, while lease and intent are young: so what is sent late, by a process that was
// frozen for instance, reaches the boot it was meant for or nothing. docs/architecture.md has the six steps.
type Gate struct {
	Nodes Nodes
	// Kubernetes is nil where the agent has no way to the Kubernetes API.
	Kubernetes Kubernetes
	State      StateStore
	Lease      Lease
	Clock      clock.PassiveClock
	Clocks     statefile.Clocks
	Timing     Timing
	Log        *slog.Logger
	Scrubber   *scrub.Scrubber
	// BundleID is schema.ClusterID of the bundle whose secrets are used.
	BundleID string
	// Open counts the calls that are under way: a lease is released only when there is none.
	Open *atomic.Int64
	// NotSent is told the nonce of each intent whose call was not made; nil: nobody asks.
	NotSent func(nonce string)
}

// call is one action with what it is sent with.
type call struct {
	action  Action
	cluster *schema.TalosCluster
	// declared is the UUID that the carrier must have.
	declared string
	target   talos.Target
	config   []byte
	etcd     etcdView
	// against is the guard of a bootstrap that does not hold on base.
	against string
	// lookAtEtcd asks the control planes for their etcd once more, at the moment of the call; nil: etcd above serves.
	lookAtEtcd func(context.Context) etcdView
	// drained takes what a round of a drain left.
	drained func(key string, drain kube.Drain)
	// worker says that etcd doesn't run on the machine.
	worker bool
	// base is the state that the decision rests on: a state that is another by now is decided on anew.
	base *statefile.State
}

// notSent begins the message of an intent whose call this process did not make.
const notSent = "not sent: "

// errUntouched is in the error of a call before whose intent something went wrong at its machine alone.
var errUntouched = errors.New("nothing was sent")

// errStale says that the state is no longer the one that was decided on.
var errStale = errors.New("the state changed since this was decided; it is decided anew")

// Do makes one call. A nil error means that it was sent and that its outcome stands in the state, whatever it is; errRefused
// that it was not sent. Any other error: the state tells, and the next pass reads it.
func (g *Gate) Do(ctx context.Context, c call) error {
	if c.action.Kind.cordoning() {
		return g.cordoning(ctx, c)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*g.Timing.Call)
	defer cancel()
	// 1. The machine itself, and on that connection what the action rests on.
	session, a, err := g.look(ctx, c)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, errUntouched)
	}
	defer session.Close()
	if c.lookAtEtcd != nil {
		a.etcd = c.lookAtEtcd(ctx)
	}
	// 2.
	a.leaseAge, a.leaseHeld = g.Lease.Age()
	if err := refuse(a); err != nil {
		if refuseLease(a) != "" {
			return err
		}
		return fmt.Errorf("%w (%w)", err, errUntouched)
	}
	// 3. and 4.
	started := g.Clocks.Now()
	intent, err := g.intend(ctx, c, a)
	if err != nil {
		return err
	}
	// 5. From here on the call is open: it is finished whatever becomes of ctx, within its own deadline.
	if g.Open != nil {
		g.Open.Add(1)
		defer g.Open.Add(-1)
	}
	if err := ctx.Err(); err != nil {
		return g.unsent(ctx, intent, "the agent is stopping")
	}
	sending, stop := context.WithTimeout(context.WithoutCancel(ctx), g.limit(c.action.Kind))
	defer stop()
	age, held := g.Lease.Age()
	if elapsed := g.Clocks.Now().Since(started); !held || age >= freshLease || elapsed >= freshIntent {
		return g.unsent(sending, intent, fmt.Sprintf("writing its intent took %s and the lease is %s old (held: %t)",
			elapsed.Round(time.Millisecond), age.Round(time.Millisecond), held))
	}
	err = g.send(sending, session, a, c)
	// 6.
	return g.record(sending, c.action, intent, err)
}

// look dials the carrier and reads what the action rests on.
func (g *Gate) look(ctx context.Context, c call) (Session, attempt, error) {
	a := attempt{
		action: c.action, cluster: c.cluster, bundleID: g.BundleID, declared: c.declared, state: c.base, etcd: c.etcd, against: c.against,
		worker: c.worker, mode: modeOf(c.action.Kind), partitions: partitionsOf(c.action.Kind), routed: talos.Routed(ctx),
	}
	_, a.hasDeadline = ctx.Deadline()
	if c.action.Kind == ActDeleteNode {
		return g.lookAtNode(ctx, c, a)
	}
	var session Session
	var err error
	if c.action.Kind == ActFirstConfig {
		session, err = g.Nodes.DialMaintenance(ctx, c.target, c.action.Boot)
	} else {
		session, err = g.Nodes.Dial(ctx, c.target)
	}
	if err != nil {
		return nil, a, fmt.Errorf("%s on %s was not begun: %w", c.action.Kind, c.action.Machine, err)
	}
	if err := readFacts(ctx, session, &a); err != nil {
		session.Close()
		return nil, a, fmt.Errorf("%s on %s was not begun: %w", c.action.Kind, c.action.Machine, err)
	}
	return session, a, nil
}

// readFacts reads identity, boot and facts over the session.
func readFacts(ctx context.Context, s Session, a *attempt) (err error) {
	if a.uuid, err = s.UUID(ctx); err != nil {
		return err
	}
	a.facts = map[string]string{}
	if s.Maintenance() {
		a.boot, a.facts["mode"] = s.Fingerprint(), "maintenance"
		return nil
	}
	if a.boot, err = s.BootID(ctx); err != nil {
		return err
	}
	a.facts["mode"] = "configured"
	for _, key := range checkedFacts(a.action) {
		switch key {
		case "data":
			data, err := s.EtcdData(ctx)
			if err != nil {
				return err
			}
			a.facts["data"] = data.Presence()
		case "member":
			members, err := s.Members(ctx)
			if err != nil {
				return err
			}
			for _, m := range members {
				if m.ID == a.action.Member {
					a.facts["member"] = describeMember(m)
				}
			}
		case "active", "persistent":
			active, persistent, err := s.ConfigDigests(ctx)
			if err != nil {
				return err
			}
			a.facts["active"], a.facts["persistent"] = active, persistent
		case "started":
			services, err := s.Services(ctx)
			if err != nil {
				return err
			}
			a.facts["started"] = startedFact(services, a.action.Service)
		case "leads":
			etcd, err := s.EtcdStatus(ctx)
			if err != nil {
				return err
			}
			a.facts["leads"] = yesNo(etcd.MemberID == etcd.Leader)
		}
	}
	return nil
}

// startedFact is when a service last began to run, as a fact.
func startedFact(services []talos.Service, id string) string {
	service, is := talos.ServiceNamed(services, id)
	if !is {
		return "not there"
	}
	return fmt.Sprintf("%s %s", service.State, service.Started.UTC().Format(time.RFC3339Nano))
}

// intend writes the intent. Only its own success, or a read that shows its nonce, lets the call go on.
func (g *Gate) intend(ctx context.Context, c call, a attempt) (statefile.Intent, error) {
	intent := statefile.Intent{
		Nonce: statefile.NewNonce(), Action: string(c.action.Kind), Machine: c.action.Machine, UUID: a.uuid, BootID: a.boot,
		Carrier: c.action.Via, Digest: c.action.Digest, Operation: c.action.Operation, Facts: c.action.Facts, Attempt: max(1, c.action.Attempt), At: stamp(g.Clock.Now()),
	}
	if c.action.Member != 0 {
		intent.Member = hexID(c.action.Member)
	}
	// What the audit keeps of it is enough to tell later whether a call that a node took was this one.
	details := map[string]string{
		"call": c.action.String(), "nonce": intent.Nonce, "action": intent.Action, "carrier": c.action.carrier(), "boot": intent.BootID,
		"attempt": strconv.Itoa(intent.Attempt),
	}
	err := g.State.Swap(ctx, func(s *statefile.State) error {
		if !sameState(s, c.base) {
			return errStale
		}
		intent.Writer = s.Writer
		begun(s, c.action, intent)
		delete(details, "lock")
		if s.Lock != nil {
			details["lock"] = s.Lock.Holder
		}
		return nil
	}, statefile.Event{Action: "Intent", Machine: c.action.Machine, Operation: c.action.Operation, Message: c.action.Why, Details: details})
	if errors.Is(err, statefile.ErrUnacknowledged) {
		if now, loadErr := g.State.Load(ctx); loadErr == nil && now.Intent != nil && now.Intent.Nonce == intent.Nonce {
			err = nil
		}
	}
	if err != nil {
		g.neverSent(intent)
		return intent, fmt.Errorf("%s on %s was not begun: writing its intent: %w", c.action.Kind, c.action.Machine, err)
	}
	g.Log.Info("begun", "action", c.action.Kind, "machine", c.action.Machine, "why", c.action.Why, "boot", a.boot, "attempt", intent.Attempt)
	return intent, nil
}

// send makes the one call.
func (g *Gate) send(ctx context.Context, s Session, a attempt, c call) error {
	switch c.action.Kind {
	case ActFirstConfig, ActTry, ActConfirm, ActStage:
		return s.ApplyConfig(ctx, talos.ApplyRequest{Config: c.config, Mode: a.mode})
	case ActBootstrap:
		return s.Bootstrap(ctx)
	case ActRemoveMember:
		return s.RemoveMember(ctx, c.action.Member)
	case ActReset:
		return s.Reset(ctx, talos.ResetRequest{Partitions: partitionLabels(a.partitions), Reboot: true})
	case ActResetMachine:
		return s.Reset(ctx, talos.ResetRequest{Partitions: partitionLabels(a.partitions), Reboot: !c.action.PowerOff})
	case ActReboot:
		return s.Reboot(ctx, talos.RebootDefault)
	case ActShutdown:
		return s.Shutdown(ctx, c.action.Force)
	case ActRestartService:
		return s.RestartService(ctx, c.action.Service)
	case ActDefragment:
		return s.Defragment(ctx)
	case ActForfeit:
		return s.ForfeitLeadership(ctx)
	case ActDeleteNode:
		return g.Kubernetes.DeleteNode(ctx, c.action.Node, c.action.NodeUID)
	}
	return fmt.Errorf("%s is no call that is known: %w", c.action.Kind, talos.ErrNotSent)
}

// record swaps the outcome into the state.
func (g *Gate) record(ctx context.Context, action Action, intent statefile.Intent, answer error) error {
	outcome, message := statefile.OutcomeUnknown, ""
	switch talos.Classify(answer) {
	case talos.OutcomeOK:
		outcome = statefile.OutcomeOK
	case talos.OutcomeRefused:
		outcome = statefile.OutcomeRefused
	}
	if answer != nil {
		message = g.Scrubber.Text(answer.Error())
	}
	g.Log.Info("answered", "action", action.Kind, "machine", action.Machine, "outcome", outcome, "message", message)
	// The call's own deadline may be used up by now; its outcome is worth a little more time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freshLease)
	defer cancel()
	return g.outcome(ctx, action, intent, outcome, message)
}

// unsent marks an intent whose call this process decided not to make: nobody else knows that for certain.
func (g *Gate) unsent(ctx context.Context, intent statefile.Intent, why string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	action := Action{Kind: ActionKind(intent.Action), Machine: intent.Machine}
	g.neverSent(intent)
	return errors.Join(fmt.Errorf("%s on %s was not sent: %s", intent.Action, intent.Machine, why),
		g.outcome(ctx, action, intent, statefile.OutcomeRefused, notSent+why))
}

// neverSent tells of an intent whose call is not made by this process. It may stand in the state all the same, or come to stand there: a write that
// was not acknowledged can arrive late.
func (g *Gate) neverSent(intent statefile.Intent) {
	if g.NotSent != nil {
		g.NotSent(intent.Nonce)
	}
}

func (g *Gate) outcome(ctx context.Context, action Action, intent statefile.Intent, outcome statefile.Outcome, message string) error {
	err := g.State.Swap(ctx, func(s *statefile.State) error {
		if s.Intent == nil || s.Intent.Nonce != intent.Nonce {
			return errStale
		}
		s.Intent.Outcome, s.Intent.Message, s.Intent.OutcomeAt = outcome, message, stamp(g.Clock.Now())
		return nil
	}, statefile.Event{Action: "Outcome", Machine: action.Machine, Operation: intent.Operation, Message: message, Details: map[string]string{
		"call": string(action.Kind), "nonce": intent.Nonce, "outcome": string(outcome)}})
	if err != nil {
		return fmt.Errorf("%s on %s was sent (%s) and its outcome could not be written: %w", action.Kind, action.Machine, outcome, err)
	}
	return nil
}
