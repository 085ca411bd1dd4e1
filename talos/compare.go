package talos

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// Equal says whether two configs say the same. With ignoreAnnotation Ichor's own mark on the node does not count: that is
// how a machine which Ichor did not configure is compared.
func Equal(a, b config.Provider, ignoreAnnotation bool) (bool, error) {
	if a == nil || b == nil {
		return a == nil && b == nil, nil
	}
	if ignoreAnnotation {
		a, b = withoutAnnotation(a), withoutAnnotation(b)
	}
	left, err := canonical(a)
	if err != nil {
		return false, err
	}
	right, err := canonical(b)
	if err != nil {
		return false, err
	}
	return string(left) == string(right), nil
}

// StateAnnotationOf gives the mark that says from where a machine is managed; empty when there is none.
func StateAnnotationOf(provider config.Provider) string {
	if provider == nil || provider.RawV1Alpha1() == nil || provider.RawV1Alpha1().MachineConfig == nil {
		return ""
	}
	return provider.RawV1Alpha1().MachineConfig.MachineNodeAnnotations[AnnotationState]
}

func withoutAnnotation(provider config.Provider) config.Provider {
	if StateAnnotationOf(provider) == "" {
		return provider
	}
	stripped, err := provider.PatchV1Alpha1(func(c *v1alpha1.Config) error {
		annotations := maps.Clone(c.MachineConfig.MachineNodeAnnotations)
		delete(annotations, AnnotationState)
		if len(annotations) == 0 {
			annotations = nil
		}
		c.MachineConfig.MachineNodeAnnotations = annotations
		return nil
	})
	if err != nil {
		return provider
	}
	return stripped
}

// liveMachine and liveFeatures are the fields that Talos applies without a reboot (docs/talos.md). All of cluster,
// debug, and every other kind of document are live too. What is not named here needs a reboot, as it does for Talos.
var (
	liveMachine = []string{
		"ca", "acceptedCAs", "time", "certSANs", "install", "network", "sysfs", "sysctls", "logging", "controlPlane", "kubelet",
		"kernel", "registries", "pods", "seccompProfiles", "nodeAnnotations", "nodeLabels", "nodeTaints",
	}
	liveFeatures = []string{"kubernetesTalosAPIAccess", "kubePrism", "hostDNS", "imageCache", "nodeAddressSortAlgorithm"}
)

// NeedsReboot says whether going from active to wanted needs a reboot, by Talos's own rule, and because of which fields.
func NeedsReboot(active, wanted config.Provider) (bool, []string, error) {
	before, err := fieldsOf(active)
	if err != nil {
		return false, nil, err
	}
	after, err := fieldsOf(wanted)
	if err != nil {
		return false, nil, err
	}
	because := changed(before, after, []string{"debug", "cluster", "machine"})
	machineBefore, machineAfter := nested(before, "machine"), nested(after, "machine")
	for _, key := range changed(machineBefore, machineAfter, append(slices.Clone(liveMachine), "features")) {
		because = append(because, "machine."+key)
	}
	_, had := machineBefore["features"]
	_, has := machineAfter["features"]
	if had != has {
		because = append(because, "machine.features")
	} else {
		for _, key := range changed(nested(machineBefore, "features"), nested(machineAfter, "features"), liveFeatures) {
			because = append(because, "machine.features."+key)
		}
	}
	slices.Sort(because)
	return len(because) > 0, because, nil
}

// fieldsOf gives the machine config document as nested maps.
func fieldsOf(provider config.Provider) (map[string]any, error) {
	if provider == nil || provider.RawV1Alpha1() == nil {
		return nil, errors.New("there is no machine config to compare")
	}
	text, err := encoder.NewEncoder(provider.RawV1Alpha1(), encoder.WithComments(encoder.CommentsDisabled)).Encode()
	if err != nil {
		return nil, errors.New("the config can't be encoded")
	}
	fields := map[string]any{}
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, errors.New("the config can't be read back")
	}
	return fields, nil
}

func nested(fields map[string]any, key string) map[string]any {
	inner, _ := fields[key].(map[string]any)
	return inner
}

// changed lists the keys whose values differ, but for those in live.
func changed(before, after map[string]any, live []string) []string {
	keys := map[string]bool{}
	for key := range before {
		keys[key] = true
	}
	for key := range after {
		keys[key] = true
	}
	var found []string
	for key := range keys {
		if !slices.Contains(live, key) && !reflect.DeepEqual(before[key], after[key]) {
			found = append(found, key)
		}
	}
	slices.SortFunc(found, strings.Compare)
	return found
}
