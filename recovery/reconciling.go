package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// factKubelet is the fact of a restart's intent that holds how the kubelet ran just before the call.
const factKubelet = "kubelet"

// reconciling waits until the Kubernetes API serves what was recovered. Then whoever lived through the restore is made to read everything
// anew: kubelets are restarted once, and the pods that keep their machines' forwarding are replaced one by one. What doesn't come right is
// said in the end and fails nothing: etcd is restored.
func (d *decision) reconciling() nextStep {
	k := d.Kubernetes
	switch {
	case k == nil:
		return d.limited(wait("the Kubernetes API has not been asked yet"), d.Timing.All)
	case k.None:
		return nextStep{Phase: PhaseDone, Note: k.Problem + ", so nothing is known of the machines' kubelets: restart those that lived through this"}
	case k.Problem != "":
		return d.limited(wait("the Kubernetes API doesn't answer: %s", k.Problem), d.Timing.All)
	case k.Revision < d.m.Snapshot.at():
		return d.limited(wait("the Kubernetes API serves revision %d, which is from before the recovery", k.Revision), d.Timing.All)
	case d.m.Survivors == nil:
		return nextStep{Survivors: d.survey()}
	}
	next, open := d.mend()
	switch {
	case len(open) == 0:
		return nextStep{Phase: PhaseDone, Note: strings.Join(d.remarks(), "; ")}
	case d.Stuck > d.Timing.Converge:
		return nextStep{Phase: PhaseDone, Note: fmt.Sprintf("%d things were not right after %s without progress: %s", len(open), d.Stuck.Round(time.Minute),
			strings.Join(append(open, d.remarks()...), "; "))}
	}
	if next.none() {
		next = wait("%s%s", open[0], more(len(open)-1))
	}
	next.Open = len(open)
	return next
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

// everyone gives the control planes and the workers.
func (m *Marker) everyone() []Machine { return slices.Concat(m.Machines, m.Workers) }

// survey finds who lived through the restore. A machine that was wiped or rebooted since began anew by itself.
func (d *decision) survey() *Survivors {
	found := &Survivors{Since: d.Now}
	for _, m := range d.m.everyone() {
		if !d.survived(m.Name) {
			continue
		}
		found.Kubelets = append(found.Kubelets, SurvivingKubelet{Machine: m.Name, BootID: d.Seen[m.Name].BootID})
		node, has := d.Kubernetes.Nodes[m.Name]
		for _, agent := range d.Kubernetes.Agents {
			if has && agent.Node == node.Name {
				found.Pods = append(found.Pods, SurvivingPod{DaemonSet: agent.DaemonSet, Name: agent.Name, UID: agent.UID, Node: agent.Node, Machine: m.Name})
			}
		}
	}
	return found
}

func (d *decision) survived(name string) bool {
	seen := d.Seen[name]
	if seen.Mode == talos.ModeMaintenance {
		return false
	}
	for _, i := range d.m.Intents {
		fresh := i.Action == ActReset || i.Action == ActConfig
		if fresh && i.Machine == name && i.Outcome != statefile.OutcomeRefused && seen.BootID != "" && i.BootID != seen.BootID {
			return false
		}
	}
	was := d.m.Recovered.Boots[name]
	return was == "" || seen.BootID == "" || was == seen.BootID
}

// mend gives the next call, or what a pod is waited for, and a sentence on each thing that isn't right yet.
func (d *decision) mend() (next nextStep, open []string) {
	take := func(step nextStep) {
		if next.Action == nil && step.Action != nil {
			next = step
		}
	}
	settled := map[string]bool{}
	for _, kubelet := range d.m.Survivors.Kubelets {
		step := d.kubelet(kubelet)
		settled[kubelet.Machine] = step.none()
		take(step)
		if !step.none() {
			open = append(open, step.says())
		}
	}
	held := false // by a pod that is under way: they go one by one
	for _, pod := range d.m.Survivors.Pods {
		step := d.pod(pod)
		if step.none() {
			continue
		}
		open = append(open, step.says())
		if !settled[pod.Machine] || held {
			continue
		}
		held = true
		take(step)
	}
	for _, m := range d.m.everyone() {
		if why := d.unready(m); why != "" && !slices.ContainsFunc(open, func(said string) bool { return strings.HasPrefix(said, m.Name+" ") }) {
			open = append(open, why)
		}
	}
	return next, open
}

// says is what a step is about, if nothing more comes of it.
func (s nextStep) says() string {
	switch {
	case s.Action == nil:
		return s.Wait
	case s.Action.Kind == ActReplace:
		return fmt.Sprintf("the pod %s on %s lived through the restore and is not replaced", s.Action.Pod.Name, s.Action.Machine)
	}
	return s.Action.Machine + " lived through the restore and its kubelet is not restarted"
}

// kubelet is what must be done until a kubelet that lived through the restore has begun anew and been heard of since. It is restarted once a
// boot. Its heartbeat and its start are told by one clock, that of its machine.
func (d *decision) kubelet(s SurvivingKubelet) nextStep {
	name, seen := s.Machine, d.Seen[s.Machine]
	switch m := d.m.anyone(name); {
	case m == nil: // it was taken out
		return nextStep{}
	case seen.Mode != talos.ModeConfigured || seen.BootID == "":
		return wait("%s doesn't answer, and its kubelet may have lived through the restore: %s", name, nameOr(seen.Problem, "no look at it succeeded"))
	case seen.UUID != "" && !strings.EqualFold(seen.UUID, m.UUID):
		return wait("%s is not looked after: the machine that answers at %s has the UUID %s, and it has %s", name, m.Endpoint, seen.UUID, m.UUID)
	case s.BootID != "" && s.BootID != seen.BootID:
		return nextStep{} // it has rebooted since
	}
	last := d.m.last(ActRestart, name)
	switch {
	case last == nil:
		return d.act(ActRestart, name, nil, name+" lived through the restore: its kubelet is restarted, so that it reads everything anew")
	case last.BootID != seen.BootID:
		return nextStep{}
	case last.Outcome == statefile.OutcomeRefused && d.since(last) >= d.Timing.Retry:
		return d.act(ActRestart, name, nil, fmt.Sprintf("%s did not restart its kubelet (%s): it is asked again", name, last.Message))
	case last.Outcome == statefile.OutcomeRefused:
		return wait("%s did not restart its kubelet: %s", name, last.Message)
	}
	service := kubeletOf(seen.Services)
	node, has := d.Kubernetes.Nodes[name]
	switch {
	case service.Started.IsZero() || started(service) == last.Facts[factKubelet]:
		return wait("%s was told to restart its kubelet, and that is %s (%s); if it stays so, reboot %s", name, nameOr(service.State, "not there"), nameOr(last.Message, service.Message), name)
	case !has:
		return wait("%s has no Node: its kubelet has restarted and not registered yet", name)
	case !node.Heartbeat.After(service.Started):
		return wait("%s has sent no heartbeat since its kubelet restarted", name)
	}
	return nextStep{}
}

// kubeletOf gives a machine's kubelet as Talos lists it; the zero value where it doesn't.
func kubeletOf(services []talos.Service) talos.Service {
	kubelet, _ := talos.ServiceNamed(services, "kubelet")
	return kubelet
}

// started tells one start of a service from the next.
func started(s talos.Service) string {
	return s.State + " since " + s.Started.UTC().Format(time.RFC3339Nano)
}

// pod is what must be done until another one runs in the place of a pod that lived through the restore.
func (d *decision) pod(p SurvivingPod) nextStep {
	if d.m.anyone(p.Machine) == nil { // it was taken out
		return nextStep{}
	}
	for _, k := range d.m.Survivors.Kubelets {
		if boot := d.Seen[p.Machine].BootID; k.Machine == p.Machine && k.BootID != "" && boot != "" && boot != k.BootID {
			return nextStep{} // its processes began anew with their machine
		}
	}
	var after *kube.Agent
	for n := range d.Kubernetes.Agents {
		agent := &d.Kubernetes.Agents[n]
		switch {
		case agent.UID == p.UID && agent.Going:
			return wait("the pod %s was deleted and has not ended on %s yet", p.Name, p.Machine)
		case agent.UID == p.UID:
			return nextStep{Action: &action{Kind: ActReplace, Machine: p.Machine, Pod: p,
				Why: fmt.Sprintf("the pod %s on %s lived through the restore: it is deleted, and %s makes it anew", p.Name, p.Machine, p.DaemonSet)}}
		case agent.DaemonSet == p.DaemonSet && agent.Node == p.Node && !agent.Going && (after == nil || agent.Ready):
			after = agent
		}
	}
	switch {
	case after == nil:
		return wait("the DaemonSet %s has not made its pod on %s anew yet", p.DaemonSet, p.Machine)
	case !after.Ready:
		return wait("the pod %s on %s is not ready yet", after.Name, p.Machine)
	}
	return nextStep{}
}

// unready says why a machine isn't a Ready node of this boot; empty when it is, or is none that this waits for.
func (d *decision) unready(m Machine) string {
	seen := d.Seen[m.Name]
	node, has := d.Kubernetes.Nodes[m.Name]
	service := kubeletOf(seen.Services)
	switch {
	case seen.Mode == talos.ModeMaintenance:
		return ""
	case seen.Mode != talos.ModeConfigured:
		return fmt.Sprintf("%s doesn't answer: %s", m.Name, nameOr(seen.Problem, "no look at it succeeded"))
	case !has:
		return m.Name + " has no Node"
	case node.BootID != "" && seen.BootID != "" && node.BootID != seen.BootID:
		return fmt.Sprintf("%s has not registered its Node in this boot yet (its kubelet is %s)", m.Name, nameOr(service.State, "not there"))
	case node.Ready != kube.Yes:
		return fmt.Sprintf("%s is not Ready: %s", m.Name, nameOr(node.ReadyReason, "its Node doesn't say why"))
	case !service.Started.IsZero() && !node.Heartbeat.After(service.Started):
		return m.Name + " has sent no heartbeat since its kubelet started"
	}
	return ""
}

// remarks are on what isn't waited for: only somebody else can change it.
func (d *decision) remarks() []string {
	var list []string
	for _, m := range d.m.everyone() {
		seen := d.Seen[m.Name]
		switch {
		case seen.Mode == talos.ModeMaintenance:
			list = append(list, m.Name+" is in maintenance mode: the agent gives it its config")
		case seen.ActiveDigest != "" && seen.PersistentDigest != "" && seen.ActiveDigest != seen.PersistentDigest:
			list = append(list, m.Name+" has a config that takes effect with its next reboot: reboot it")
		}
	}
	if len(d.Kubernetes.Strangers) > 0 {
		list = append(list, "of these Nodes no machine is known, and their kubelets were not restarted: "+strings.Join(d.Kubernetes.Strangers, ", "))
	}
	return list
}
