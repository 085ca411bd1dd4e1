package reconcile

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

var update = flag.Bool("update", false, "write what came out into the transcripts")

// TestTranscripts runs testdata/transcripts/*.txt: each is a story in plain sentences, what is done, and what must come of it. After
// a change of decisions run with -update and review the difference.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runTranscript(t, string(text))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(text), got)
		})
	}
}

// runTranscript runs the commands of a transcript and gives it with what came out.
func runTranscript(t *testing.T, text string) string {
	var out strings.Builder
	s := &story{t: t}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for n := 0; n < len(lines); n++ {
		line := lines[n]
		out.WriteString(line + "\n")
		if line != "----" {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				s.do(line)
			}
			continue
		}
		for n+1 < len(lines) && lines[n+1] != "" {
			n++
		}
		out.WriteString(s.out.String())
		s.out.Reset()
	}
	return out.String()
}

// story is a transcript being run.
type story struct {
	t     *testing.T
	drive *drive
	out   strings.Builder
	// overlay changes what a look shows, by machine.
	overlay map[string]func(*Seen)
	// kept is a state that is put back later.
	kept *statefile.State
}

func (s *story) do(line string) {
	words := strings.Fields(line)
	arguments, options := split(words[1:])
	switch words[0] {
	case "machines": // machines <control planes> <workers>: in maintenance mode, approved a minute apart
		controlPlanes, workers := number(s.t, arguments[0]), number(s.t, arguments[1])
		s.drive = newDrive(newModel(controlPlanes, workers), controlPlanes)
		s.overlay = map[string]func(*Seen){}
		if options["schedulable"] == "no" {
			no := false
			s.drive.cluster.Object.Spec.ControlPlane.Schedulable = &no
		}
		if count := options["count"]; count != "" {
			s.drive.cluster.Object.Spec.ControlPlane.Count = number(s.t, count)
		}
	case "count":
		s.drive.cluster.Object.Spec.ControlPlane.Count = number(s.t, arguments[0])
	case "machine":
		s.machine(arguments[0], options)
	case "git":
		s.git(arguments, options)
	case "kubernetes": // kubernetes [problem] [pods=2]: every machine has a Node with pods
		s.drive.model.withKubernetes(options["pods"])
		s.drive.model.kubernetes = strings.Join(arguments, " ")
	case "kubernetes-away": // kubernetes-away <problem>: it can't be asked any more
		s.drive.model.kubernetes = strings.Join(arguments, " ")
	case "kubernetes-back":
		s.drive.model.kubernetes = ""
	case "operation": // operation <name> <action> <machine>: signed and accepted
		s.drive.operation(s.t, arguments[0], arguments[1], arguments[2], options)
	case "resume":
		s.drive.resume(s.t, arguments[0])
	case "wait": // time passes and the machines do nothing
		s.drive.model.now = s.drive.model.now.Add(length(s.t, arguments[0]))
	case "tick": // time passes and the machines do what they do
		s.drive.model.tick(length(s.t, arguments[0]))
	case "pass":
		s.pass()
	case "run": // passes until the cluster is Ready or nothing happens any more
		s.run(ActionKind(options["until"]))
	case "new-writer":
		s.drive.operations.forget()
		s.drive.state = cloneState(s.drive.state)
		s.drive.state.Writer.Epoch++
		s.drive.state.Writer.Since = stamp(s.drive.model.now)
		for _, op := range s.drive.state.Operations {
			if s.drive.begun != nil { // a story without files has nothing to verify
				op.JudgedEpoch = s.drive.state.Writer.Epoch
			}
		}
	case "lose-state":
		s.drive.operations.forget()
		s.drive.state = &statefile.State{SchemaVersion: 1, Writer: statefile.Writer{ID: "agent-2", Epoch: 1, Since: s.drive.model.now}}
	case "outcome": // outcome refused <message>: what the call is answered with
		s.drive.state = cloneState(s.drive.state)
		s.drive.state.Intent.Outcome = statefile.Outcome(arguments[0])
		s.drive.state.Intent.Message = strings.Join(arguments[1:], " ")
	case "forget-outcome": // the writer died before it wrote the outcome
		s.drive.state = cloneState(s.drive.state)
		s.drive.state.Intent.Outcome = ""
	case "show":
		s.show(arguments)
	default:
		if !s.doOperation(words[0], arguments, options) {
			s.t.Fatalf("unknown command %q", line)
		}
	}
}

