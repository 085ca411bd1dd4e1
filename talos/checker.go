package talos

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/labels"

	"ichor.maesh.dev/schema"
)

// What stands for a machine's own values where a config is rendered for all machines that are alike.
const (
	standInHost     = "machine.invalid"
	standInHostname = "stand-in-for-a-hostname"
	standInDisk     = "/dev/stand-in"
)

// Checker says whether configs can be rendered for the machines of one cluster. It renders once for all machines that are
// alike: of one role, with the same patches. What is a machine's own (address, hostname, install disk, labels, taints) is
// checked for each; where that, or the common part, is not in order, the machine's own config is rendered, so that the answer
// is always what Render would say. It may be used by several goroutines at once.
type Checker struct {
	cluster *schema.TalosCluster
	bundle  *Bundle
	options RenderOptions

	mu       sync.Mutex
	common   map[string]*checked // by what makes machines alike
	own      map[string]*checked // by all that a config depends on, but for the address
	rendered int
	// parsed are the cluster's patches, which most renderings share.
	parsed map[string]*loadedPatch
}

// checked is what came of one rendering.
type checked struct {
	once     sync.Once
	hostname string
	machine  *schema.TalosMachine
	err      error
}

// NewChecker makes a checker for the machines of a cluster.
func NewChecker(cluster *schema.TalosCluster, bundle *Bundle, options RenderOptions) *Checker {
	return &Checker{cluster: cluster, bundle: bundle, options: options,
		common: map[string]*checked{}, own: map[string]*checked{}, parsed: map[string]*loadedPatch{}}
}

// Distinct is how many configs were rendered so far.
func (c *Checker) Distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rendered
}

// Check gives the error that Render would give for the machine, or nil.
func (c *Checker) Check(machine *schema.TalosMachine) error {
	alike := likenessOf(machine)
	common := c.rendering(c.common, alike.key(machine), standInFor(machine))
	if common.err == nil {
		hostname := common.hostname
		if hostname == standInHostname {
			hostname = machine.Spec.Hostname
		}
		if hostnameProblem(machine, hostname) == nil && c.ownProblem(machine) == nil {
			return nil
		}
	}
	alike.Own = ownOf(machine)
	own := c.rendering(c.own, alike.key(machine), machine)
	err := own.err
	if err == nil {
		err = hostnameProblem(machine, own.hostname)
	}
	return c.failed(machine, own.machine, err)
}

// rendering renders a machine's config unless that was done for a machine like it.
func (c *Checker) rendering(known map[string]*checked, key string, machine *schema.TalosMachine) *checked {
	c.mu.Lock()
	found := known[key]
	if found == nil {
		found = &checked{machine: machine}
		known[key] = found
	}
	c.mu.Unlock()
	found.once.Do(func() {
		r := &renderer{cluster: c.cluster, machine: found.machine, bundle: c.bundle, options: c.options, shared: c}
		rendered, err := r.guarded(r.settle)
		if err != nil {
			found.err = err
			return
		}
		found.hostname = rendered.hostname
	})
	return found
}

// failed gives an error the machine it is of: what was found in the document of one that is like it stands in its own too.
func (c *Checker) failed(machine, found *schema.TalosMachine, err error) error {
	if err == nil {
		return nil
	}
	var placed *RenderError
	if errors.As(err, &placed) && placed.field != "" && placed.source == found.Source.Position {
		err = at(machine.Source, placed.field, placed.Err)
	}
	r := &renderer{cluster: c.cluster, machine: machine, bundle: c.bundle, options: c.options}
	return r.failure(err)
}

func (c *Checker) count() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rendered++
}

func (c *Checker) patch(field string) *loadedPatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parsed[field]
}

func (c *Checker) keep(field string, patch *loadedPatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parsed[field] = patch
}

// ownProblem checks what is a machine's own as the machinery would check it in the config.
func (c *Checker) ownProblem(machine *schema.TalosMachine) error {
	r := &renderer{cluster: c.cluster, machine: machine, bundle: c.bundle, options: c.options}
	alone := &v1alpha1.Config{MachineConfig: &v1alpha1.MachineConfig{}}
	if err := errors.Join(r.declareInstall(alone), r.declareNode(alone)); err != nil {
		return err
	}
	if err := labels.Validate(alone.MachineConfig.MachineNodeLabels); err != nil {
		return err
	}
	if err := labels.ValidateTaints(alone.MachineConfig.MachineNodeTaints); err != nil {
		return err
	}
	if machine.Spec.Hostname == "" {
		return nil
	}
	named := network.NewHostnameConfigV1Alpha1()
	named.ConfigHostname = machine.Spec.Hostname
	mode, err := platformMode(c.options.Platform)
	if err != nil {
		return err
	}
	_, err = named.Validate(mode)
	return err
}

// likeness is what decides, beside the cluster, whether a machine's config can be rendered.
type likeness struct {
	Role     schema.Role
	Patches  []schema.Patch
	Hostname bool
	Disk     bool
	Selector map[string]any
	Wipe     bool
	Own      *ownValues
}

// ownValues are what a machine alone has.
type ownValues struct {
	Machine  string
	Hostname string
	Labels   map[string]string
	Taints   []string
	Disk     string
}

// key is the same for machines that are alike. One that can't be compared is like no other.
func (l likeness) key(machine *schema.TalosMachine) string {
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Sprintf("%p", machine)
	}
	return string(text)
}

func likenessOf(machine *schema.TalosMachine) likeness {
	l := likeness{Role: machine.Spec.Role, Hostname: machine.Spec.Hostname != ""}
	for _, patch := range machine.Spec.Patches {
		if patch.File != "" && !path.IsAbs(patch.File) {
			patch.File = path.Join(path.Dir(machine.Source.File), patch.File)
		}
		l.Patches = append(l.Patches, patch)
	}
	if install := machine.Spec.Install; install != nil {
		l.Disk, l.Selector, l.Wipe = install.Disk != "", install.DiskSelector, install.Wipe
	}
	return l
}

func ownOf(machine *schema.TalosMachine) *ownValues {
	own := &ownValues{Hostname: machine.Spec.Hostname, Labels: machine.Spec.Labels, Taints: machine.Spec.Taints}
	if machine.Spec.Install != nil {
		own.Disk = machine.Spec.Install.Disk
	}
	for _, patch := range machine.Spec.Patches {
		if patch.Inline != nil {
			own.Machine = machine.Metadata.Name // what is wrong in it stands in this machine's document alone
		}
	}
	return own
}

// standInFor gives a machine that is like another in all but its own values.
func standInFor(machine *schema.TalosMachine) *schema.TalosMachine {
	like := *machine
	like.Spec.Endpoint, like.Spec.Labels, like.Spec.Taints = standInHost, nil, nil
	if like.Spec.Hostname != "" {
		like.Spec.Hostname = standInHostname
	}
	if install := machine.Spec.Install; install != nil {
		copied := *install
		if copied.Disk != "" {
			copied.Disk = standInDisk
		}
		like.Spec.Install = &copied
	}
	return &like
}
