package reconcile

import (
	"slices"
	"sync"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/validate"
)

// Forecast is what comes of a look at the machines when every call has its effect and nothing else happens.
type Forecast struct {
	// Steps are what is done, in that order.
	Steps []Step
	// First is the first decision, before anything is done; End the one after which nothing follows.
	First, End Plan
	// Seen is what the machines show then.
	Seen map[string]Seen
	// Unfinished says that the forecast was broken off, because it did not come to an end.
	Unfinished bool
	// looks is how many machines all decisions together looked at.
	looks int
}

// Step is one call to a machine, or what a machine does by itself.
type Step struct {
	// Action is nil where the machine does it by itself.
	Action  *Action
	Machine string
	// Event is what the machine does by itself.
	Event Event
	// Refused is why the gate would not make the call.
	Refused string
}

// Event is what a machine does by itself.
type Event string

// EventJoin is that a control plane joins etcd: as a learner first, and then as a voter.
const EventJoin Event = "join"

// String is the step in one line.
func (s Step) String() string {
	if s.Action == nil {
		return string(s.Event) + " " + s.Machine
	}
	return s.Action.String()
}

const (
	// forecastJump is how far time is moved where nothing happens, and forecastJumps how often: what is still to come (a mending,
	// a second attempt) comes within that.
	forecastJump  = time.Minute
	forecastJumps = 30
)

// Foretell follows the decisions of Decide and the refusals of the gate from one look at the machines to the end. It does no I/O:
// the calls are made on imagined machines, on which each has its effect at once. So a forecast can't differ from what an agent
// decides as long as the machines do what they are told.
func Foretell(in Input) Forecast { return foretell(in, true) }

// foretell is Foretell; inParts lets it follow rollouts through a part of the machines at a time.
func foretell(in Input, inParts bool) Forecast {
	f := &foretelling{in: in, world: imagine(&in)}
	// A machine is tried, confirmed, waited for; the rest is for joins, mending and what was under way.
	limit := 200 + 20*len(in.Cluster.Machines)
	jumps := 0
	for pass := 0; pass < limit; pass++ {
		plan := f.decide()
		if f.part != nil && !f.enough(plan) {
			f.widen()
			plan = f.decide()
		}
		if pass == 0 {
			f.result.First = plan
		}
		changed := !sameState(f.in.State, plan.Next)
		f.in.State = plan.Next
		acted, refused := f.act(plan)
		joined := f.world.live(&f.result)
		f.in.Seen = f.world.look()
		if f.part == nil && (acted || jumps == 0) {
			f.result.End, f.result.Seen = plan, f.in.Seen
		}
		switch {
		case refused || jumps >= forecastJumps:
			return f.result
		case acted || joined:
			jumps = 0
			f.in.Now = f.in.Now.Add(f.in.Timing.Busy)
		case changed && jumps == 0:
			f.in.Now = f.in.Now.Add(f.in.Timing.Busy)
		default:
			jumps++
			f.in.Now = f.in.Now.Add(forecastJump)
		}
		switch {
		case f.part != nil && !rollingOnly(f.in.State):
			f.widen()
		case f.part == nil && acted && inParts:
			f.narrow()
		}
	}
	f.result.Unfinished = true
	return f.result
}

type foretelling struct {
	in     Input
	world  *imagination
	result Forecast
	// part is set while only a part of the machines is looked at.
	part *part
}

// decide decides as a pass does: a destination that was not listed is taken for empty.
func (f *foretelling) decide() Plan {
	age := f.in.Timing.WriterQuiet // an intent of another writer is old by now
	if f.in.WriterAge == nil {
		f.in.WriterAge = &age
	}
	f.in.Kubernetes = nil
	f.result.looks += len(f.in.Cluster.Machines)
	plan := Decide(f.in)
	if plan.NeedKubernetes {
		f.in.Kubernetes = f.world.kubernetes()
		plan = Decide(f.in)
	}
	if plan.NeedBackups {
		f.in.Backups = &Listing{}
		plan = Decide(f.in)
	}
	return plan
}

