package validate

import (
	"sync"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"ichor.maesh.dev/schema"
)

// scope is what belongs to one cluster: the variables of a rule.
type scope struct {
	cluster    *object // nil when no TalosCluster bears the name
	machines   *list
	backups    *list
	operations *list
}

// side is one of the two fleets.
type side struct {
	set     *typeSet
	fleet   *schema.Fleet
	objects map[string][]*object // by kind
	byKey   map[string]map[key]*object
	scopes  map[string]*scope
	nothing *scope
	uuids   map[string]*list // machines by UUID
	places  *places          // once asked for
	mu      sync.Mutex       // of what is made once it is asked for
}

// world is all that one Check looks at.
type world struct {
	old, new   *side
	hasBase    bool
	fleet      *fleet
	references []*object
	// spent is what the rules of policies cost so far; outcomes are what they said.
	spent    uint64
	outcomes map[*rule]*outcome
}

// outcome counts what a rule of a policy said: of how many objects it was asked, and of how many of those it was kept.
// Spared are those of which its when didn't hold.
type outcome struct{ spared, kept, broken int }

// count adds to what a policy's rule said. Nobody asks that of the built-in ones, which are judged by several goroutines at once.
func (w *world) count(r *rule, said outcome) {
	if r.origin == nil {
		return
	}
	o := w.outcome(r)
	o.spared, o.kept, o.broken = o.spared+said.spared, o.kept+said.kept, o.broken+said.broken
}

// outcome gives what a rule said so far.
func (w *world) outcome(r *rule) *outcome {
	if w.outcomes[r] == nil {
		w.outcomes[r] = &outcome{}
	}
	return w.outcomes[r]
}

func newWorld(set *typeSet, old, proposed *schema.Fleet, problems []schema.Problem) *world {
	hasBase := old != nil
	if old == nil {
		old = &schema.Fleet{}
	}
	w := &world{hasBase: hasBase, old: newSide(set, old), new: newSide(set, proposed), outcomes: map[*rule]*outcome{}}
	w.fleet = newFleet(w.old, w.new, problems)
	w.references = findReferences(set, proposed)
	return w
}

func newSide(set *typeSet, f *schema.Fleet) *side {
	s := &side{
		set: set, fleet: f, objects: map[string][]*object{}, byKey: map[string]map[key]*object{}, scopes: map[string]*scope{},
		nothing: newScope(),
	}
	for _, c := range f.Clusters {
		o := s.add(schema.KindCluster, key{c.Metadata.Name, c.Metadata.Name}, &c.Source, c)
		if of := s.ensure(o.cluster); of.cluster == nil {
			of.cluster = o
		}
	}
	for _, m := range f.Machines {
		o := s.add(schema.KindMachine, key{m.Spec.ClusterRef.Name, m.Metadata.Name}, &m.Source, m)
		s.ensure(o.cluster).machines.add(o)
	}
	for _, b := range f.Backups {
		o := s.add(schema.KindBackup, key{b.Spec.ClusterRef.Name, b.Metadata.Name}, &b.Source, b)
		s.ensure(o.cluster).backups.add(o)
	}
	for _, op := range f.Operations {
		o := s.add(schema.KindOperation, key{op.Spec.ClusterRef.Name, op.Metadata.Name}, &op.Source, op)
		s.ensure(o.cluster).operations.add(o)
	}
	for _, p := range f.Policies {
		s.add(schema.KindPolicy, key{name: p.Metadata.Name}, &p.Source, p)
	}
	return s
}

func newScope() *scope {
	return &scope{machines: &list{}, backups: &list{}, operations: &list{}}
}

func (s *side) add(kind string, k key, source *schema.Source, pointer any) *object {
	o := s.set.object(pointer)
	o.key, o.kind, o.source = k, kind, source
	s.objects[kind] = append(s.objects[kind], o)
	if s.byKey[kind] == nil {
		s.byKey[kind] = map[key]*object{}
	}
	if s.byKey[kind][k] == nil { // of duplicates the first one is it; a rule reports them
		s.byKey[kind][k] = o
	}
	return o
}

// each visits every object, kind by kind, in the order of their files.
func (s *side) each(visit func(*object)) {
	for _, kind := range schema.Kinds() {
		for _, o := range s.objects[kind] {
			visit(o)
		}
	}
}

func (s *side) ensure(cluster string) *scope {
	if s.scopes[cluster] == nil {
		s.scopes[cluster] = newScope()
	}
	return s.scopes[cluster]
}

// of gives what belongs to a cluster; never nil.
func (s *side) of(cluster string) *scope {
	if found := s.scopes[cluster]; found != nil {
		return found
	}
	return s.nothing
}

// find gives the object of that kind, cluster and name, or nil.
func (s *side) find(kind string, k key) *object { return s.byKey[kind][k] }

// belongsTo gives the cluster that a finding about an object belongs to: the one it names where there is or was such a
// cluster, else the nearest up the path of its file, else the one it names.
func (w *world) belongsTo(o *object) string {
	if o.cluster != "" && w.fleet.hasCluster(o.cluster) || w.old.of(o.cluster).cluster != nil {
		return o.cluster
	}
	if near := w.new.fleet.ClusterFor(o.source.File, ""); near != "" {
		return near
	}
	return o.cluster
}

// insideOf says what of the clusters an endpoint is; see Inside.
func (s *side) insideOf(endpoint, cluster string) string {
	s.mu.Lock()
	if s.places == nil {
		s.places = newPlaces(s.fleet)
	}
	s.mu.Unlock()
	return s.places.inside(endpoint, cluster)
}

// optional gives an object, or nil, as a CEL optional.
func optional(o *object) ref.Val {
	if o == nil {
		return types.OptionalNone
	}
	return types.OptionalOf(o)
}
