package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// factService is the fact of an intent that holds how the etcd service stood just before the call.
const factService = "service"

// service describes how the etcd service stands, so that two looks can tell whether anything happened in between.
func service(services []talos.Service) string {
	etcd, is := talos.ServiceNamed(services, "etcd")
	if !is {
		return "not there"
	}
	return etcd.State + " since " + etcd.Changed.UTC().Format(time.RFC3339Nano)
}

// effective gives the newest recovery on the target that it did not refuse, or nil.
func (d *decision) effective() *Intent {
	for n := range slices.Backward(d.m.Intents) {
		if i := &d.m.Intents[n]; i.Action == ActRecover && i.Machine == d.m.Target && i.Outcome != statefile.OutcomeRefused {
			return i
		}
	}
	return nil
}

// recovering has the target recover. Until its recovery was begun every machine must be empty; from then on only the target counts.
func (d *decision) recovering() nextStep {
	name := d.m.Target
	seen, begun := d.Seen[name], d.effective()
	if seen.Mode != talos.ModeConfigured {
		if begun == nil {
			return nextStep{Phase: PhaseConfiguring}
		}
		if seen.Mode == talos.ModeMaintenance {
			return d.configure(name)
		}
		return wait("%s doesn't answer: %s", name, nameOr(seen.Problem, "no look at it succeeded"))
	}
	switch {
	case seen.Stage != "booting" && seen.Stage != "running":
		return wait("%s is %s", name, nameOr(seen.Stage, "in an unknown stage"))
	case begun != nil && seen.Etcd.Data == talos.Yes: // in this boot or, where it rebooted since, in the one before
		return d.restored()
	case begun != nil && begun.BootID == seen.BootID && seen.Etcd.Data == talos.No:
		return d.restoring(begun)
	case begun != nil && seen.Etcd.Data == talos.Unknown:
		return wait("whether %s holds etcd data is not known yet: %s", name, nameOr(seen.Problem, "it is booting"))
	}
	// Nothing is under way in this boot.
	if step := d.all(d.empty); !step.none() {
		return step
	}
	return d.send("")
}

// quiet wants the etcd on the agent's own machine, which keeps its old data to the end, not to answer: beside it nothing may recover. All its
// other members are wiped, so that it has no quorum any more. A service that has ended, or never came to run, may say nothing of its health.
func (d *decision) quiet() nextStep {
	name := d.m.Own
	seen := d.Seen[name]
	switch {
	case !d.spared(name) || d.m.machine(name) == nil || seen.Etcd.Data == talos.No:
		return nextStep{}
	case seen.Mode != talos.ModeConfigured:
		return wait("%s, which keeps the old etcd's data to the end, doesn't answer: %s", name, nameOr(seen.Problem, "no look at it succeeded"))
	case seen.Etcd.Members != nil || seen.Etcd.ServiceHealthy == talos.Yes:
		return wait("the old etcd on %s answers still, and nothing is recovered beside it", name)
	case seen.Etcd.ServiceHealthy == talos.Unknown && !slices.Contains([]string{"Failed", "Finished"}, seen.Etcd.Service):
		return wait("whether the old etcd on %s answers still is not known (%s), and nothing is recovered beside it", name,
			nameOr(seen.Problem, "its service is "+nameOr(seen.Etcd.Service, "not seen")))
	}
	return nextStep{}
}