// act makes the calls of a plan, as a pass does: after one that isn't a first config everything is looked at anew.
func (f *foretelling) act(plan Plan) (acted, refused bool) {
	if len(plan.Actions) > 0 {
		f.in.State = cloneState(f.in.State) // the plan's own stays as it was decided
	}
	refusal := f.refusals(f.in.State)
	for _, action := range plan.Actions {
		if why := refusal(action); why != "" {
			f.result.Steps = append(f.result.Steps, Step{Action: &action, Machine: action.Machine, Refused: why})
			return acted, true
		}
		if action.Kind.cordoning() {
			f.world.do(action)
			f.result.Steps = append(f.result.Steps, Step{Action: &action, Machine: action.Machine})
			return true, false
		}
		next := f.in.State
		begun(next, action, statefile.Intent{Nonce: "forecast", Action: string(action.Kind), Machine: action.Machine, UUID: action.UUID,
			BootID: action.Boot, Carrier: action.Via, Member: memberText(action.Member), Digest: action.Digest, Facts: action.Facts,
			Attempt: action.Attempt, Writer: next.Writer, At: f.in.now(), Outcome: statefile.OutcomeOK})
		if action.Kind == ActFirstConfig {
			next.Intent = nil // the machine's answer is all the proof there is, and enough
		}
		f.world.do(action)
		f.result.Steps = append(f.result.Steps, Step{Action: &action, Machine: action.Machine})
		acted = true
		if action.Kind != ActFirstConfig {
			break
		}
	}
	return acted, false
}

// refusals gives what asks the gate's refusals about an action, the machine showing what was decided on and the state being this.
func (f *foretelling) refusals(state *statefile.State) func(Action) string {
	in := f.in
	in.State = state
	etcd := sync.OnceValue(func() etcdView { return viewEtcd(&in) })
	return func(action Action) string {
		if action.Kind.cordoning() {
			return ""
		}
		carrier, target := in.Cluster.Machine(action.carrier()), in.Cluster.Machine(action.Machine)
		if carrier == nil || target == nil {
			return "the machine is no longer in Git"
		}
		a := attempt{action: action, cluster: in.Cluster.Object, bundleID: in.Cluster.Object.Spec.ID, declared: carrier.Spec.UUID,
			uuid: action.UUID, boot: action.Boot, facts: action.Facts, state: state, etcd: etcd(), leaseHeld: true, hasDeadline: true,
			worker: !isControlPlane(target), mode: modeOf(action.Kind), partitions: partitionsOf(action.Kind)}
		if action.Kind == ActBootstrap {
			a.against = againstBootstrap(in, state, action.Operation != "")
		}
		if err := refuse(a); err != nil {
			return err.Error()
		}
		return ""
	}
}

func memberText(id uint64) string {
	if id == 0 {
		return ""
	}
	return hexID(id)
}

// ClusterOf takes one cluster out of a fleet, as the agent does.
func ClusterOf(fleet *schema.Fleet, name, commit string) Cluster {
	c := clustersOf(fleet, commit, name)[name]
	c.Commit = commit
	return c
}

// clustersOf takes a fleet apart: all clusters that stand in it, or those that are named.
func clustersOf(fleet *schema.Fleet, commit string, names ...string) map[string]Cluster {
	found := map[string]Cluster{}
	for _, object := range fleet.Clusters {
		name := object.Metadata.Name
		if _, twice := found[name]; !twice && (names == nil || slices.Contains(names, name)) {
			found[name] = Cluster{Object: object, Commit: commit}
		}
	}
	for _, m := range fleet.Machines {
		if c, is := found[m.Spec.ClusterRef.Name]; is {
			c.Machines = append(c.Machines, m)
			found[m.Spec.ClusterRef.Name] = c
		}
	}
	for _, b := range fleet.Backups {
		if c, is := found[b.Spec.ClusterRef.Name]; is {
			c.Backups = append(c.Backups, b)
			found[b.Spec.ClusterRef.Name] = c
		}
	}
	for _, c := range found {
		sortMachines(c.Machines)
	}
	return found
}

// StoppedBy says what findings stop in the agent, and LeftAlone which documents of a fleet it doesn't act on.
func StoppedBy(findings []validate.Finding) validate.Stopped {
	return validate.Stops(findings, kindsLeftAlone(true)...)
}

// LeftAlone says of each document that the agent leaves alone that it does.
func LeftAlone(fleet *schema.Fleet) []validate.Finding { return leftAlone(fleet, true) }

// Members gives the machines that stand behind the etcd members of a look, sorted by member; voters and healthy count them.
func Members(in Input) (machines []string, voters, healthy, need int) {
	view := viewEtcd(&in)
	for _, m := range view.members {
		machines = append(machines, nameOr(view.machine[m.ID], nameOr(m.Name, hexID(m.ID))))
	}
	voters, healthy, need = view.quorum()
	return machines, voters, healthy, need
}
