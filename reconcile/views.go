package reconcile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// Comparer renders the config that each machine should run and compares it with those it has. What was computed for a
// revision and a machine is kept, because most passes ask the same again.
type Comparer struct {
	fleet      *schema.Fleet
	cluster    *schema.TalosCluster
	bundle     *talos.Bundle
	identities *sealed.Identities
	mark       string

	mu       sync.Mutex
	rendered map[renderKey]renderResult
	digests  map[[sha256.Size]byte]string
	views    map[viewKey]ConfigView
	// earlier is what was rendered for the revision before, if it was of the same cluster, and earlierDigests what was hashed then.
	earlier        map[renderKey]renderResult
	earlierDigests map[[sha256.Size]byte]string
}

type renderKey struct {
	machine string
	running talos.Versions
	marked  bool
}

// renderResult is a config, the machine that it was rendered for, and the files that it was rendered from.
type renderResult struct {
	config  *talos.Rendered
	err     error
	machine *schema.TalosMachine
	files   []renderedFile
}

type renderedFile struct {
	from string
	ref  schema.FileRef
	name string
	sum  [sha256.Size]byte
}

type viewKey struct{ machine, wanted, active, persistent string }

// NewComparer makes one for a cluster of a fleet, its bundle, and the mark that its managed machines bear.
func NewComparer(fleet *schema.Fleet, cluster *schema.TalosCluster, bundle *talos.Bundle, identities *sealed.Identities, mark string) *Comparer {
	return &Comparer{fleet: fleet, cluster: cluster, bundle: bundle, identities: identities, mark: mark,
		rendered: map[renderKey]renderResult{}, digests: map[[sha256.Size]byte]string{}, views: map[viewKey]ConfigView{}}
}

// follow takes over from the comparer of the revision before: what a commit doesn't touch is not rendered again.
func (c *Comparer) follow(before *Comparer) {
	before.mu.Lock()
	defer before.mu.Unlock()
	c.earlierDigests = maps.Clone(before.digests)
	if before.bundle == c.bundle && before.mark == c.mark && reflect.DeepEqual(before.cluster, c.cluster) {
		c.earlier = maps.Clone(before.rendered)
	}
}

// stands says whether a config of the revision before is the one that would be rendered for a machine now: it is made of the machine's
// document, the cluster's and the files that they name.
func (c *Comparer) stands(r renderResult, m *schema.TalosMachine) bool {
	return r.err == nil && reflect.DeepEqual(r.machine, m) && !slices.ContainsFunc(r.files, func(file renderedFile) bool {
		name, data, err := c.fleet.ReadRef(file.from, file.ref)
		return err != nil || name != file.name || sha256.Sum256(data) != file.sum
	})
}

