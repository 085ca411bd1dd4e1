package validate

import (
	"strings"
	"sync"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"ichor.maesh.dev/schema"
)

// list is a list of objects of one kind and cluster. What rules ask of it again and again is worked out once, so that a rule
// over each of a thousand machines doesn't count a thousand machines each time.
//
// Several goroutines may ask at once; nothing is added then.
type list struct {
	objects []*object
	mu      sync.Mutex // of the rest
	lister  traits.Lister
	// approved are the approved machines of the list by role.
	approved map[schema.Role]*list
	// staying are the machines of the list that none of those operations removes.
	staying map[*list]*list
	// removes are the remove operations of the list by the machine they name.
	removes map[string][]*schema.TalosOperation
}

func (l *list) add(o *object) { l.objects = append(l.objects, o) }

// val gives the list as a CEL value.
func (l *list) val() ref.Val {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lister == nil {
		values := make([]ref.Val, len(l.objects))
		for i, o := range l.objects {
			values[i] = o
		}
		l.lister = &listValue{Lister: types.NewRefValList(types.DefaultTypeAdapter, values), list: l}
	}
	return l.lister
}

// listValue is a CEL list that remembers which list it shows.
type listValue struct {
	traits.Lister
	list *list
}

// listOf gives the list behind a CEL value, or makes one for a list that a rule built itself.
func listOf(value ref.Val) (*list, bool) {
	if known, ok := value.(*listValue); ok {
		return known.list, true
	}
	lister, ok := value.(traits.Lister)
	if !ok {
		return nil, false
	}
	made := &list{}
	for it := lister.Iterator(); it.HasNext() == types.True; {
		o, ok := it.Next().(*object)
		if !ok {
			return nil, false
		}
		made.add(o)
	}
	return made, true
}

// approvedAs gives the approved machines with that role.
func (l *list) approvedAs(role schema.Role) *list {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.approved == nil {
		l.approved = map[schema.Role]*list{}
		for _, o := range l.objects {
			m, ok := o.native().(*schema.TalosMachine)
			if !ok || !m.Spec.Approved {
				continue
			}
			if l.approved[m.Spec.Role] == nil {
				l.approved[m.Spec.Role] = &list{}
			}
			l.approved[m.Spec.Role].add(o)
		}
	}
	if l.approved[role] == nil {
		l.approved[role] = &list{}
	}
	return l.approved[role]
}

// stayingDespite gives the machines that none of the operations removes.
func (l *list) stayingDespite(operations *list) *list {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.staying[operations]; known != nil {
		return known
	}
	if l.staying == nil {
		l.staying = map[*list]*list{}
	}
	stay := &list{}
	for _, o := range l.objects {
		if !operations.removing(o) {
			stay.add(o)
		}
	}
	l.staying[operations] = stay
	return stay
}

// removing says whether one of the operations is a `remove` that names exactly that machine. One that was made before the
// machine's approval was decided speaks of an earlier life of it, and doesn't count.
func (l *list) removing(o *object) bool {
	m, ok := o.native().(*schema.TalosMachine)
	if !ok {
		return false
	}
	for _, op := range l.removals()[machineID(m.Metadata.Name, m.Spec.UUID)] {
		if decided := m.Spec.ApprovalDecision; decided == nil || !decided.At.After(op.Spec.CreatedAt) {
			return true
		}
	}
	return false
}

// removals gives the `remove` operations of the list, by the machine that each names.
func (l *list) removals() map[string][]*schema.TalosOperation {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.removes != nil {
		return l.removes
	}
	l.removes = map[string][]*schema.TalosOperation{}
	for _, o := range l.objects {
		if op, ok := o.native().(*schema.TalosOperation); ok && op.Spec.Node != nil && op.Spec.Node.Action == "remove" {
			ref := op.Spec.Node.MachineRef
			l.removes[machineID(ref.Name, ref.UUID)] = append(l.removes[machineID(ref.Name, ref.UUID)], op)
		}
	}
	return l.removes
}

func machineID(name, uuid string) string { return name + "/" + strings.ToLower(uuid) }

// native gives the pointer to the Go object.
func (o *object) native() any { return o.value.Addr().Interface() }
