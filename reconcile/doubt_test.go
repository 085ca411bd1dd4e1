package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
)

// That no Node was found for a machine doesn't mean that it has none: where one may be its, nothing is taken down undrained, nor forgotten.
func TestAMachineWhoseNodeIsInDoubtIsNeitherTakenForEmptyNorForGone(t *testing.T) {
	s := restorable()
	look := func(nodes ...kube.Node) {
		s.in.Kubernetes = &KubernetesView{}
		s.in.Kubernetes.match(s.in, nodes)
	}
	var kept *statefile.Evacuation
	stranger := kube.Node{Name: "cp-1", UID: "u", SystemUUID: "uuid of no machine here", Addresses: []string{"10.9.9.9"}, Ready: kube.Yes}
	look(stranger)
	require.Contains(t, evacuate(s.in, "cp-1", "op-1", &kept).stuck, "the pods on cp-1 can't be moved away: the Node cp-1 is called like cp-1")
	require.Empty(t, kept.Undrained)
	require.Contains(t, s.runs("cp-1"), "whether it still runs isn't known")

	its := stranger
	its.Addresses = []string{"10.0.0.11"}
	look(its)
	kept = nil
	require.Equal(t, ActCordon, evacuate(s.in, "cp-1", "op-1", &kept).act.Kind)
	require.Contains(t, s.runs("cp-1"), "its Node is Ready")

	look()
	kept = nil
	require.Empty(t, evacuate(s.in, "cp-1", "op-1", &kept))
	require.Contains(t, kept.Undrained, "has no Node in Kubernetes")
	require.Empty(t, s.runs("cp-1"))
}
