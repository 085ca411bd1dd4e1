package talos

import (
	"context"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// apiServerContainer is the name of the container in which Talos's static pod runs the Kubernetes API server, criRunning the state of one that runs.
const (
	apiServerContainer = "kube-apiserver"
	criRunning         = "CONTAINER_RUNNING"
)

// APIServer says whether a Kubernetes API server runs on the machine, as its container runtime knows. It needs RoleReader.
func (s *Session) APIServer(ctx context.Context) (Fact, error) {
	const doing = "listing its containers"
	if err := s.configuredOnly(); err != nil {
		return Unknown, s.failed(doing, err)
	}
	reply, err := s.machine.Containers(ctx, &machineapi.ContainersRequest{Namespace: constants.K8sContainerdNamespace, Driver: common.ContainerDriver_CRI})
	one, err := single(reply.GetMessages(), err)
	if err != nil {
		return Unknown, s.failed(doing, err)
	}
	return apiServerAmong(one.GetContainers()), nil
}

// apiServerAmong looks for a running API server. A pod's sandbox is listed beside its containers, under the pod's name.
func apiServerAmong(containers []*machineapi.ContainerInfo) Fact {
	for _, c := range containers {
		if c.GetName() == apiServerContainer && c.GetStatus() == criRunning {
			return Yes
		}
	}
	return No
}
