package talos

import (
	"testing"

	"github.com/stretchr/testify/require"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

func TestAnAPIServerRunsWhereItsContainerDoes(t *testing.T) {
	sandbox := &machineapi.ContainerInfo{Namespace: "k8s.io", Name: "kube-system/kube-apiserver-cp-1", PodId: "kube-system/kube-apiserver-cp-1", Status: "SANDBOX_READY"}
	container := func(name, status string) *machineapi.ContainerInfo {
		return &machineapi.ContainerInfo{Namespace: "k8s.io", Name: name, PodId: "kube-system/" + name + "-cp-1", Status: status}
	}
	for name, test := range map[string]struct {
		containers []*machineapi.ContainerInfo
		want       Fact
	}{
		"none runs":                 {nil, No},
		"it runs":                   {[]*machineapi.ContainerInfo{sandbox, container("kube-apiserver", "CONTAINER_RUNNING")}, Yes},
		"it has ended":              {[]*machineapi.ContainerInfo{sandbox, container("kube-apiserver", "CONTAINER_EXITED")}, No},
		"one ended and one runs":    {[]*machineapi.ContainerInfo{container("kube-apiserver", "CONTAINER_EXITED"), container("kube-apiserver", "CONTAINER_RUNNING")}, Yes},
		"only its sandbox is there": {[]*machineapi.ContainerInfo{sandbox}, No},
		"others run":                {[]*machineapi.ContainerInfo{container("kube-scheduler", "CONTAINER_RUNNING")}, No},
	} {
		require.Equal(t, test.want, apiServerAmong(test.containers), name)
	}
}
