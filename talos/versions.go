package talos

import (
	"fmt"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// Versions are the versions of a machine's components: what stands after the colon of an image, digest included. Empty
// where there is no image.
type Versions struct {
	Kubelet, APIServer, ControllerManager, Scheduler, Proxy, Etcd, CoreDNS, Installer string
}

// VersionsOf gives the versions that a config names. Of a nil config there are none.
func VersionsOf(provider config.Provider) Versions {
	var found Versions
	if provider == nil || provider.RawV1Alpha1() == nil {
		return found
	}
	for _, component := range components(provider.RawV1Alpha1(), &found) {
		_, *component.running = splitImage(*component.image)
	}
	return found
}

// component is an image in a config and its version in Versions.
type component struct {
	name    string
	image   *string
	running *string
}

func components(c *v1alpha1.Config, versions *Versions) []component {
	var found []component
	if machine := c.MachineConfig; machine != nil {
		if machine.MachineKubelet != nil {
			found = append(found, component{"kubelet", &machine.MachineKubelet.KubeletImage, &versions.Kubelet})
		}
		if machine.MachineInstall != nil {
			found = append(found, component{"Talos", &machine.MachineInstall.InstallImage, &versions.Installer})
		}
	}
	cluster := c.ClusterConfig
	if cluster == nil {
		return found
	}
	if cluster.APIServerConfig != nil {
		found = append(found, component{"kube-apiserver", &cluster.APIServerConfig.ContainerImage, &versions.APIServer})
	}
	if cluster.ControllerManagerConfig != nil {
		found = append(found, component{"kube-controller-manager", &cluster.ControllerManagerConfig.ContainerImage, &versions.ControllerManager})
	}
	if cluster.SchedulerConfig != nil {
		found = append(found, component{"kube-scheduler", &cluster.SchedulerConfig.ContainerImage, &versions.Scheduler})
	}
	if cluster.ProxyConfig != nil {
		found = append(found, component{"kube-proxy", &cluster.ProxyConfig.ContainerImage, &versions.Proxy})
	}
	if cluster.EtcdConfig != nil {
		found = append(found, component{"etcd", &cluster.EtcdConfig.ContainerImage, &versions.Etcd})
	}
	if cluster.CoreDNSConfig != nil {
		found = append(found, component{"coredns", &cluster.CoreDNSConfig.CoreDNSImage, &versions.CoreDNS})
	}
	return found
}

// pin puts the running versions into a config, which keeps its repositories, and lists what was wanted otherwise.
func (v Versions) pin(c *v1alpha1.Config) (pending []string) {
	for _, component := range components(c, &v) {
		repository, wanted := splitImage(*component.image)
		if *component.running == "" || *component.image == "" || wanted == *component.running {
			continue
		}
		*component.image = repository + ":" + *component.running
		if strings.HasPrefix(*component.running, "@") {
			*component.image = repository + *component.running
		}
		pending = append(pending, fmt.Sprintf("%s %s, wanted %s", component.name, *component.running, wanted))
	}
	return pending
}

// splitImage takes repository and version apart: the tag with its digest, or the digest with its @ alone.
func splitImage(image string) (repository, version string) {
	name, digest, hasDigest := strings.Cut(image, "@")
	colon := strings.LastIndex(name, ":")
	if colon > strings.LastIndex(name, "/") {
		version = name[colon+1:]
		if hasDigest {
			version += "@" + digest
		}
		return name[:colon], version
	}
	if hasDigest {
		return name, "@" + digest
	}
	return name, ""
}
