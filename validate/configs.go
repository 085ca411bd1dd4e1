package validate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// RuleConfig is the rule of a machine whose Talos config can't be made of its spec and patches.
const RuleConfig = "config"

// StandInContract is old enough for an elliptic service account key: an RSA one takes seconds to make. Which keys a config
// holds doesn't change whether it is valid.
const StandInContract = "v1.6"

// Rendering is what came of rendering the configs of a fleet.
type Rendering struct {
	Findings []Finding
	// Rendered is how many configs were checked, Distinct how many of them had to be rendered: machines that are alike share
	// one.
	Rendered, Distinct int
	// Sealed is how many were not checked because a patch of theirs is sealed and could not be opened.
	Sealed int
	// Opened are the clusters whose own secrets were used. For the others secrets were made up.
	Opened []string
}

// RenderConfigs renders the config of every machine as a first config would be, and has Talos's own code check it: with the
// cluster's own secrets where identities open them, else with secrets made up for it. What the rules report already (a
// cluster or a file that isn't there) is not reported again.
func RenderConfigs(fleet *schema.Fleet, identities *sealed.Identities) (Rendering, error) {
	standIn, err := talos.GenerateBundle(StandInContract)
	if err != nil {
		return Rendering{}, fmt.Errorf("making secrets to render configs with: %w", err)
	}
	c := &configs{fleet: fleet, identities: identities, standIn: standIn, tries: make([]renderTry, len(fleet.Machines))}
	c.renderAll()
	result := gather(fleet, c.tries)
	for _, cluster := range c.clusters {
		result.Distinct += cluster.distinct()
		result.Findings = append(result.Findings, cluster.findings...)
		if cluster.opened {
			result.Opened = append(result.Opened, cluster.spec.Metadata.Name)
		}
	}
	return result, nil
}

// configs is one RenderConfigs.
type configs struct {
	fleet      *schema.Fleet
	identities *sealed.Identities
	standIn    *talos.Bundle
	tries      []renderTry
	clusters   []*clusterConfigs
}

// clusterConfigs renders the configs of one cluster.
type clusterConfigs struct {
	spec *schema.TalosCluster

	once     sync.Once
	checker  *talos.Checker
	opened   bool
	findings []Finding

	// left is how many machines are still to be checked; what the checker keeps is let go with the last.
	mu       sync.Mutex
	left     int
	rendered int
}

// renderTry is how one rendering ended; with neither field set, the rules say why it could not begin.
type renderTry struct {
	rendered bool
	failed   *talos.RenderError
}

// errUnread marks the failure to read a file, which the rule file-exists reports.
var errUnread = errors.New("unread")

// renderAll checks the machines of one cluster after those of another, on all processors.
func (c *configs) renderAll() {
	byName := map[string]*clusterConfigs{}
	for _, cluster := range c.fleet.Clusters {
		if byName[cluster.Metadata.Name] == nil {
			byName[cluster.Metadata.Name] = &clusterConfigs{spec: cluster}
			c.clusters = append(c.clusters, byName[cluster.Metadata.Name])
		}
	}
	of := map[*clusterConfigs][]int{}
	for n, machine := range c.fleet.Machines {
		if cluster := byName[machine.Spec.ClusterRef.Name]; cluster != nil {
			of[cluster] = append(of[cluster], n)
			cluster.left++
		}
	}
	type task struct {
		cluster *clusterConfigs
		machine int
	}
	var group sync.WaitGroup
	next := make(chan task)
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for t := range next {
				c.tries[t.machine] = c.try(t.cluster, c.fleet.Machines[t.machine])
				t.cluster.done()
			}
		})
	}
	for _, cluster := range c.clusters {
		for _, n := range of[cluster] {
			next <- task{cluster, n}
		}
	}
	close(next)
	group.Wait()
}

func (c *configs) try(cluster *clusterConfigs, machine *schema.TalosMachine) renderTry {
	cluster.once.Do(func() { cluster.open(c) })
	err := cluster.checker.Check(machine)
	var failed *talos.RenderError
	if err == nil || errors.Is(err, errUnread) || !errors.As(err, &failed) {
		return renderTry{rendered: err == nil}
	}
	return renderTry{failed: failed}
}

