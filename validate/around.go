package validate

import (
	"io/fs"
	"path"

	"ichor.maesh.dev/schema"
)

// aroundFolders are the folders whose documents speak of clusters that stand elsewhere.
var aroundFolders = []string{"policies", "operations"}

// Around gives the folders that a part of a repository is to be judged with: policies/ and operations/ of the nearest folder above it
// that has one of them. It gives none for a part that has one of its own.
func Around(tree fs.FS, part string) []string {
	info, err := lstat(tree, part)
	if err != nil || !info.IsDir() || len(foldersOf(tree, part)) > 0 {
		return nil // what a lone file says of its cluster is not enough to judge an operation on it
	}
	for part != "." {
		part = path.Dir(part)
		if found := foldersOf(tree, part); len(found) > 0 {
			return found
		}
	}
	return nil
}

func foldersOf(tree fs.FS, folder string) []string {
	var found []string
	for _, name := range aroundFolders {
		if info, err := lstat(tree, path.Join(folder, name)); err == nil && info.IsDir() {
			found = append(found, path.Join(folder, name))
		}
	}
	return found
}

// TrimAround leaves of what was read from the folders around a part of a repository what speaks of that part: policies, and operations on
// its clusters. A folder that holds none of Ichor's documents is taken for someone else's.
func TrimAround(fleet *schema.Fleet, problems []schema.Problem, around []string) (*schema.Fleet, []schema.Problem) {
	if len(around) == 0 {
		return fleet, problems
	}
	trim := &trimming{around: around, ours: map[string]bool{}}
	trimmed := *fleet
	for _, p := range fleet.Policies {
		trim.isOurs(p.Source.File)
	}
	for _, op := range fleet.Operations {
		trim.isOurs(op.Source.File)
	}
	for _, b := range fleet.Broken {
		trim.isOurs(b.File)
	}
	trimmed.Operations, trimmed.Broken = nil, nil
	for _, op := range fleet.Operations {
		if trim.folder(op.Source.File) == "" || fleet.ClusterFor(op.Source.File, op.Spec.ClusterRef.Name) != "" {
			trimmed.Operations = append(trimmed.Operations, op)
		}
	}
	for _, b := range fleet.Broken {
		if trim.concerns(b.File, b.Kind, b.Cluster) {
			trimmed.Broken = append(trimmed.Broken, b)
		}
	}
	var left []schema.Problem
	for _, p := range problems {
		if trim.concerns(p.File, p.Kind, p.Cluster) {
			left = append(left, p)
		}
	}
	return &trimmed, left
}

type trimming struct {
	around []string
	ours   map[string]bool // the folders that hold documents of Ichor's
}

// folder gives the folder around that a file stands in; empty when it stands in the part itself.
func (t *trimming) folder(file string) string {
	for _, folder := range t.around {
		if len(file) > len(folder) && file[:len(folder)] == folder && file[len(folder)] == '/' {
			return folder
		}
	}
	return ""
}

func (t *trimming) isOurs(file string) {
	if folder := t.folder(file); folder != "" {
		t.ours[folder] = true
	}
}

// concerns says whether what is wrong in a file concerns the part: a policy does, what belongs to one of its clusters does, and so does
// what can't be told.
func (t *trimming) concerns(file, kind, cluster string) bool {
	folder := t.folder(file)
	switch {
	case folder == "":
		return true
	case !t.ours[folder]:
		return false
	}
	return kind != schema.KindOperation || cluster != ""
}