// machine changes a node, or what is seen of it.
func (s *story) machine(name string, options map[string]string) {
	node := s.drive.model.nodes[name]
	require.NotNil(s.t, node, name)
	for _, key := range slices.Sorted(maps.Keys(options)) {
		value := options[key]
		switch key {
		case "power":
			node.up = value != "off"
			if value == "cycle" {
				s.drive.model.powerCycle(node)
			}
		case "maintenance":
			node.stage, node.boot, node.installed = "maintenance", node.boot+1, ""
		case "data":
			if value == "lost" {
				s.drive.model.etcds[0].drop(node.member)
			}
			if value == "none" || value == "lost" {
				node.etcd, node.member, node.service = nil, 0, "Preparing"
			}
			node.unknown = value == "unknown"
			if value == "present" {
				e := &modelEtcd{members: []talos.EtcdMember{{ID: 0xd0, Name: name, PeerURLs: []string{node.peer()}}}}
				s.drive.model.etcds = append(s.drive.model.etcds, e)
				node.etcd, node.member, node.service = e, 0xd0, "Running"
			}
		case "forget-install":
			node.installed = ""
		case "boot": // put back to a boot: what was asked for did not happen
			node.boot = number(s.t, value)
		case "service":
			node.service = value
		case "uuid":
			node.uuid = value
		case "config":
			node.active, node.persistent = value, value
			node.stage = "booting"
			node.service = "Preparing"
			if node.role != schema.RoleControlPlane {
				node.service = ""
			}
		case "active":
			node.active = value
		case "persistent":
			node.persistent = value
		case "type":
			s.over(name, func(seen *Seen) { seen.MachineType = value })
		case "no-discovery":
			s.over(name, func(seen *Seen) { seen.Discovery = nil })
		case "address": // it has this address too
			s.over(name, func(seen *Seen) { seen.Addresses = append(seen.Addresses, value) })
		case "owner":
			s.over(name, func(seen *Seen) { seen.Config.Owner = value })
		case "disk":
			s.over(name, func(seen *Seen) { seen.Config.DiskProblem = strings.ReplaceAll(value, "_", " ") })
		case "reboot-because":
			s.over(name, func(seen *Seen) {
				seen.Config.NeedsReboot, seen.Config.Why = seen.Config.Active != seen.Config.Wanted, value
			})
		case "unread":
			s.over(name, func(seen *Seen) {
				if value == "yes" {
					seen.Config.Active, seen.Config.Persistent = "", ""
				}
			})
			if value == "no" {
				delete(s.overlay, name)
			}
		case "upgrade":
			s.over(name, func(seen *Seen) { seen.Config.Upgrade = strings.ReplaceAll(value, "_", " ") })
		case "ready":
			s.over(name, func(seen *Seen) { seen.Ready = value == "yes" })
		case "promote":
			node.promoting = value == "yes"
		case "discovery":
			s.over(name, func(seen *Seen) {
				seen.Discovery = []talos.DiscoveredMember{{Name: value, Addresses: []string{"10.0.0.99"}, MachineType: "controlplane"}}
			})
		case "nameless":
			s.nameless(node)
		case "hostname":
			s.rename(node, value)
		case "unreachable":
			s.over(name, func(seen *Seen) { *seen = Seen{Observation: talos.Observation{Problem: "no route"}} })
		case "drops": // it answers OK and does nothing
			node.drops = value == "yes"
		case "pods": // how many have to go when it is drained
			node.pods = number(s.t, value)
		case "held": // why they don't go
			node.held = strings.ReplaceAll(value, "_", " ")
			if value == "no" {
				node.held = ""
			}
		case "leader":
			node.leader = value == "yes"
		case "alarm":
			node.alarm = strings.TrimSuffix(value, "none")
		case "cordoned":
			node.kubernetes.Unschedulable, node.kubernetes.CordonedBy = value != "no", strings.TrimSuffix(value, "yes")
		case "service-of":
			node.services[value] = s.drive.model.now
		default:
			s.t.Fatalf("unknown option %s", key)
		}
	}
}

