package world

import (
	"sort"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"k8s.io/utils/clock"
)

// discoveryTTL is how long the discovery service keeps an entry that isn't renewed
// (Talos: internal/app/machined/pkg/controllers/cluster/discovery_service.go).
const discoveryTTL = 30 * time.Minute

// Discovery is the discovery service: what the machines of a cluster tell about themselves.
type Discovery struct {
	clk   clock.WithTicker
	scale float64

	mu       sync.Mutex
	clusters map[string]map[string]*entry
}

type entry struct {
	spec    cluster.AffiliateSpec
	expires time.Time
}

// Publish tells about one machine, or renews what was told.
func (d *Discovery) Publish(clusterID string, spec cluster.AffiliateSpec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.clusters[clusterID] == nil {
		d.clusters[clusterID] = map[string]*entry{}
	}
	d.clusters[clusterID][spec.NodeID] = &entry{spec: spec.DeepCopy(), expires: d.clk.Now().Add(time.Duration(float64(discoveryTTL) / d.scale))}
}

// Delete forgets one machine, as a machine asks for that is being reset.
func (d *Discovery) Delete(clusterID, nodeID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.clusters[clusterID], nodeID)
}

// List returns what is known about a cluster's machines, by node ID.
func (d *Discovery) List(clusterID string) []cluster.AffiliateSpec {
	d.mu.Lock()
	defer d.mu.Unlock()
	var specs []cluster.AffiliateSpec
	for id, e := range d.clusters[clusterID] {
		if d.clk.Now().After(e.expires) {
			delete(d.clusters[clusterID], id)
			continue
		}
		specs = append(specs, e.spec.DeepCopy())
	}
	sort.Slice(specs, func(i, j int) bool { return specs[i].NodeID < specs[j].NodeID })
	return specs
}
