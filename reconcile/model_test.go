package reconcile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// model is a small world of Talos machines: just what decisions rest on, in the way Talos does it. Each etcd cluster is a set of
// members; a second one is what must never be.
type model struct {
	now    time.Time
	nodes  map[string]*modelNode
	etcds  []*modelEtcd
	nextID uint64
	// kubernetes says why the Kubernetes API can't be asked; empty when it can.
	kubernetes string
	// drain is what the last round of a drain left.
	drain   *kube.Drain
	drainOf string
	// accepted counts what machines took, by call and machine.
	accepted map[string]int
	// bootstraps counts the Bootstrap calls that a node accepted.
	bootstraps int
	// unhealthy is until when etcd takes no member out, kept why the Nodes can't be deleted, said what was answered to the last call.
	unhealthy  time.Time
	kept, said string
}

type modelEtcd struct {
	members []talos.EtcdMember
}

type modelNode struct {
	name, uuid, ip string
	hostname       string
	role           schema.Role
	up             bool
	stage          string // maintenance, booting, running
	boot           int
	active         string // digest
	persistent     string
	tried          bool
	before         string // what a tried config is taken back to, and when it was tried
	triedAt        time.Time
	etcd           *modelEtcd // the cluster that its data is of; nil: no data
	member         uint64
	learner        bool
	// promoting says that this run of etcd joined, so that it will be promoted.
	promoting bool
	service   string
	installed string // digest that an install is under way for
	unknown   bool   // its data can't be read at the moment
	drops     bool   // it answers OK to what would take it down, and drops it

	// kubernetes is its Node; nil: none. pods have to go when it is drained, held is why they don't.
	kubernetes *kube.Node
	pods       int
	held       string
	// services are when each of Talos's own began to run.
	services map[string]time.Time
	leader   bool
	alarm    string
}

func newModel(controlPlanes, workers int) *model {
	m := &model{now: time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC), nodes: map[string]*modelNode{}, nextID: 0x100,
		kubernetes: "nobody asked for Kubernetes", accepted: map[string]int{}}
	for n := 1; n <= controlPlanes; n++ {
		m.add(fmt.Sprintf("cp-%d", n), fmt.Sprintf("10.0.0.%d", 10+n), schema.RoleControlPlane)
	}
	for n := 1; n <= workers; n++ {
		m.add(fmt.Sprintf("w-%d", n), fmt.Sprintf("10.0.%d.%d", (50+n)>>8, (50+n)&255), schema.RoleWorker)
	}
	return m
}

func (m *model) add(name, ip string, role schema.Role) *modelNode {
	node := &modelNode{name: name, hostname: name, uuid: uuidAt(ip), ip: ip, role: role, up: true, stage: "maintenance", boot: 1,
		services: map[string]time.Time{"kubelet": m.now}}
	m.nodes[name] = node
	return node
}

// uuidAt is the UUID of the machine at an address.
func uuidAt(ip string) string {
	bytes := netip.MustParseAddr(ip).As4()
	return fmt.Sprintf("4c4c4544-0000-4000-8000-00000000%02x%02x", bytes[2], bytes[3])
}

func (m *model) names() []string {
	names := make([]string, 0, len(m.nodes))
	for name := range m.nodes {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// cluster is a desired state that wants every node of the model, approved a minute apart.
func (m *model) cluster(count int) Cluster {
	object := &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}, Source: schema.Source{Position: schema.Position{File: "clusters/prod/cluster.yaml"}}}
	object.Spec.ID = "1f3a9c0d2b4e6f78"
	object.Spec.ControlPlane.Count = count
	c := Cluster{Object: object, Commit: "c1"}
	at := time.Date(2026, 11, 29, 9, 0, 0, 0, time.UTC)
	for n, name := range m.names() {
		node := m.nodes[name]
		machine := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: name}}
		machine.Spec = schema.MachineSpec{ClusterRef: schema.ClusterRef{Name: "prod"}, Role: node.role, Endpoint: node.ip, UUID: node.uuid,
			Approved: true, ApprovalDecision: &schema.ApprovalDecision{At: at.Add(time.Duration(n) * time.Minute)}}
		c.Machines = append(c.Machines, machine)
	}
	return c
}

// see is what a look at every node shows, the config of Git having this digest.
func (m *model) see(wanted string) map[string]Seen {
	seen := map[string]Seen{}
	for name, node := range m.nodes {
		seen[name] = Seen{Observation: m.observe(node), Config: m.view(node, wanted)}
	}
	return seen
}

func (m *model) view(node *modelNode, wanted string) ConfigView {
	if !node.up || node.stage == "maintenance" {
		return ConfigView{Wanted: wanted, Disk: "/dev/sda"}
	}
	v := ConfigView{Wanted: wanted, Active: node.active, Persistent: node.persistent, Owner: "mark", BareSame: node.active == wanted}
	if v.Active != wanted {
		v.Diff = "-" + v.Active + "\n+" + wanted
	}
	return v
}

