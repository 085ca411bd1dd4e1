package validate

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"ichor.maesh.dev/schema"
)

// fleet is the variable `fleet`: what rules may ask of the whole repository. It is opaque, with member functions only.
type fleet struct {
	opaque
	old, new *side
	holders  map[holding]*holders
	// held is what each object of the base held there.
	held map[heldBefore]bool
	// unreadable are the files in which something can't be decoded, broken the objects as far as they could be made out.
	unreadable map[string]bool
	broken     map[brokenObject]bool
	nobody     *list // is empty, and stays so
}

type brokenObject struct {
	kind string
	key
}

// holding is something that only one object may have. Cluster is empty where it holds for the whole fleet.
type holding struct{ kind, field, cluster, value string }

// holders are the objects that have it: those that had it in the base already, and the newcomers.
type holders struct{ incumbents, newcomers []*object }

// nobodyBut says whether at most that object has it.
func (h *holders) nobodyBut(o *object) bool {
	switch {
	case h == nil:
		return true
	case len(h.incumbents) == 0:
		return len(h.newcomers) == 0 || len(h.newcomers) == 1 && h.newcomers[0] == o
	}
	return len(h.newcomers) == 0 && len(h.incumbents) == 1 && h.incumbents[0] == o
}

type heldBefore struct {
	holding
	key
}

// maxRivals bounds how many rivals are named.
const maxRivals = 5

func newFleet(old, proposed *side, problems []schema.Problem) *fleet {
	f := &fleet{
		opaque: opaque{fleetType()}, old: old, new: proposed,
		holders: map[holding]*holders{}, held: map[heldBefore]bool{},
		unreadable: map[string]bool{}, broken: map[brokenObject]bool{}, nobody: &list{},
	}
	old.each(func(o *object) {
		for _, h := range holdings(o) {
			f.held[heldBefore{h, o.key}] = true
		}
	})
	proposed.each(func(o *object) {
		for _, h := range holdings(o) {
			if f.holders[h] == nil {
				f.holders[h] = &holders{}
			}
			if f.held[heldBefore{h, o.key}] {
				f.holders[h].incumbents = append(f.holders[h].incumbents, o)
			} else {
				f.holders[h].newcomers = append(f.holders[h].newcomers, o)
			}
		}
	})
	for _, b := range proposed.fleet.Broken {
		f.markUnreadable(b.File, b.Kind, b.Cluster, b.Name)
	}
	for _, p := range problems {
		f.markUnreadable(p.File, p.Kind, p.Cluster, p.Name)
	}
	for _, c := range old.objects[schema.KindCluster] {
		if f.unreadable[c.source.File] && proposed.of(c.name).cluster == nil {
			f.broken[brokenObject{schema.KindCluster, key{c.name, c.name}}] = true
		}
	}
	return f
}

func (f *fleet) markUnreadable(file, kind, cluster, name string) {
	f.unreadable[file] = true
	if kind == schema.KindCluster {
		cluster = name
	}
	if name != "" {
		f.broken[brokenObject{kind, key{cluster, name}}] = true
	}
}

func fleetType() *types.Type { return types.NewOpaqueType("Fleet") }

// Value implements ref.Val.
func (f *fleet) Value() any { return f }

// Equal implements ref.Val.
func (f *fleet) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(f)) }

// hasCluster says whether a TalosCluster bears that name, or may do so in a file that can't be read.
func (f *fleet) hasCluster(name string) bool {
	return f.new.of(name).cluster != nil || f.broken[brokenObject{schema.KindCluster, key{name, name}}]
}

// isGone says whether an object of the old fleet was removed. One that only can't be read any more was not.
func (f *fleet) isGone(o *object) bool {
	return f.new.find(o.kind, o.key) == nil && !f.unreadable[o.source.File] && !f.broken[brokenObject{o.kind, o.key}]
}

