package reconcile

import (
	"strings"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// restoreForecast is how a restore would begin on what was seen of the machines. It is decided by what the agent decides it by.
type restoreForecast struct {
	// Target recovers. Holder keeps the old etcd until the others left it, and is wiped then; empty where all are wiped, and then Full
	// says why.
	Target, Holder, Full string
	// Machines are the control planes that it restores on, Wiped those of them that lose their EPHEMERAL.
	Machines, Wiped []string
	// Refuse is why it would not begin; empty where it would.
	Refuse string
}

// forecastRestore says how a restore would begin. It needs Cluster, State, Seen, Timing, NodeName, Mark and RecoverFlags of the input. That
// local data may be lost is left aside: who signs is asked for that.
func forecastRestore(in Input, spec schema.RestoreOperation) restoreForecast {
	spec.Confirm, spec.LocalDataLoss = in.Cluster.Name(), localDataLossAccepted
	d := newDecision(&in)
	s := situation{decision: d, op: &statefile.OperationState{}, spec: schema.OperationSpec{EtcdRestore: &spec}}
	forecast := restoreForecast{Refuse: strings.TrimPrefix(s.refuseRestore(), nothingChanged)}
	way, why := s.way()
	if why != "" {
		return forecast
	}
	forecast.Target, forecast.Holder = way.target, way.holder
	for _, m := range way.machines {
		forecast.Machines = append(forecast.Machines, m.Name)
	}
	if way.holder != "" {
		forecast.Wiped = []string{way.holder}
		return forecast
	}
	forecast.Wiped = forecast.Machines
	switch healthy, why := d.etcd.healthy(d.wanted); {
	case !healthy:
		forecast.Full = "etcd is not healthy: " + why
	case len(way.machines) < 2:
		forecast.Full = "there is one control plane only"
	default:
		forecast.Full = "etcd's members are not exactly the control planes that are restored on"
	}
	return forecast
}

// SeenForRestore makes of observations what a forecast of a restore needs.
func SeenForRestore(observed map[string]talos.Observation) map[string]Seen {
	seen := make(map[string]Seen, len(observed))
	for name, o := range observed {
		seen[name] = Seen{Observation: o, Config: ConfigView{Active: o.ActiveDigest, Owner: talos.StateAnnotationOf(o.Active)}}
	}
	return seen
}

// agentOn is the machine of the cluster that this agent runs on; empty where it runs elsewhere. While that machine gives no answer it stays
// the one that it was.
func (d *decision) agentOn() string {
	if own := ownMachine(d.in); own != "" {
		return own
	}
	was := d.in.State.AgentOn
	if was != "" && d.in.Cluster.Machine(was) != nil && d.in.Seen[was].Mode == talos.ModeUnknown {
		return was
	}
	return ""
}
