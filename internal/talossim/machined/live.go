package machined

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// canApplyImmediate says why a config can't take effect without a reboot. Only the v1alpha1 document counts, and in it only
// what Talos doesn't change live (internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_runtime.go).
func canApplyImmediate(current, wanted config.Provider) error {
	if current == nil {
		return errors.New("no current config")
	}
	old := current.RawV1Alpha1()
	if old == nil {
		return errors.New("current config is not v1alpha1")
	}
	if wanted.RawV1Alpha1() == nil {
		return errors.New("new config is not v1alpha1")
	}
	now := wanted.RawV1Alpha1().DeepCopy()
	now.ConfigDebug, now.ClusterConfig = old.ConfigDebug, old.ClusterConfig
	if now.MachineConfig != nil && old.MachineConfig != nil {
		keepLive(now.MachineConfig, old.MachineConfig)
	}
	if reflect.DeepEqual(old, now) {
		return nil
	}
	diff, err := configdiff.DiffConfigs(container.NewV1Alpha1(old), container.NewV1Alpha1(now))
	if err != nil {
		return fmt.Errorf("error calculating diff: %w", err)
	}
	return fmt.Errorf("this config change can't be applied in immediate mode\ndiff:\n%s", diff)
}

// liveFields of the machine section are changed live.
func liveFields() []string {
	return []string{
		"MachineCA", "MachineAcceptedCAs", "MachineTime", "MachineCertSANs", "MachineInstall", "MachineNetwork", "MachineSysfs",
		"MachineSysctls", "MachineLogging", "MachineControlPlane", "MachineKubelet", "MachineKernel", "MachineRegistries",
		"MachinePods", "MachineSeccompProfiles", "MachineNodeAnnotations", "MachineNodeLabels", "MachineNodeTaints",
	}
}

// liveFeatures of the features section are changed live, where both configs have the section.
func liveFeatures() []string {
	return []string{
		"KubernetesTalosAPIAccessConfig", "KubePrismSupport", "HostDNSSupport", "ImageCacheSupport", "FeatureNodeAddressSortAlgorithm",
	}
}

func keepLive(now, old *v1alpha1.MachineConfig) {
	copyFields(now, old, liveFields())
	if now.MachineFeatures != nil && old.MachineFeatures != nil {
		copyFields(now.MachineFeatures, old.MachineFeatures, liveFeatures())
	}
}

// copyFields panics on a name that isn't a field, which the package's test would find.
func copyFields(to, from any, names []string) {
	t, f := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for _, name := range names {
		t.FieldByName(name).Set(f.FieldByName(name))
	}
}
