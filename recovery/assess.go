package recovery

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"ichor.maesh.dev/talos"
)

// Assessment is what is known before anything is begun.
type Assessment struct {
	Machines []Machine
	Seen     map[string]Seen
	// Strangers are machines that discovery knows as control planes and that are none of these, by what they are called, as they answer.
	Strangers map[string]Seen
	// Others are the control planes that Git declares and that are none of these, as they answer: not approved, not named, or left out.
	Others map[string]Seen
	// Wipe are those whose etcd data may be lost.
	Wipe []string
	// Mark is of the state that manages the cluster; empty when it isn't known.
	Mark string
	// LastTarget is the machine on which the last restore recovered; empty when there was none.
	LastTarget string
}

// Plan is what would be done, in sentences.
type Plan struct {
	// Machines are the control planes with their UUIDs, Target the one that recovers.
	Machines []Machine
	Target   string
	// Lines say what happens to each machine, Warnings what can't be known.
	Lines, Warnings []string
	// Blockers are why it can't begin, Waits what isn't known yet and will be.
	Blockers, Waits []string
}

// Assess says what a recovery would do, or why it can't begin.
func Assess(a Assessment) Plan {
	p := Plan{Machines: slices.Clone(a.Machines)}
	slices.SortFunc(p.Machines, func(a, b Machine) int { return strings.Compare(a.Name, b.Name) })
	for n := range p.Machines {
		p.assess(&p.Machines[n], a)
		if p.Target == "" && (p.Machines[n].Name != a.LastTarget || n == len(p.Machines)-1) {
			p.Target = p.Machines[n].Name
		}
	}
	if len(p.Machines) == 0 {
		p.Blockers = append(p.Blockers, "there is no control plane to recover on")
	}
	if same := sameMachine(p.Machines); same != "" {
		p.Blockers = append(p.Blockers, same+": correct the address of one of them, or leave it out")
	}
	for name, seen := range a.Strangers {
		p.beside(fmt.Sprintf("discovery knows %s as a control plane", name), seen)
	}
	for name, seen := range a.Others {
		p.beside(fmt.Sprintf("Git declares %s as a control plane, which isn't one of those to recover on", name), seen)
	}
	slices.Sort(p.Blockers)
	slices.Sort(p.Warnings)
	p.Lines = append(p.Lines, fmt.Sprintf("%s recovers etcd from the snapshot; the others join it, one at a time", p.Target))
	return p
}

// sameMachine says of the first two control planes that are one machine that they are; empty where none are. It would be told each thing twice,
// a wipe in one boot included, and count as two that have joined.
func sameMachine(machines []Machine) string {
	named := map[string]Machine{}
	for _, m := range machines {
		uuid := strings.ToLower(m.UUID)
		if other, is := named[uuid]; is && uuid != "" {
			return fmt.Sprintf("%s (%s) and %s (%s) are one machine, with the UUID %s", other.Name, other.Endpoint, m.Name, m.Endpoint, uuid)
		}
		named[uuid] = m
	}
	return ""
}

// beside judges a control plane that is not recovered on, by what it says: it may run the old etcd.
func (p *Plan) beside(known string, seen Seen) {
	switch {
	case seen.Mode == talos.ModeUnknown:
		p.Warnings = append(p.Warnings, known+", and it doesn't answer: if it comes back with the old etcd on it, that lives beside the recovered one; keep it off until it is wiped")
	case seen.Mode != talos.ModeConfigured || seen.MachineType == "worker":
	case seen.Etcd.Data == talos.No:
		p.Warnings = append(p.Warnings, known+", and it answers and holds no etcd data: it joins the recovered etcd by itself, unless it is powered off")
	default:
		p.Blockers = append(p.Blockers, known+", and it answers: it would run the old etcd beside the recovered one; name it as a control plane too, or power it off")
	}
}