func (m *model) observe(node *modelNode) talos.Observation {
	if !node.up {
		return talos.Observation{At: m.now, Problem: "connection refused"}
	}
	o := talos.Observation{At: m.now, UUID: node.uuid, Stage: node.stage, Hostname: node.hostname, Addresses: []string{node.ip}}
	if node.stage == "maintenance" {
		o.Mode, o.Fingerprint, o.Ready = talos.ModeMaintenance, node.fingerprint(), true
		return o
	}
	o.Mode, o.BootID, o.TalosVersion = talos.ModeConfigured, node.bootID(), "v1.13.6"
	o.Ready, o.Discovery = node.stage == "running", m.discovery()
	for _, id := range slices.Sorted(maps.Keys(node.services)) {
		o.Services = append(o.Services, talos.Service{ID: id, State: "Running", Healthy: talos.Yes, Started: node.services[id]})
	}
	if node.kubernetes != nil {
		o.Unschedulable = map[bool]talos.Fact{true: talos.Yes, false: talos.No}[node.kubernetes.Unschedulable]
		o.NodeReady = map[bool]talos.Fact{true: talos.Yes, false: talos.No}[node.stage == "running"]
	}
	if node.role != schema.RoleControlPlane {
		return o
	}
	e := &o.Etcd
	e.Service = node.service
	switch {
	case node.unknown:
		return o
	case node.etcd == nil:
		e.Data = talos.No
		return o
	}
	e.Data = talos.Yes
	if !node.etcd.has(node.member) {
		e.Service, e.ServiceHealthy = "Running", talos.No
		return o
	}
	e.MemberID, e.Learner = node.member, node.learner
	if node.learner {
		e.ServiceHealthy = talos.No
		return o
	}
	if !m.quorum(node.etcd) {
		e.ServiceHealthy, e.MembersProblem = talos.No, "deadline exceeded"
		return o
	}
	e.ServiceHealthy = talos.Yes
	e.DBSize, e.DBSizeInUse = 64<<20, 16<<20
	for _, other := range m.nodes {
		if other.leader && other.etcd == node.etcd {
			e.Leader = other.member
		}
		if other.alarm != "" && other.etcd == node.etcd {
			e.Errors, e.Alarms = []string{"alarm:" + other.alarm}, []talos.EtcdAlarm{{Member: other.member, Kind: other.alarm}}
		}
	}
	e.Members = append([]talos.EtcdMember(nil), node.etcd.members...)
	return o
}

// discovery is what every configured machine knows of all of them.
func (m *model) discovery() []talos.DiscoveredMember {
	found := []talos.DiscoveredMember{}
	for _, name := range m.names() {
		if node := m.nodes[name]; node.up && node.stage != "maintenance" {
			found = append(found, talos.DiscoveredMember{Name: node.hostname, Addresses: []string{node.ip}, MachineType: string(node.role)})
		}
	}
	return found
}

func (e *modelEtcd) has(id uint64) bool {
	for _, member := range e.members {
		if member.ID == id {
			return true
		}
	}
	return false
}

func (e *modelEtcd) drop(id uint64) {
	for n, member := range e.members {
		if member.ID == id {
			e.members = append(e.members[:n:n], e.members[n+1:]...)
			return
		}
	}
}

// quorum says whether enough voters of an etcd are up.
func (m *model) quorum(e *modelEtcd) bool {
	voters, alive := 0, 0
	for _, member := range e.members {
		if member.Learner {
			continue
		}
		voters++
		for _, node := range m.nodes {
			if node.up && node.etcd == e && node.member == member.ID && node.stage != "maintenance" {
				alive++
			}
		}
	}
	return alive > voters/2
}

func (n *modelNode) bootID() string { return fmt.Sprintf("%s-boot-%d", n.name, n.boot) }

func (n *modelNode) fingerprint() string { return fmt.Sprintf("%s-print-%d", n.name, n.boot) }

// tick lets time pass, and the nodes do what they do by themselves.
func (m *model) tick(d time.Duration) {
	m.now = m.now.Add(d)
	for _, name := range m.names() {
		node := m.nodes[name]
		if !node.up {
			continue
		}
		if node.installed != "" {
			node.active, node.persistent, node.installed = node.installed, node.installed, ""
			m.bootUp(node)
		}
		if node.tried && m.now.Sub(node.triedAt) >= time.Minute {
			node.active, node.tried = node.before, false
		}
		m.step(node)
	}
}

