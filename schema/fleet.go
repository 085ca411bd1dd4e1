package schema

import (
	"io/fs"
	"path"
)

// Fleet is what one revision of a repository wants: all objects under the roots, in the order of their files.
type Fleet struct {
	Clusters   []*TalosCluster
	Machines   []*TalosMachine
	Backups    []*TalosEtcdBackup
	Operations []*TalosOperation
	Policies   []*Policy
	// PolicyTests are no part of what the fleet wants.
	PolicyTests []*PolicyTest
	// Tree is what the fleet was read from. References (file: ...) are opened in it.
	Tree fs.FS
	// Files is how many YAML files were read.
	Files int
	// Broken names the objects that stand in the files and could not be read. They are not gone: what compares two fleets
	// must not take them for deleted.
	Broken []Broken
	// seats are the folders in which TalosClusters stand, readable or not, with their names.
	seats map[string][]string
}

// Broken is an object that could not be read, as far as it could be made out.
type Broken struct {
	Position
	Kind, Name, Cluster string
}

// Problem is something that can't be read as it stands.
type Problem struct {
	Position
	// Kind, Name and Cluster are of the object it belongs to, as far as they could be made out. Cluster falls back to the
	// nearest TalosCluster up the path; empty when the problem belongs to none, and then it stops all.
	Kind, Name, Cluster string
	Message             string
}

// Cluster gives the cluster with that name, or nil.
func (f *Fleet) Cluster(name string) *TalosCluster {
	for _, c := range f.Clusters {
		if c.Metadata.Name == name {
			return c
		}
	}
	return nil
}

// MachinesOf gives the machines of a cluster in the order of their files.
func (f *Fleet) MachinesOf(cluster string) []*TalosMachine {
	var machines []*TalosMachine
	for _, m := range f.Machines {
		if m.Spec.ClusterRef.Name == cluster {
			machines = append(machines, m)
		}
	}
	return machines
}

// ClusterFor says to which cluster something in a file belongs: the one that clusterRef names if there is such a
// cluster, else that of the nearest TalosCluster up the path. It gives "" when there is none, or when several stand
// equally near; what belongs to none stops all.
func (f *Fleet) ClusterFor(file, clusterRef string) string {
	if clusterRef != "" && f.hasSeat(clusterRef) {
		return clusterRef
	}
	seats := f.seatsByFolder()
	for folder := path.Dir(file); ; folder = path.Dir(folder) {
		if names := seats[folder]; len(names) == 1 {
			return names[0]
		} else if len(names) > 1 || folder == "." || folder == "/" {
			return ""
		}
	}
}

// seatsByFolder gives the folders of the TalosClusters. A fleet that Load didn't make has those of its clusters.
func (f *Fleet) seatsByFolder() map[string][]string {
	if f.seats != nil {
		return f.seats
	}
	seats := map[string][]string{}
	for _, c := range f.Clusters {
		folder := path.Dir(c.Source.File)
		seats[folder] = append(seats[folder], c.Metadata.Name)
	}
	return seats
}

// hasSeat says whether a TalosCluster of that name stands somewhere, readable or not.
func (f *Fleet) hasSeat(name string) bool {
	for _, names := range f.seatsByFolder() {
		for _, n := range names {
			if n == name {
				return true
			}
		}
	}
	return false
}

// owner gives the cluster of a document. A cluster belongs to itself; one whose name can't be one belongs to none, since
// nobody knows which it was. A policy speaks of all clusters, wherever it stands, and belongs to none.
func (f *Fleet) owner(file string, id identity) string {
	if id.kind == KindPolicy {
		return ""
	}
	if id.kind == KindCluster {
		if f.hasSeat(id.name) {
			return id.name
		}
		return ""
	}
	return f.ClusterFor(file, id.clusterRef)
}