func (s *story) over(name string, change func(*Seen)) {
	before := s.overlay[name]
	s.overlay[name] = func(seen *Seen) {
		if before != nil {
			before(seen)
		}
		change(seen)
	}
}

// nameless makes the node's member one that was added and never started.
func (s *story) nameless(node *modelNode) {
	e := s.drive.model.etcds[0]
	e.drop(node.member)
	s.drive.model.nextID++
	e.members = append(e.members, talos.EtcdMember{ID: s.drive.model.nextID, PeerURLs: []string{node.peer()}, Learner: true})
	node.etcd, node.member, node.learner = nil, 0, false
	s.drive.model.bootUp(node)
}

// rename lets the node come back without data under another name, its former self still being a member.
func (s *story) rename(node *modelNode, name string) {
	node.etcd, node.member, node.learner = nil, 0, false
	s.drive.model.bootUp(node)
	node.hostname = name
}

// git changes what Git wants.
func (s *story) git(arguments []string, options map[string]string) {
	d := s.drive
	switch arguments[0] {
	case "config":
		d.wanted, d.cluster.Commit = arguments[1], arguments[1]
	case "delete":
		var left []*schema.TalosMachine
		for _, m := range d.cluster.Machines {
			if m.Metadata.Name != arguments[1] {
				left = append(left, m)
			}
		}
		d.cluster.Machines = left
	case "rename": // git rename cp-2 node-2: the same machine under another name
		d.cluster.Machine(arguments[1]).Metadata.Name = arguments[2]
		node := d.model.nodes[arguments[1]]
		delete(d.model.nodes, arguments[1])
		node.name, d.model.nodes[arguments[2]] = arguments[2], node
		sortMachines(d.cluster.Machines)
	case "add": // git add cp-4 role=controlplane ip=10.0.0.14 at=2026-11-29T11:00:00Z
		role := schema.Role(options["role"])
		node := d.model.add(arguments[1], options["ip"], role)
		m := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: node.name}}
		m.Spec = schema.MachineSpec{ClusterRef: schema.ClusterRef{Name: "prod"}, Role: role, Endpoint: node.ip, UUID: node.uuid, Approved: true,
			ApprovalDecision: &schema.ApprovalDecision{At: moment(s.t, options["at"])}}
		d.cluster.Machines = append(d.cluster.Machines, m)
		sortMachines(d.cluster.Machines)
	case "machine":
		s.gitMachine(d.cluster.Machine(arguments[1]), options)
	case "backup":
		b := &schema.TalosEtcdBackup{Metadata: schema.ObjectMeta{Name: arguments[1]}}
		d.cluster.Backups = append(d.cluster.Backups, b)
		listing := &Listing{Snapshots: map[string][]string{}, Problem: map[string]string{}}
		if snapshot := options["snapshot"]; snapshot != "" {
			listing.Snapshots[arguments[1]] = []string{snapshot}
		}
		if problem := options["problem"]; problem != "" {
			listing.Problem[arguments[1]] = strings.ReplaceAll(problem, "_", " ")
		}
		d.listing = listing
	case "unpause":
		d.cluster.Object.Metadata.Annotations = nil
	case "pause":
		d.cluster.Object.Metadata.Annotations = map[string]string{schema.AnnotationPaused: strings.Join(arguments[1:], " ")}
	case "reboots": // git reboots window schedule=0_2_*_*_SAT duration=4h
		d.cluster.Object.Spec.Rollout.Reboots = schema.RebootPolicy(arguments[1])
		if schedule := options["schedule"]; schedule != "" {
			d.cluster.Object.Spec.Rollout.Windows = []schema.Window{{Schedule: strings.ReplaceAll(schedule, "_", " "), Duration: schema.Duration(length(s.t, options["duration"]))}}
		}
	case "max-unavailable-workers":
		d.cluster.Object.Spec.Rollout.MaxUnavailableWorkers = schema.IntOrPercent(arguments[1])
	default:
		s.t.Fatalf("unknown git command %v", arguments)
	}
}

