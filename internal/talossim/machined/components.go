package machined

import (
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// publishComponents shows the configs of the Kubernetes components. A changed one gets a new version, which the static pod
// then carries as an annotation.
func (k *kubeControl) publishComponents(p config.Provider) {
	m := k.m
	kubelet := k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID)
	kubelet.TypedSpec().Image, kubelet.TypedSpec().ExpectedNodename = p.Machine().Kubelet().Image(), m.hostname()
	m.put(kubelet)
	if !m.conf.machineType().IsControlPlane() {
		return
	}
	c := p.Cluster()
	api := k8s.NewAPIServerConfig()
	spec := api.TypedSpec()
	spec.Image, spec.LocalPort, spec.ServiceCIDRs = c.APIServer().Image(), c.LocalAPIServerPort(), c.Network().ServiceCIDRs()
	spec.ControlPlaneEndpoint, spec.AdvertisedAddress = c.Endpoint().String(), m.cfg.Address.String()
	spec.EtcdServers = []string{"https://localhost:2379"}
	spec.ExtraArgs, spec.EnvironmentVariables = argValues(c.APIServer().ExtraArgs()), c.APIServer().Env()
	m.put(api)

	manager := k8s.NewControllerManagerConfig()
	ms := manager.TypedSpec()
	ms.Enabled, ms.Image = !p.Machine().Controlplane().ControllerManager().Disabled(), c.ControllerManager().Image()
	ms.PodCIDRs, ms.ServiceCIDRs = c.Network().PodCIDRs(), c.Network().ServiceCIDRs()
	ms.ExtraArgs, ms.EnvironmentVariables = argValues(c.ControllerManager().ExtraArgs()), c.ControllerManager().Env()
	m.put(manager)

	scheduler := k8s.NewSchedulerConfig()
	ss := scheduler.TypedSpec()
	ss.Enabled, ss.Image = !p.Machine().Controlplane().Scheduler().Disabled(), c.Scheduler().Image()
	ss.ExtraArgs, ss.EnvironmentVariables = argValues(c.Scheduler().ExtraArgs()), c.Scheduler().Env()
	m.put(scheduler)
}

func argValues(args map[string][]string) map[string]k8s.ArgValues {
	if len(args) == 0 {
		return nil
	}
	out := make(map[string]k8s.ArgValues, len(args))
	for name, values := range args {
		out[name] = k8s.ArgValues{Values: values}
	}
	return out
}

// component returns the image and the config version of a component.
func (m *Machine) component(name string) (image, version string) {
	switch name {
	case k8s.APIServerID:
		if r, ok := get(m.ctx, m.st, k8s.NewAPIServerConfig()); ok {
			return r.TypedSpec().Image, r.Metadata().Version().String()
		}
	case k8s.ControllerManagerID:
		if r, ok := get(m.ctx, m.st, k8s.NewControllerManagerConfig()); ok {
			return r.TypedSpec().Image, r.Metadata().Version().String()
		}
	case k8s.SchedulerID:
		if r, ok := get(m.ctx, m.st, k8s.NewSchedulerConfig()); ok {
			return r.TypedSpec().Image, r.Metadata().Version().String()
		}
	}
	return "", ""
}

// staticPod shows a component's static pod and what the kubelet says about it, or removes both.
func (m *Machine) staticPod(name string, wanted, ready bool) {
	pod := k8s.NewStaticPod(k8s.NamespaceName, name)
	status := k8s.NewStaticPodStatus(k8s.NamespaceName, fmt.Sprintf("kube-system/%s-%s", name, m.hostname()))
	if !wanted {
		m.drop(pod)
		m.drop(status)
		return
	}
	image, version := m.component(name)
	pod.TypedSpec().Pod = map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"name": name, "namespace": "kube-system",
			"annotations": map[string]any{"talos.dev/config-version": version},
		},
		"spec": map[string]any{"containers": []any{map[string]any{"name": name, "image": image}}},
	}
	m.put(pod)
	phase, condition := "Pending", "False"
	if ready {
		phase, condition = "Running", "True"
	}
	status.TypedSpec().PodStatus = map[string]any{
		"phase": phase, "hostIP": m.cfg.Address.String(), "podIP": m.cfg.Address.String(),
		"conditions": []any{map[string]any{"type": "Ready", "status": condition}},
	}
	m.put(status)
}
