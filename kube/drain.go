package kube

import (
	"fmt"
	"strings"
)

// Drain is what is left of a drain after a round.
type Drain struct {
	// Left are the pods that are still on the node and have to go.
	Left []Pod
	// Volumes are those still attached to the node for no pod that stays there, once no pod is left: a volume can't be
	// attached elsewhere before it is detached here. The name is the PersistentVolume's.
	Volumes []string
	// Blocked are sentences on what no waiting solves. While there is one, nothing is evicted.
	Blocked []string
}

// Pod is a pod that has to go and is still there.
type Pod struct {
	Namespace, Name string
	// Terminating: it was told to go, and has until its grace period ends.
	Terminating bool
	// Why is the reason for which it stays, as a sentence without its name; empty when it was only just asked to go.
	Why string
	// Budgets are the disruption budgets that hold it.
	Budgets []Budget
}

// Budget is a PodDisruptionBudget as it stood when it held a pod.
type Budget struct {
	Namespace, Name string
	// Allowed is how many of its pods may go now; Healthy of Expected are ready, and Wanted have to be.
	Allowed, Healthy, Wanted, Expected int32
	// Problem is why Kubernetes has no count, empty when it has one. Without a count nothing is allowed.
	Problem string
}

func (b Budget) String() string {
	if b.Problem != "" {
		return fmt.Sprintf("the budget %s/%s, which isn't counted: %s", b.Namespace, b.Name, b.Problem)
	}
	return fmt.Sprintf("the budget %s/%s (%s allowed, %d of %d pods are healthy and %d must be)",
		b.Namespace, b.Name, counted(int(b.Allowed), "disruption"), b.Healthy, b.Expected, b.Wanted)
}

// Done says whether the node is drained.
func (d Drain) Done() bool { return len(d.Left) == 0 && len(d.Volumes) == 0 && len(d.Blocked) == 0 }

// maxNamed is how many pods a sentence names.
const maxNamed = 5

// Sentence says what holds the drain, or that nothing does. What needs a person comes first, then what is held, then what
// is on its way.
func (d Drain) Sentence() string {
	if d.Done() {
		return "nothing is left to be moved"
	}
	if len(d.Blocked) > 0 {
		return some(d.Blocked)
	}
	var held, going []string
	for _, pod := range d.Left {
		if pod.Why == "" {
			going = append(going, pod.Namespace+"/"+pod.Name)
			continue
		}
		held = append(held, pod.Namespace+"/"+pod.Name+" "+pod.Why)
	}
	switch {
	case len(held) > 0 && len(going) > 0:
		return some(held) + "; " + counted(len(going), "other pod") + " on the way out"
	case len(held) > 0:
		return some(held)
	case len(going) > 0:
		return counted(len(going), "pod") + " on the way out: " + strings.Join(firstOf(going), ", ")
	}
	return counted(len(d.Volumes), "volume") + " still attached to the node: " + strings.Join(firstOf(d.Volumes), ", ")
}

// some joins sentences, the first few of them.
func some(sentences []string) string {
	text := strings.Join(sentences[:min(maxNamed, len(sentences))], "; ")
	if more := len(sentences) - maxNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

func firstOf(names []string) []string {
	if len(names) <= maxNamed {
		return names
	}
	return append(names[:maxNamed:maxNamed], fmt.Sprintf("and %d more", len(names)-maxNamed))
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
