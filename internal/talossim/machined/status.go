package machined

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"google.golang.org/protobuf/proto"
)

// statusControl derives the machine's stage from its events and its readiness from its resources
// (Talos: controllers/runtime/machine_status.go).
type statusControl struct {
	m    *Machine
	wake chan struct{}

	mu    sync.Mutex
	stage runtime.MachineStage
}

func (s *statusControl) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// leaving says whether the machine is on its way down.
func (s *statusControl) leaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains([]runtime.MachineStage{
		runtime.MachineStageRebooting, runtime.MachineStageResetting, runtime.MachineStageShuttingDown, runtime.MachineStageUpgrading,
	}, s.stage)
}

func (s *statusControl) run(ctx context.Context) {
	var seen int64
	current := ""
	for {
		events, overrun, changed := s.m.events.since(seen)
		if overrun {
			seen = s.m.events.tail(nil, -1)
			continue
		}
		for _, e := range events {
			seen = e.seq + 1
			s.follow(e.payload, &current)
			s.show(ctx)
		}
		if len(events) == 0 {
			s.show(ctx)
			select {
			case <-changed:
			case <-s.wake:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (s *statusControl) follow(payload proto.Message, current *string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := payload.(type) {
	case *machine.SequenceEvent:
		s.followSequence(e, current)
	case *machine.PhaseEvent:
		if e.Action != machine.PhaseEvent_START {
			return
		}
		switch {
		case *current == seqInstall && e.Phase == "install":
			s.stage = runtime.MachineStageInstalling
		case e.Phase == "kexec" && slices.Contains([]string{seqInstall, seqUpgrade, seqStageUpgrade, seqMaintenanceUpgrade}, *current):
			s.stage = runtime.MachineStageRebooting
		}
	case *machine.TaskEvent:
		if e.Task != "runningMaintenance" {
			return
		}
		s.stage = runtime.MachineStageBooting
		if e.Action == machine.TaskEvent_START {
			s.stage = runtime.MachineStageMaintenance
		}
	}
}

func (s *statusControl) followSequence(e *machine.SequenceEvent, current *string) {
	was := *current
	*current = e.Sequence
	switch e.Action {
	case machine.SequenceEvent_START:
		switch e.Sequence {
		case seqBoot, seqInitialize:
			s.stage = runtime.MachineStageBooting
		case seqShutdown:
			s.stage = runtime.MachineStageShuttingDown
		case seqUpgrade, seqStageUpgrade, seqMaintenanceUpgrade:
			s.stage = runtime.MachineStageUpgrading
		case seqReset:
			s.stage = runtime.MachineStageResetting
		case seqReboot:
			s.stage = runtime.MachineStageRebooting
		}
	case machine.SequenceEvent_NOOP:
		if e.Error != nil && e.Error.Code == common.Code_FATAL && was != seqShutdown {
			s.stage = runtime.MachineStageRebooting
		}
		if e.Error != nil && e.Error.Code == common.Code_LOCKED {
			*current = was // the newcomer never ran
		}
	case machine.SequenceEvent_STOP:
		if e.Sequence == seqBoot && e.Error == nil {
			s.stage = runtime.MachineStageRunning
		}
		*current = ""
	}
}

// show publishes the status, and an event when it has changed.
func (s *statusControl) show(ctx context.Context) {
	s.mu.Lock()
	stage := s.stage
	s.mu.Unlock()
	unmet := s.unmet(ctx, stage)
	r := runtime.NewMachineStatus()
	r.TypedSpec().Stage, r.TypedSpec().Status.Ready, r.TypedSpec().Status.UnmetConditions = stage, len(unmet) == 0, unmet
	if old, ok := get(ctx, s.m.st, runtime.NewMachineStatus()); ok && sameStatus(old.TypedSpec(), r.TypedSpec()) {
		return
	}
	if err := put(ctx, s.m.st, r, false); err != nil {
		return // the boot has ended
	}
	status := &machine.MachineStatusEvent_MachineStatus{Ready: len(unmet) == 0}
	for _, u := range unmet {
		status.UnmetConditions = append(status.UnmetConditions, &machine.MachineStatusEvent_MachineStatus_UnmetCondition{Name: u.Name, Reason: u.Reason})
	}
	s.m.events.publish(context.Background(), &machine.MachineStatusEvent{Stage: eventStage(stage), Status: status})
}

func sameStatus(a, b *runtime.MachineStatusSpec) bool {
	return a.Stage == b.Stage && a.Status.Ready == b.Status.Ready && slices.Equal(a.Status.UnmetConditions, b.Status.UnmetConditions)
}

func eventStage(stage runtime.MachineStage) machine.MachineStatusEvent_MachineStage {
	name := strings.ReplaceAll(strings.ToUpper(stage.String()), " ", "_")
	return machine.MachineStatusEvent_MachineStage(machine.MachineStatusEvent_MachineStage_value[name])
}

// unmet evaluates the readiness checks, which exist in the stages booting and running only.
func (s *statusControl) unmet(ctx context.Context, stage runtime.MachineStage) []runtime.UnmetCondition {
	if stage != runtime.MachineStageBooting && stage != runtime.MachineStageRunning {
		return nil
	}
	var unmet []runtime.UnmetCondition
	check := func(name, reason string) {
		if reason != "" {
			unmet = append(unmet, runtime.UnmetCondition{Name: name, Reason: reason})
		}
	}
	if !s.m.synced() {
		check("time", "time is not synced")
	}
	check("network", s.network(ctx))
	check("services", s.services(ctx))
	check("staticPods", s.staticPods(ctx))
	check("nodeReady", s.node(ctx))
	return unmet
}

func (s *statusControl) network(ctx context.Context) string {
	r, ok := get(ctx, s.m.st, network.NewStatus(network.NamespaceName, network.StatusID))
	if !ok {
		return "network status is not available yet"
	}
	var waiting []string
	for _, c := range []struct {
		name  string
		ready bool
	}{
		{"address", r.TypedSpec().AddressReady}, {"connectivity", r.TypedSpec().ConnectivityReady},
		{"etc-files", r.TypedSpec().EtcFilesReady}, {"hostname", r.TypedSpec().HostnameReady},
	} {
		if !c.ready {
			waiting = append(waiting, c.name)
		}
	}
	if len(waiting) == 0 {
		return ""
	}
	return "waiting on: " + strings.Join(waiting, ", ")
}

func (s *statusControl) services(ctx context.Context) string {
	required := []string{"apid", "machined", "kubelet"}
	if s.m.conf.machineType().IsControlPlane() {
		required = append(required, "etcd", "trustd")
	}
	list, err := safe.StateListAll[*v1alpha1.Service](ctx, s.m.st)
	if err != nil {
		return err.Error()
	}
	var problems []string
	running := map[string]bool{}
	for r := range list.All() {
		id, spec := r.Metadata().ID(), r.TypedSpec()
		if !spec.Running {
			problems = append(problems, id+" not running")
			continue
		}
		running[id] = true
		if !spec.Unknown && !spec.Healthy {
			problems = append(problems, id+" not healthy")
		}
	}
	for _, id := range required {
		if !running[id] {
			problems = append(problems, id+" not running")
		}
	}
	return strings.Join(problems, ", ")
}

func (s *statusControl) staticPods(ctx context.Context) string {
	list, err := safe.StateListAll[*k8s.StaticPodStatus](ctx, s.m.st)
	if err != nil {
		return err.Error()
	}
	var problems []string
	for r := range list.All() {
		if phase, _ := r.TypedSpec().PodStatus["phase"].(string); phase != "Running" {
			problems = append(problems, r.Metadata().ID()+" "+strings.ToLower(phase))
		}
	}
	return strings.Join(problems, ", ")
}

func (s *statusControl) node(ctx context.Context) string {
	nodename, ok := get(ctx, s.m.st, k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID))
	if !ok || nodename.TypedSpec().SkipNodeRegistration {
		return ""
	}
	name := nodename.TypedSpec().Nodename
	status, ok := get(ctx, s.m.st, k8s.NewNodeStatus(k8s.NamespaceName, name))
	switch {
	case !ok:
		return fmt.Sprintf("node %q status is not available yet", name)
	case !status.TypedSpec().NodeReady:
		return fmt.Sprintf("node %q is not ready", name)
	}
	return ""
}
