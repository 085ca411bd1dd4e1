package talos

//lint:file-ignore SA1019 Contracts before v1.12 have no other form of the hostname.

import (
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// legacyHostname sets the hostname in the machine config itself, as contracts before v1.12 do.
func legacyHostname(provider config.Provider, hostname string) (config.Provider, error) {
	return provider.PatchV1Alpha1(func(c *v1alpha1.Config) error {
		if c.MachineConfig.MachineNetwork == nil {
			c.MachineConfig.MachineNetwork = &v1alpha1.NetworkConfig{}
		}
		c.MachineConfig.MachineNetwork.NetworkHostname = hostname
		return nil
	})
}
