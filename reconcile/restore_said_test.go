package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/recovery"
)

func TestWhatARestoreSaysAtItsEnd(t *testing.T) {
	marker := func(raised int64, survivors *recovery.Survivors) *recovery.Marker {
		m := &recovery.Marker{Target: "cp-1", Machines: make([]recovery.Machine, 3), Recovered: &recovery.Recovered{Verified: "it began with the snapshot's 23 keys"}, Survivors: survivors}
		m.Snapshot.Name, m.Snapshot.Raised = "etcd-20261130T204724Z.snapshot.age", raised
		return m
	}
	const began = "etcd is restored from etcd-20261130T204724Z.snapshot.age on cp-1, and 3 control planes have joined: it began with the snapshot's 23 keys; "
	const raised = "the revision was raised, so that whatever lived through it reads everything anew"
	for name, test := range map[string]struct {
		marker *recovery.Marker
		want   string
	}{
		"nothing lived through it": {marker(9, &recovery.Survivors{}), began + raised + "; Kubernetes answers"},
		"kubelets alone did":       {marker(9, &recovery.Survivors{Kubelets: make([]recovery.SurvivingKubelet, 2)}), began + raised + "; Kubernetes answers; through it lived 2 kubelets"},
		"a kubelet and a pod did": {marker(9, &recovery.Survivors{Kubelets: make([]recovery.SurvivingKubelet, 1), Pods: make([]recovery.SurvivingPod, 1)}),
			began + raised + "; Kubernetes answers; through it lived 1 kubelet and 1 pod of its machines' networking"},
		"Kubernetes was not asked, nor the revision raised": {marker(0, nil), began +
			"its revision was not raised, as the operation wants it: controllers and pods that lived through it may be wrong without an error, so restart them"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, restored(test.marker)) })
	}
}