// open takes the cluster's own secrets if they can be opened, and begins.
func (k *clusterConfigs) open(c *configs) {
	bundle := c.standIn
	own, err := ownBundle(c.fleet, k.spec, c.identities)
	switch {
	case err != nil:
		k.findings = append(k.findings, Finding{
			Rule: RuleConfig, Severity: Error, Position: k.spec.Source.At("spec.secrets.file"), Kind: schema.KindCluster,
			Name: k.spec.Metadata.Name, Cluster: k.spec.Metadata.Name, Message: err.Error(),
		})
	case own != nil:
		bundle, k.opened = own, true
	}
	k.checker = talos.NewChecker(k.spec, bundle, talos.RenderOptions{
		Identities: c.identities,
		Read: func(from string, ref schema.FileRef) (string, []byte, error) {
			name, data, err := c.fleet.ReadRef(from, ref)
			if err != nil {
				return name, nil, fmt.Errorf("%w: %w", errUnread, err)
			}
			return name, data, nil
		},
	})
}

// ownBundle gives the cluster's own secrets; none where nothing opens them. An error is of what was opened and is no bundle of
// this cluster.
func ownBundle(fleet *schema.Fleet, cluster *schema.TalosCluster, identities *sealed.Identities) (*talos.Bundle, error) {
	if identities.Len() == 0 {
		return nil, nil
	}
	name, data, err := fleet.ReadRef(cluster.Source.File, cluster.Spec.Secrets)
	if err != nil {
		return nil, nil // the rule file-exists says so
	}
	plain, _, err := identities.Open(name, data)
	if errors.Is(err, sealed.ErrOtherRecipients) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	bundle, err := talos.LoadBundle(plain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if id := schema.ClusterID(bundle.ClusterID()); id != cluster.Spec.ID {
		return nil, fmt.Errorf("%s holds the secrets of another cluster: their ID is %s and spec.id says %s; name the file that belongs to this cluster, or correct spec.id if the cluster never ran",
			name, id, cluster.Spec.ID)
	}
	return bundle, nil
}

// done counts one machine as checked.
func (k *clusterConfigs) done() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left--; k.left == 0 {
		k.rendered, k.checker = k.checker.Distinct(), nil
	}
}

func (k *clusterConfigs) distinct() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rendered
}

// maxNamed is how many machines a finding names; the others are counted.
const maxNamed = 3

// gather makes one finding of what several machines have in common: a patch for all of them fails on each.
func gather(fleet *schema.Fleet, tries []renderTry) Rendering {
	result := Rendering{}
	type cause struct {
		schema.Position
		cluster, message string
	}
	hit := map[cause][]string{}
	var causes []cause
	for n, try := range tries {
		switch machine := fleet.Machines[n]; {
		case try.rendered:
			result.Rendered++
		case try.failed == nil:
		case errors.Is(try.failed, sealed.ErrNoIdentity), errors.Is(try.failed, sealed.ErrOtherRecipients):
			result.Sealed++
		default:
			result.Rendered++
			why := strings.TrimPrefix(try.failed.Message, machine.Metadata.Name+": ")
			key := cause{try.failed.Position, machine.Spec.ClusterRef.Name, why}
			if hit[key] == nil {
				causes = append(causes, key)
			}
			hit[key] = append(hit[key], machine.Metadata.Name)
		}
	}
	for _, found := range causes {
		machines := hit[found]
		slices.Sort(machines)
		result.Findings = append(result.Findings, Finding{
			Rule: RuleConfig, Severity: Error, Position: found.Position, Kind: schema.KindMachine,
			Name: machines[0], Cluster: found.cluster,
			Message: fmt.Sprintf("no config can be made for %s: %s", someOf(machines), found.message),
		})
	}
	return result
}

// someOf names the first few and counts the rest.
func someOf(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	if len(names) == 1 {
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