// send uploads the snapshot and begins the recovery. A recovery only follows an upload that this very process saw end well, in the same
// boot: nothing can read an upload back.
func (d *decision) send(after string) nextStep {
	if step := d.quiet(); !step.none() {
		return step
	}
	name := d.m.Target
	seen := d.Seen[name]
	up, tried := d.m.last(ActUpload, name), d.m.last(ActRecover, name)
	if tried != nil && tried.Attempt >= maxRecoveries && tried.Outcome != statefile.OutcomeRefused && !d.died(tried) && !d.earlier(tried) {
		return stop("%s was told to recover %d times%s", name, tried.Attempt, nameOr(after, "; look at its console"))
	}
	if tried != nil && tried.Outcome == statefile.OutcomeRefused && d.since(tried) < d.Timing.Retry {
		return wait("%s can't recover yet: %s", name, tried.Message)
	}
	facts := map[string]string{"data": "absent"}
	if d.uploaded(up) {
		return d.act(ActRecover, name, facts, name+" has the snapshot: it recovers etcd from it")
	}
	if up != nil && up.Outcome != statefile.OutcomeOK && up.BootID == seen.BootID && d.since(up) < d.Timing.Retry {
		return wait("the snapshot could not be uploaded to %s: %s", name, nameOr(up.Message, "the upload was broken off"))
	}
	return d.act(ActUpload, name, facts, name+" is configured and empty, and so are all the others: it gets the snapshot")
}

// uploaded says whether the target holds the snapshot, whole, for this process to use.
func (d *decision) uploaded(up *Intent) bool {
	if up == nil || up.Outcome != statefile.OutcomeOK || up.Driver != d.m.Driver.ID || up.Epoch != d.m.Driver.Epoch ||
		up.BootID != d.Seen[d.m.Target].BootID {
		return false
	}
	used := d.effective()
	return used == nil || used.At.Before(up.At)
}

// restoring is a recovery that was begun in this boot and shows no data yet.
func (d *decision) restoring(begun *Intent) nextStep {
	name := d.m.Target
	seen := d.Seen[name]
	etcd := seen.Etcd
	untouched := service(seen.Services) == begun.Facts[factService]
	switch {
	case untouched && d.certainly(begun) < d.Timing.Trace:
		return wait("%s was told to recover; its etcd service has not moved yet", name)
	case untouched: // it never arrived
		return d.send("")
	case etcd.Service == "Failed":
		if d.since(begun) < d.Timing.Retry {
			return wait("the recovery on %s failed (%s) and is tried again", name, etcd.ServiceMessage)
		}
		return d.send(", and its etcd service says: " + etcd.ServiceMessage)
	}
	return wait("%s recovers: its etcd service is %s (%s)", name, nameOr(etcd.Service, "not there yet"), etcd.ServiceMessage)
}

// restored is a target that holds data since its recovery was begun.
func (d *decision) restored() nextStep {
	name := d.m.Target
	etcd := d.Seen[name].Etcd
	for _, member := range etcd.Members {
		if member.ID != etcd.MemberID {
			continue
		}
		if !member.Restored() {
			return stop("%s is member %s of an etcd that was not recovered from the snapshot (it has %d members): another control plane runs the "+
				"old one still; find it, and power it off or wipe it", name, hexID(member.ID), len(etcd.Members))
		}
		if etcd.ServiceHealthy == talos.Yes {
			return nextStep{Phase: PhaseJoining, Member: member.ID}
		}
	}
	switch {
	case etcd.Service == "Failed":
		return d.broken(etcd.ServiceMessage)
	case d.Silent > d.Timing.Broken:
		return d.broken(fmt.Sprintf("it holds data and its etcd doesn't answer: the service is %s (%s)", nameOr(etcd.Service, "not there"), etcd.ServiceMessage))
	}
	return wait("%s has recovered; its etcd does not answer yet (%s: %s)", name, nameOr(etcd.Service, "no service"), etcd.ServiceMessage)
}

// broken wipes a target whose recovery came to nothing: what it holds is a part of the snapshot, and keeps every other try out.
func (d *decision) broken(why string) nextStep {
	name, resets := d.m.Target, 0
	seen := d.Seen[name]
	for _, i := range d.m.Intents {
		if i.Action == ActReset && i.Machine == name && i.Facts["reason"] == "broken" && i.BootID != seen.BootID && !d.earlier(&i) {
			resets++
		}
	}
	if resets >= maxBroken {
		return stop("the recovery on %s came to nothing %d times: %s", name, resets+1, strings.TrimSpace(why))
	}
	return d.reset(name, "broken", fmt.Sprintf("the recovery on %s came to nothing (%s): what it left is wiped", name, why), maxResets)
}