func (p *Plan) assess(m *Machine, a Assessment) {
	seen := a.Seen[m.Name]
	where := fmt.Sprintf("%s (%s)", m.Name, m.Endpoint)
	block := func(format string, args ...any) { p.Blockers = append(p.Blockers, fmt.Sprintf(format, args...)) }
	later := func(format string, args ...any) { p.Waits = append(p.Waits, fmt.Sprintf(format, args...)) }
	switch {
	case seen.Mode == talos.ModeUnknown:
		later("%s doesn't answer: %s", where, nameOr(seen.Problem, "no look at it succeeded"))
		return
	case seen.UUID == "":
		later("%s doesn't say its UUID: %s", where, nameOr(seen.Problem, "it is booting"))
		return
	case m.UUID != "" && !strings.EqualFold(m.UUID, seen.UUID):
		block("the machine that answers at %s has the UUID %s, and %s has %s; correct the address or the UUID", m.Endpoint, seen.UUID, m.Name, m.UUID)
		return
	}
	m.UUID = strings.ToLower(seen.UUID)
	if seen.Mode == talos.ModeMaintenance {
		if seen.ConfigProblem != "" {
			block("%s", seen.ConfigProblem)
			return
		}
		p.Lines = append(p.Lines, where+" is in maintenance mode: it gets its config")
		return
	}
	switch {
	case seen.MachineType == "worker":
		block("%s is a worker: etcd is recovered on control planes only", where)
	case seen.Owner != "" && a.Mark != "" && seen.Owner != a.Mark:
		block("%s is managed by an Ichor with another state than --state names; give that one", where)
	case seen.Stage != "booting" && seen.Stage != "running":
		later("%s is %s", where, nameOr(seen.Stage, "in an unknown stage"))
	case seen.Etcd.Data == talos.No:
		p.Lines = append(p.Lines, where+" is configured and its etcd is empty")
	case seen.Etcd.Data == talos.Unknown:
		later("whether %s holds etcd data is not known: %s", where, nameOr(seen.Problem, "it is booting"))
	case slices.Contains(a.Wipe, m.Name):
		p.Lines = append(p.Lines, where+" is WIPED: its EPHEMERAL partition, with its etcd data and all that pods keep on it, is lost")
		if len(seen.Etcd.Members) > 0 {
			p.Warnings = append(p.Warnings, fmt.Sprintf("the etcd on %s answers, with %d members: it is not lost; take a snapshot of it before it is", where, len(seen.Etcd.Members)))
		}
	default:
		block("%s; %s", holds(where, seen), mayWipe(m.Name))
	}
}

// Beside looks at the control planes that are not recovered on: strangers, which discovery lists, and others, which Git declares. One at the address of a
// machine that is recovered on, or with its UUID, is that machine.
func Beside(ctx context.Context, nodes Nodes, machines, declared []Machine, seen map[string]Seen) (strangers, others map[string]Seen) {
	known, uuids := map[string]bool{}, map[string]bool{}
	for _, m := range machines {
		known[target(m).Host()] = true
		for _, address := range seen[m.Name].Addresses {
			known[address] = true
		}
		if uuid := seen[m.Name].UUID; uuid != "" {
			uuids[strings.ToLower(uuid)] = true
		}
	}
	look := func(beside []Machine) map[string]Seen {
		found := lookTwice(ctx, nodes, beside)
		maps.DeleteFunc(found, func(_ string, s Seen) bool { return s.UUID != "" && uuids[strings.ToLower(s.UUID)] })
		return found
	}
	var named, listed []Machine
	for _, m := range declared {
		if host := target(m).Host(); !known[host] {
			known[host] = true
			named = append(named, Machine{Name: fmt.Sprintf("%s (%s)", m.Name, m.Endpoint), Endpoint: m.Endpoint})
		}
	}
	others = look(named)
	for _, one := range others {
		for _, address := range one.Addresses {
			known[address] = true
		}
	}
	for _, m := range machines {
		for _, found := range seen[m.Name].Discovery {
			if found.MachineType == "worker" || len(found.Addresses) == 0 || slices.ContainsFunc(found.Addresses, func(one string) bool { return known[one] }) {
				continue
			}
			address := found.Addresses[0]
			if parsed, err := netip.ParseAddr(address); err != nil || slices.ContainsFunc(listed, func(o Machine) bool { return o.Endpoint == parsed.String() }) {
				continue
			}
			listed = append(listed, Machine{Name: fmt.Sprintf("%s (%s)", found.Name, address), Endpoint: address})
		}
	}
	return look(listed), others
}

// lookTwice looks once more at what didn't answer: a single slow answer shall not be taken for a machine that is off.
func lookTwice(ctx context.Context, nodes Nodes, machines []Machine) map[string]Seen {
	found := LookAt(ctx, nodes, machines, nil)
	silent := slices.DeleteFunc(slices.Clone(machines), func(m Machine) bool { return found[m.Name].Mode != talos.ModeUnknown })
	maps.Copy(found, LookAt(ctx, nodes, silent, nil))
	return found
}