func (s *story) gitMachine(m *schema.TalosMachine, options map[string]string) {
	require.NotNil(s.t, m)
	for key, value := range options {
		switch key {
		case "approved":
			m.Spec.Approved = value == "yes"
		case "at":
			m.Spec.ApprovalDecision = &schema.ApprovalDecision{At: moment(s.t, value)}
		case "uuid":
			m.Spec.UUID = value
		case "endpoint":
			m.Spec.Endpoint = value
		case "fingerprint":
			m.Spec.Fingerprint = value
		case "resume":
			m.Metadata.Annotations = nil
		case "pause":
			m.Metadata.Annotations = map[string]string{schema.AnnotationPaused: value}
		default:
			s.t.Fatalf("unknown option %s", key)
		}
	}
}

func (s *story) pass() {
	s.drive.overlay = s.overlay
	action, err := s.drive.pass()
	switch {
	case err != nil:
		fmt.Fprintf(&s.out, "refused: %v\n", err)
	case action == nil:
		fmt.Fprintf(&s.out, "nothing is done\n")
	default:
		fmt.Fprintf(&s.out, "%s\n", action)
	}
}

// run passes; with until it stops right after an action of that kind.
func (s *story) run(until ActionKind) {
	s.drive.overlay = s.overlay
	quiet, before := 0, ""
	for range 400 {
		action, err := s.drive.pass()
		switch {
		case err != nil:
			fmt.Fprintf(&s.out, "refused: %v\n", err)
			return
		case action != nil:
			if line := action.String(); line != before || action.Kind != ActEvict { // a drain asks again and again
				fmt.Fprintf(&s.out, "%s\n", line)
				before = line
			}
			quiet = 0
			if action.Kind == until {
				return
			}
		default:
			quiet++
		}
		if quiet > 30 || s.drive.state.Ready.Status && quiet > 2 && !s.operating() {
			return
		}
		s.drive.model.tick(2 * time.Second)
	}
}

// operating says whether an operation is being carried out.
func (s *story) operating() bool {
	return slices.ContainsFunc(s.drive.state.Operations, func(op *statefile.OperationState) bool { return op.Phase == statefile.OperationRunning })
}

// show prints the conditions, of all or of the named machines.
func (s *story) show(names []string) {
	state := s.drive.state
	if len(names) == 0 {
		fmt.Fprintf(&s.out, "cluster %s: %s\n", state.Ready.Reason, state.Ready.Message)
		for name := range state.Machines {
			names = append(names, name)
		}
		sort.Strings(names)
	}
	for _, name := range names {
		if name == "cluster" {
			fmt.Fprintf(&s.out, "cluster %s: %s\n", state.Ready.Reason, state.Ready.Message)
			continue
		}
		if op := operationNamed(state, name); op != nil {
			fmt.Fprintf(&s.out, "%s %s (%s): %s\n", name, op.Phase, nameOr(op.Step, "no step"), op.Message)
			continue
		}
		if k := s.node(name); k != "" {
			fmt.Fprintf(&s.out, "%s\n", k)
			continue
		}
		if m := state.Machines[name]; m != nil {
			fmt.Fprintf(&s.out, "%s %s: %s\n", name, m.Ready.Reason, m.Ready.Message)
		}
	}
}

// node says how the Node of a machine stands: show node/w-1.
func (s *story) node(name string) string {
	machine, is := strings.CutPrefix(name, "node/")
	if !is {
		return ""
	}
	switch k := s.drive.model.nodes[machine].kubernetes; {
	case k == nil:
		return machine + " has no Node"
	case k.Unschedulable:
		return fmt.Sprintf("the Node of %s is cordoned by %s", machine, nameOr(k.CordonedBy, "somebody"))
	}
	return fmt.Sprintf("the Node of %s takes pods", machine)
}

func split(words []string) (arguments []string, options map[string]string) {
	options = map[string]string{}
	for _, word := range words {
		if key, value, is := strings.Cut(word, "="); is {
			options[key] = value
		} else {
			arguments = append(arguments, word)
		}
	}
	return arguments, options
}

func number(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

func length(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

func moment(t *testing.T, text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return at
}
