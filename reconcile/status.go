package reconcile

import (
	"fmt"
	"regexp"
	"sort"
	"strings"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// conclude writes the verdicts into the state's conditions: one sentence a machine, and one for the cluster.
func (d *decision) conclude() {
	ready, total := 0, 0
	var notReady []string
	for _, m := range d.in.Cluster.Machines {
		name := m.Metadata.Name
		v, said := d.says[name]
		if !said || v.none() {
			v = d.shown(m)
		}
		memory := d.next.Machines[name]
		d.set(&memory.Ready, v.reason == "Ready", v)
		if v.reason == "NotApproved" {
			continue
		}
		total++
		if v.reason == "Ready" {
			ready++
		} else {
			notReady = append(notReady, fmt.Sprintf("%s (%s)", name, v.reason))
		}
	}
	for name, memory := range d.next.Machines {
		if d.in.Cluster.Machine(name) == nil {
			d.set(&memory.Ready, false, unmanaged(name, memory))
		}
	}
	d.plan.Held = len(d.held) > 0
	d.set(&d.next.Ready, false, d.overall(ready, total, notReady))
	d.next.Ready.Status = d.next.Ready.Reason == "Ready"
	if !d.next.Ready.Status && d.next.Ready.Reason != "Paused" && d.next.Ready.Reason != "OperationPaused" && d.next.Ready.Reason != "ClockSkew" {
		d.plan.Busy = true
	}
	d.plan.Next = d.next
}

// overall is the verdict on the cluster.
func (d *decision) overall(ready, total int, notReady []string) verdict {
	etcdOK, etcdWhy := d.etcd.healthy(d.wanted)
	bootstrapped := d.next.Bootstrap != nil && !d.next.Bootstrap.Done.IsZero()
	sort.Strings(notReady)
	switch {
	case !d.cluster.none():
		return d.cluster
	case total == 0:
		return verdict{"NoMachines", "no machine is approved; set spec.approved: true on one TalosMachine of role controlplane"}
	case d.etcd.split != "":
		return verdict{"EtcdSplit", d.etcd.split + "; nothing is done: look at both, and restore one from a backup"}
	case ready < total:
		return verdict{"MachinesNotReady", fmt.Sprintf("%d of %d machines are Ready; not: %s%s", ready, total, list(notReady), d.also())}
	case bootstrapped && !etcdOK:
		return verdict{"EtcdUnhealthy", "etcd is not healthy: " + etcdWhy + d.also()}
	case !bootstrapped:
		return verdict{"NotBootstrapped", "etcd is not bootstrapped yet"}
	}
	if list := pausedOperations(d.next); len(list) > 0 {
		return verdict{"OperationPaused", strings.Join(list, "; ") + "; go on with 'ichor run-op resume NAME', or end it with 'ichor run-op cancel NAME'"}
	}
	if why := d.skewed(); why != "" {
		return verdict{"ClockSkew", why}
	}
	return verdict{"Ready", fmt.Sprintf("%d machines are as Git wants them, and etcd is healthy with %d members%s", total, len(d.etcd.members), d.also())}
}

// also names members that no machine in Git explains, and operations that wait for a person.
func (d *decision) also() string {
	also := ""
	if len(d.strangers) > 0 {
		also = fmt.Sprintf("; unmanaged in etcd: %s", strings.Join(d.strangers, ", "))
	}
	for _, paused := range pausedOperations(d.next) {
		also += "; " + paused
	}
	return also
}

// shown is the verdict on a machine that nothing else was said about: it is as it shows itself.
func (d *decision) shown(m *schema.TalosMachine) verdict {
	name := m.Metadata.Name
	if v := d.standing(m); !v.none() {
		return v
	}
	seen, ok := d.in.see(name)
	if !ok {
		return d.unseen(m)
	}
	if seen.Mode == talos.ModeMaintenance {
		return verdict{"Waiting", fmt.Sprintf("%s is in maintenance mode", name)}
	}
	if seen.Stage != "running" && seen.Stage != "booting" {
		return verdict{"NotRunning", fmt.Sprintf("%s is %s", name, nameOr(seen.Stage, "in an unknown stage"))}
	}
	bootstrapped := d.next.Bootstrap != nil && !d.next.Bootstrap.Done.IsZero()
	if isControlPlane(m) && !bootstrapped {
		return verdict{"WaitingForBootstrap", fmt.Sprintf("%s is configured and waits for etcd's bootstrap", name)}
	}
	if isControlPlane(m) && d.etcd.known && !d.etcd.joined[name] {
		return verdict{"Joining", fmt.Sprintf("%s has not joined etcd yet (its etcd service is %s)", name, nameOr(seen.Etcd.Service, "not listed"))}
	}
	switch {
	case seen.Config.Problem == "" && seen.Config.Active == "":
		return verdict{"ConfigUnread", fmt.Sprintf("the config that %s runs could not be read, so it isn't known to be what Git wants: %s", name,
			nameOr(seen.Problem, "no reason given"))}
	case !seen.Ready:
		return verdict{"NotReady", fmt.Sprintf("%s is %s and not ready: %s", name, seen.Stage, nameOr(strings.Join(seen.Unmet, "; "), "no reason given"))}
	case seen.Stage != "running":
		return verdict{"Booting", fmt.Sprintf("%s is booting", name)}
	case seen.NodeReady == talos.No:
		return verdict{"NodeNotReady", fmt.Sprintf("the Kubernetes Node of %s is not Ready", name)}
	case seen.Config.Problem != "":
		return verdict{"RenderFailed", fmt.Sprintf("the config of %s can't be rendered: %s", name, seen.Config.Problem)}
	case seen.Config.Upgrade != "":
		return verdict{"UpgradePending", fmt.Sprintf("%s runs another version than Git wants (%s); this version of Ichor doesn't upgrade: "+
			"use talosctl, or put the old version back", name, seen.Config.Upgrade)}
	}
	if v := d.differs(m, seen); !v.none() {
		return v
	}
	return verdict{"Ready", fmt.Sprintf("%s runs what Git wants", name)}
}

// differs says of a configured machine that it isn't Ichor's, or that its config isn't what Git wants. A pass that ends before it comes to
// that must not call the machine Ready. Nothing is adopted by it.
func (d *decision) differs(m *schema.TalosMachine, seen Seen) verdict {
	name := m.Metadata.Name
	memory := d.next.Machines[name]
	kept := *memory
	defer func() { *memory = kept }()
	if v := adopt(d.in, d.next, m, seen); !v.none() {
		return v
	}
	if compareConfigs(d.next, name, seen.Config) == configSame {
		return verdict{}
	}
	if r := d.next.Rollout; r != nil && r.Machine == name {
		return verdict{"RollingOut", fmt.Sprintf("a changed config is being rolled to %s (%s since %s)", name, phaseWords(r.Phase), r.Since.Format("15:04:05Z"))}
	}
	return verdict{"ChangePending", fmt.Sprintf("the config of %s differs from Git and waits for its turn", name)}
}

// set writes a condition; its time moves only with its status or reason, so that an unchanged verdict changes nothing.
func (d *decision) set(c *statefile.Condition, status bool, v verdict) {
	if c.Status != status && v.reason != c.Reason || c.Reason != v.reason || c.Since.IsZero() {
		c.Since = d.in.now()
	}
	c.Type, c.Status, c.Reason, c.Message = "Ready", status, v.reason, stable(v.message)
}

// localEnd is this machine's end of a connection in an error's text: its port is another one each time.
var localEnd = regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+|\[[0-9a-fA-F:.%]+\]):\d+->`)

// stable takes out of a text what differs each time although nothing changed: the state is written when a message changes.
func stable(text string) string {
	if !strings.Contains(text, "->") {
		return text
	}
	return localEnd.ReplaceAllString(text, "")
}