// rivals gives other objects that hold the same value of a field, at most maxRivals. When some of them held it already in
// the base, only the newcomers have rivals: what others do later doesn't make an object wrong.
func (f *fleet) rivals(field string, self *object) *list {
	rivals := f.nobody
	for _, h := range holdings(self) {
		if h.field != field {
			continue
		}
		if f.holders[h].nobodyBut(self) {
			continue
		}
		candidates := [][]*object{f.holders[h].incumbents}
		if !f.held[heldBefore{h, self.key}] {
			candidates = append(candidates, f.holders[h].newcomers)
		}
		for _, of := range candidates {
			for _, o := range of {
				if len(rivals.objects) == maxRivals {
					return rivals
				}
				sameName := field != "name" && o.kind == self.kind && o.key == self.key // which the rule on names reports
				if o == self || sameName {
					continue
				}
				if rivals == f.nobody {
					rivals = &list{}
				}
				rivals.add(o)
			}
		}
	}
	return rivals
}

// withUUID gives the machines with that SMBIOS UUID in one of the two fleets.
func (s *side) withUUID(uuid string) *list {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uuids == nil {
		s.uuids = map[string]*list{}
		for _, o := range s.objects[schema.KindMachine] {
			id := strings.ToLower(o.native().(*schema.TalosMachine).Spec.UUID)
			if s.uuids[id] == nil {
				s.uuids[id] = &list{}
			}
			s.uuids[id].add(o)
		}
	}
	if found := s.uuids[strings.ToLower(uuid)]; found != nil && uuid != "" {
		return found
	}
	return &list{}
}

// targets gives the machine that an operation acts on, as it is in the proposed fleet. There is none if the kind names none, or
// the fleet has no machine of exactly that cluster, name and UUID.
func (f *fleet) targets(o *object) *list {
	named := &list{}
	op, ok := o.native().(*schema.TalosOperation)
	if !ok {
		return named
	}
	var ref schema.MachineRef
	switch spec := op.Spec; {
	case spec.Node != nil:
		ref = spec.Node.MachineRef
	case spec.Adopt != nil:
		ref = spec.Adopt.MachineRef
	case spec.Bootstrap != nil:
		ref = spec.Bootstrap.MachineRef
	}
	machine := f.new.find(schema.KindMachine, key{o.cluster, ref.Name})
	if machine != nil && strings.EqualFold(machine.native().(*schema.TalosMachine).Spec.UUID, ref.UUID) {
		named.add(machine)
	}
	return named
}

// operationsIn gives the operations that stand in a file.
func (s *side) operationsIn(file string) *list {
	found := &list{}
	for _, o := range s.objects[schema.KindOperation] {
		if o.source.File == file {
			found.add(o)
		}
	}
	return found
}

// holdings gives what must be an object's alone, each value in the one form in which equal things look equal.
func holdings(o *object) []holding {
	if o.holds == nil {
		o.holds = newHoldings(o)
	}
	return o.holds
}

func newHoldings(o *object) []holding {
	held := []holding{{o.kind, "name", o.cluster, o.name}}
	add := func(field, cluster, value string) {
		if value != "" {
			held = append(held, holding{o.kind, field, cluster, value})
		}
	}
	switch n := o.native().(type) {
	case *schema.TalosCluster:
		add("endpoint", "", normalURL(n.Spec.Endpoint))
		add("id", "", strings.ToLower(n.Spec.ID))
	case *schema.TalosMachine:
		if n.Spec.Endpoint != "" {
			add("endpoint", "", normalAddress(n.Spec.Address()))
		}
		add("uuid", "", strings.ToLower(n.Spec.UUID))
		add("hostname", o.cluster, strings.ToLower(n.Spec.Hostname))
	case *schema.TalosEtcdBackup:
		if s3 := n.Spec.Destination.S3; s3 != nil && s3.Bucket != "" {
			add("prefix", "", normalURL(s3.Endpoint)+"/"+s3.Bucket+"/"+strings.Trim(s3.Prefix, "/"))
		}
	}
	return held
}

// normalAddress gives host:port in one form: names in lower case and without the final dot, IP addresses as Go writes them.
func normalAddress(hostPort string) string {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return strings.ToLower(hostPort)
	}
	if address, err := netip.ParseAddr(host); err == nil {
		return net.JoinHostPort(address.Unmap().String(), port)
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.ToLower(host), "."), port)
}

// normalURL gives host:port of a URL in one form; the port is the scheme's own when none is given.
func normalURL(text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return strings.ToLower(text)
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "http":
		port = "80"
	default:
		port = "443"
	}
	return normalAddress(net.JoinHostPort(u.Hostname(), port))
}