func (m *model) step(node *modelNode) {
	if node.stage == "maintenance" {
		return
	}
	if node.role != schema.RoleControlPlane {
		node.stage = "running"
		return
	}
	switch {
	case node.etcd == nil && node.service == "Preparing":
		m.join(node)
	case node.etcd != nil && node.learner && node.promoting && m.quorum(node.etcd):
		for n := range node.etcd.members {
			if node.etcd.members[n].ID == node.member {
				node.etcd.members[n].Learner = false
			}
		}
		node.learner, node.promoting = false, false
	}
	if node.etcd != nil && !node.learner && node.etcd.has(node.member) {
		node.stage = "running"
	}
}

// join is Talos's: through any living etcd, dropping members of its own name, one learner at a time.
func (m *model) join(node *modelNode) {
	for _, e := range m.etcds {
		if !m.quorum(e) {
			continue
		}
		for _, member := range e.members {
			if member.Name == node.hostname && !m.blocked(e, member) {
				e.drop(member.ID)
			}
		}
		for _, member := range e.members {
			if member.Learner || len(member.PeerURLs) > 0 && member.PeerURLs[0] == node.peer() {
				return
			}
		}
		m.nextID++
		e.members = append(e.members, talos.EtcdMember{ID: m.nextID, Name: node.hostname, PeerURLs: []string{node.peer()}, Learner: true})
		node.etcd, node.member, node.learner, node.promoting, node.service = e, m.nextID, true, true, "Running"
		return
	}
}

// blocked says whether dropping a member would break quorum, which etcd refuses.
func (m *model) blocked(e *modelEtcd, member talos.EtcdMember) bool {
	if member.Learner {
		return false
	}
	voters, alive := 0, 0
	for _, other := range e.members {
		if other.Learner || other.ID == member.ID {
			continue
		}
		voters++
		for _, node := range m.nodes {
			if node.up && node.etcd == e && node.member == other.ID {
				alive++
			}
		}
	}
	return alive <= voters/2
}

func (n *modelNode) peer() string { return "https://" + n.ip + ":2380" }

// bootUp is a boot into the installed system.
func (m *model) bootUp(node *modelNode) {
	node.boot++
	node.up = true
	node.stage, node.service, node.promoting, node.unknown = "booting", "", false, false
	node.services = map[string]time.Time{"kubelet": m.now}
	node.active, node.tried = node.persistent, false
	if node.role == schema.RoleControlPlane {
		node.service = "Preparing"
		if node.etcd != nil {
			node.service = "Running"
		}
	}
}

// powerCycle is a sudden boot.
func (m *model) powerCycle(node *modelNode) {
	if node.stage == "maintenance" {
		node.boot++
		node.installed = ""
		return
	}
	m.bootUp(node)
}

// apply does an action as a node would, and gives the outcome. The facts are the gate's to check, as it does here.
func (m *model) apply(a Action) (statefile.Outcome, error) {
	m.said = ""
	if a.Kind == ActDeleteNode && m.kept != "" {
		m.said = m.kept
		return statefile.OutcomeUnknown, nil
	}
	if a.Kind.cordoning() || a.Kind == ActDeleteNode {
		m.askKubernetes(a)
		return statefile.OutcomeOK, nil
	}
	carrier := m.nodes[a.carrier()]
	boot := carrier.bootID()
	if a.Kind == ActFirstConfig {
		boot = carrier.fingerprint()
	}
	if !carrier.up || boot != a.Boot {
		return "", fmt.Errorf("%s is gone", a.carrier())
	}
	node := m.nodes[a.Machine]
	m.accepted[string(a.Kind)+" "+a.Machine]++
	switch a.Kind {
	case ActFirstConfig:
		node.installed = a.Digest
	case ActTry:
		node.before, node.triedAt = node.active, m.now
		node.active, node.tried = a.Digest, true
	case ActConfirm:
		node.active, node.persistent, node.tried = a.Digest, a.Digest, false
	case ActStage:
		node.persistent = a.Digest
	case ActBootstrap:
		if node.etcd != nil {
			return statefile.OutcomeUnknown, nil
		}
		m.bootstraps++
		e := &modelEtcd{members: []talos.EtcdMember{{ID: 0x10 + uint64(m.bootstraps), Name: node.name, PeerURLs: []string{node.peer()}}}}
		m.etcds = append(m.etcds, e)
		node.etcd, node.member, node.learner, node.service = e, e.members[0].ID, false, "Running"
	case ActRemoveMember:
		if m.now.Before(m.unhealthy) {
			m.said = "etcdserver: unhealthy cluster"
			return statefile.OutcomeUnknown, nil
		}
		if !carrier.etcd.has(a.Member) {
			return statefile.OutcomeUnknown, nil
		}
		carrier.etcd.drop(a.Member)
	case ActReset:
		node.etcd, node.member, node.learner = nil, 0, false
		m.bootUp(node)
	default:
		return m.operate(a, node), nil
	}
	return statefile.OutcomeOK, nil
}
