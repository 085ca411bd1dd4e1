package reconcile

import (
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

const stepRestart = "restart"

// restartable are the services that an operation may restart. Talos 1.13 itself takes the kubelet alone, and says so of the others.
var restartable = []string{"kubelet", "containerd", "cri"}

// refuseRestartService wants a service that may be restarted and runs.
func refuseRestartService(s situation) (refuse, wait string) {
	id := s.spec.Node.Service
	if !slices.Contains(restartable, id) {
		return fmt.Sprintf("the service %s is not restarted by Ichor, only %s", nameOr(id, "(none)"), strings.Join(restartable, ", ")), ""
	}
	m, refuse := s.target(s.spec.Node.MachineRef)
	if refuse != "" {
		return refuse, ""
	}
	seen, refuse := s.ours(m)
	if refuse != "" {
		return refuse, ""
	}
	if _, is := serviceOf(seen, id); !is {
		return fmt.Sprintf("Talos lists no service %s on %s", id, m.Metadata.Name), ""
	}
	return "", ""
}

func serviceOf(seen Seen, id string) (talos.Service, bool) {
	return talos.ServiceNamed(seen.Services, id)
}

// nextRestartService restarts the service once, and waits until the machine is Ready again.
func nextRestartService(s situation) move {
	name, id := s.spec.Node.MachineRef.Name, s.spec.Node.Service
	switch {
	case s.op.FailureReason != "":
		return s.failing(name)
	case s.sent(ActRestartService) > 0:
		return s.readyAgain(name, id)
	}
	refuse, wait := refuseRestartService(s)
	if held, is := s.held(name, refuse, wait); is {
		return held
	}
	seen, _ := s.in.see(name)
	return move{step: stepRestart, act: &Action{Kind: ActRestartService, Machine: name, UUID: seen.UUID, Boot: seen.BootID, Attempt: 1, Service: id,
		Facts: map[string]string{"started": startedFact(seen.Services, id), "service": id}, Why: fmt.Sprintf("%s is restarted on %s, as %s asks", id, name, s.op.Name)}}
}

func (s situation) readyAgain(name, id string) move {
	seen, ok := s.in.see(name)
	service, _ := serviceOf(seen, id)
	missing := ""
	switch {
	case s.in.certainly(stepMoment(s.op), s.op.StepSince) < s.in.Timing.ServiceQuiet:
		missing = fmt.Sprintf("%s started again; its Node is believed to be Ready again %s after that", id, s.in.Timing.ServiceQuiet)
	case !ok:
		missing = name + " gives no answer"
	case service.State != "Running" || service.Healthy == talos.No:
		missing = fmt.Sprintf("%s is %s and not healthy", id, nameOr(service.State, "not listed"))
	case !runsReady(seen):
		missing = fmt.Sprintf("%s is not Ready again: %s", name, unready(seen))
	default:
		return move{step: stepRestart, done: fmt.Sprintf("%s was restarted on %s, runs and is healthy, and %s is Ready", id, name, name)}
	}
	if s.since() >= s.in.Timing.ComeBack {
		return s.fail(name, fmt.Sprintf("%s was restarted on %s, and within %s: %s", id, name, s.in.Timing.ComeBack, missing))
	}
	return move{step: stepRestart, wait: missing}
}

// resolveRestartService waits for a later start of the service, healthy.
func resolveRestartService(in *Input, intent statefile.Intent) ended {
	id, name := intent.Facts["service"], intent.Machine
	seen, ok := in.see(name)
	service, _ := serviceOf(seen, id)
	again := ok && service.State == "Running" && !service.Started.IsZero() && startedFact(seen.Services, id) != intent.Facts["started"]
	age := in.age(intent)
	switch {
	case again && service.Healthy != talos.No:
		return ended{result: resolveDone, say: id + " started again"}
	case !again && intent.Outcome == statefile.OutcomeUnknown && intent.Message != "" && age >= in.Timing.ServiceQuiet:
		return ended{result: resolveGiven, say: "it did not start again", failure: fmt.Sprintf("%s did not restart %s: %s", name, id, intent.Message)}
	case age >= in.Timing.Patience && !again:
		return ended{result: resolveGiven, say: "it was not seen to start again", failure: fmt.Sprintf("%s was not seen to start again on %s within %s (it is %s; the answer was: %s)",
			id, name, in.Timing.Patience, nameOr(service.State, "not listed"), nameOr(intent.Message, nameOr(string(intent.Outcome), "none")))}
	case age >= in.Timing.ComeBack:
		return ended{result: resolveGiven, say: "it is not healthy", failure: fmt.Sprintf("%s started again on %s and is not healthy: %s", id, name, service.Message)}
	}
	return waiting(fmt.Sprintf("%s is restarted on %s: it is %s", id, name, nameOr(service.State, "not listed")))
}
