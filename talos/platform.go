package talos

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v4"

	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
)

// platform is what the machinery's validator wants to know of where a config is to run.
type platform struct {
	name               string
	install, container bool
}

func (p platform) String() string        { return p.name }
func (p platform) RequiresInstall() bool { return p.install }
func (p platform) InContainer() bool     { return p.container }

func platformMode(name string) (validation.RuntimeMode, error) {
	switch name {
	case "", "metal":
		return platform{"metal", true, false}, nil
	case "cloud":
		return platform{"cloud", false, false}, nil
	case "container":
		return platform{"container", false, true}, nil
	}
	return nil, fmt.Errorf("platform %q is not known; want metal, cloud or container", name)
}

// diskSelector reads Talos's own form of an install disk selector, strictly.
func diskSelector(fields map[string]any) (*v1alpha1.InstallDiskSelector, error) {
	text, err := yaml.Marshal(fields)
	if err != nil {
		return nil, errors.New("it can't be written as YAML")
	}
	selector := &v1alpha1.InstallDiskSelector{}
	known := map[string]bool{"size": true, "name": true, "model": true, "serial": true, "modalias": true, "uuid": true, "wwid": true, "type": true, "busPath": true}
	for field := range fields {
		if !known[field] {
			return nil, fmt.Errorf("field %q is not known; want size, name, model, serial, modalias, uuid, wwid, type or busPath", field)
		}
	}
	if err := yaml.Unmarshal(text, selector); err != nil {
		return nil, fmt.Errorf("it is not in Talos's form: %w", err)
	}
	return selector, nil
}