// Render gives the config that a machine should run, with the versions that it runs.
func (c *Comparer) Render(m *schema.TalosMachine, active config.Provider, marked bool) (*talos.Rendered, error) {
	key := renderKey{machine: m.Metadata.Name, running: talos.VersionsOf(active), marked: marked}
	c.mu.Lock()
	known, ok := c.rendered[key]
	earlier, was := c.earlier[key]
	c.mu.Unlock()
	if ok {
		return known.config, known.err
	}
	result := renderResult{machine: m}
	if was && c.stands(earlier, m) {
		result.config, result.files = earlier.config, earlier.files
	} else {
		options := talos.RenderOptions{Identities: c.identities, Running: key.running}
		options.Read = func(from string, ref schema.FileRef) (string, []byte, error) {
			name, data, err := c.fleet.ReadRef(from, ref)
			if err == nil {
				result.files = append(result.files, renderedFile{from, ref, name, sha256.Sum256(data)})
			}
			return name, data, err
		}
		if marked {
			options.StateAnnotation = c.mark
		}
		result.config, result.err = talos.Render(c.cluster, m, c.bundle, options)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rendered[key] = result
	delete(c.earlier, key)
	return result.config, result.err
}

// seen is what is known of a machine by a look at it. One that isn't approved, or that Git doesn't have any more (m is nil), is compared with nothing,
// and may be removed all the same: whose it is counts.
func (c *Comparer) seen(m *schema.TalosMachine, o talos.Observation) Seen {
	if m == nil || o.Mode == talos.ModeUnknown || !m.Spec.Approved {
		return Seen{Observation: o, Config: ConfigView{Owner: talos.StateAnnotationOf(o.Active)}}
	}
	return Seen{Observation: o, Config: c.View(m, o)}
}

// View compares a machine with what it should run.
func (c *Comparer) View(m *schema.TalosMachine, o talos.Observation) ConfigView {
	var v ConfigView
	v.Owner = talos.StateAnnotationOf(o.Active)
	v.Active, v.Persistent = c.digest(o.Active), c.digest(o.Persistent)
	wanted, err := c.Render(m, o.Active, true)
	if err != nil {
		v.Problem = err.Error()
		return v
	}
	v.Wanted = wanted.Digest
	if o.Mode == talos.ModeMaintenance {
		v.Disk, v.DiskProblem = installDisk(m, wanted.Config, o.Disks)
		return v
	}
	v.Upgrade = strings.Join(wanted.Pending, "; ")
	if v.Active == "" || v.Active == v.Wanted {
		v.BareSame = v.Active == v.Wanted
		return v
	}
	key := viewKey{m.Metadata.Name, v.Wanted, v.Active, v.Persistent}
	c.mu.Lock()
	known, ok := c.views[key]
	c.mu.Unlock()
	if ok {
		return known
	}
	c.compare(&v, m, o, wanted)
	c.mu.Lock()
	c.views[key] = v
	c.mu.Unlock()
	return v
}

func (c *Comparer) compare(v *ConfigView, m *schema.TalosMachine, o talos.Observation, wanted *talos.Rendered) {
	var err error
	if v.Diff, err = talos.Diff(o.Active, wanted); err != nil {
		v.Problem = err.Error()
		return
	}
	needs, because, err := talos.NeedsReboot(o.Active, wanted.Config)
	if err != nil {
		v.Problem = err.Error()
		return
	}
	v.NeedsReboot, v.Why = needs, strings.Join(because, ", ")
	if v.BareSame, err = talos.Equal(o.Active, wanted.Config, true); err != nil {
		v.Problem = err.Error()
	}
}

// digest is talos.Digest, remembered by the config's bytes; empty when there is no config.
func (c *Comparer) digest(provider config.Provider) string {
	if provider == nil {
		return ""
	}
	text, err := provider.Bytes()
	if err != nil {
		return ""
	}
	key := sha256.Sum256(text)
	c.mu.Lock()
	digest := nameOr(c.digests[key], c.earlierDigests[key])
	c.mu.Unlock()
	if digest == "" {
		if digest, err = talos.Digest(provider); err != nil {
			return ""
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.digests[key] = digest
	delete(c.earlierDigests, key)
	return digest
}

var errNotSealed = errors.New("it is not sealed")

// OpenBundle opens a cluster's secrets bundle from the revision it is in.
func OpenBundle(fleet *schema.Fleet, cluster *schema.TalosCluster, identities *sealed.Identities) (*talos.Bundle, error) {
	name, data, err := fleet.ReadRef(cluster.Source.File, cluster.Spec.Secrets)
	if err != nil {
		return nil, err
	}
	plain, wasSealed, err := identities.Open(name, data)
	if err != nil {
		return nil, err
	}
	if !wasSealed {
		return nil, fmt.Errorf("%s can't be used: %w; seal it with ichor secrets seal and renew every secret in it", name, errNotSealed)
	}
	bundle, err := talos.LoadBundle(plain)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if id := schema.ClusterID(bundle.ClusterID()); id != cluster.Spec.ID {
		return nil, fmt.Errorf("%s is the bundle of cluster ID %s and spec.id is %s; put the right bundle back, or correct spec.id", name, id,
			cluster.Spec.ID)
	}
	return bundle, nil
}

// Observer looks at one machine, bounded by ctx; what can't be read is unknown.
type Observer interface {
	Observe(ctx context.Context, target talos.Target) talos.Observation
}

// lookedAtOnce is how many machines of one cluster are looked at side by side.
const lookedAtOnce = 64

// Observe looks at machines in parallel, each bounded by itself.
func Observe(ctx context.Context, nodes Observer, targets []talos.Target, timing Timing) map[string]talos.Observation {
	found := make(map[string]talos.Observation, len(targets))
	var mu sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, lookedAtOnce)
	for _, target := range targets {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			bounded, cancel := context.WithTimeout(ctx, timing.Observe)
			defer cancel()
			o := nodes.Observe(bounded, target)
			mu.Lock()
			defer mu.Unlock()
			found[target.Name] = o
		})
	}
	group.Wait()
	return found
}
