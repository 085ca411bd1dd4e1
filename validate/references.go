package validate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"ichor.maesh.dev/schema"
)

// reference is one `file:` in the fleet: what self is in the scope file.
type reference struct {
	// Kind and Name are of the object that refers to the file.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Field is the path of the reference in it, File what stands there.
	Field string `json:"field"`
	File  string `json:"file"`
	// Problem is why the file can't be read, as a sentence; empty when it can.
	Problem string `json:"problem"`
}

// findReferences looks up every file that the fleet refers to. The same file is looked up once.
func findReferences(set *typeSet, f *schema.Fleet) []*object {
	var found []*object
	problems := map[[2]string]string{}
	add := func(kind string, k key, source *schema.Source, field, file string) {
		if file == "" {
			return
		}
		where := [2]string{path.Dir(source.File), file}
		problem, known := problems[where]
		if !known {
			problem = lookUp(f, source.File, file)
			problems[where] = problem
		}
		o := set.object(&reference{Kind: kind, Name: k.name, Field: field, File: file, Problem: problem})
		o.key, o.kind, o.source = k, kind, source
		found = append(found, o)
	}
	patches := func(kind string, k key, source *schema.Source, field string, patches []schema.Patch) {
		for i, p := range patches {
			add(kind, k, source, fmt.Sprintf("%s[%d].file", field, i), p.File)
		}
	}
	for _, c := range f.Clusters {
		k := key{c.Metadata.Name, c.Metadata.Name}
		add(schema.KindCluster, k, &c.Source, "spec.secrets.file", c.Spec.Secrets.File)
		patches(schema.KindCluster, k, &c.Source, "spec.patches.all", c.Spec.Patches.All)
		patches(schema.KindCluster, k, &c.Source, "spec.patches.controlPlane", c.Spec.Patches.ControlPlane)
		patches(schema.KindCluster, k, &c.Source, "spec.patches.worker", c.Spec.Patches.Worker)
	}
	for _, m := range f.Machines {
		patches(schema.KindMachine, key{m.Spec.ClusterRef.Name, m.Metadata.Name}, &m.Source, "spec.patches", m.Spec.Patches)
	}
	for _, b := range f.Backups {
		k := key{b.Spec.ClusterRef.Name, b.Metadata.Name}
		if s3 := b.Spec.Destination.S3; s3 != nil {
			if s3.Credentials != nil {
				add(schema.KindBackup, k, &b.Source, "spec.destination.s3.credentials.file", s3.Credentials.File)
			}
			if s3.CA != nil {
				add(schema.KindBackup, k, &b.Source, "spec.destination.s3.ca.file", s3.CA.File)
			}
		}
	}
	return found
}

// lookUp says why a file that an object refers to can't be read; empty when it can.
func lookUp(f *schema.Fleet, from, file string) string {
	name, _, err := f.ReadRef(from, schema.FileRef{File: file})
	switch {
	case err == nil:
		return ""
	case name != "" && errors.Is(err, fs.ErrNotExist):
		if meant := f.MeantRef(from, file); meant != "" {
			return fmt.Sprintf("there is no file %s; did you mean %q? a reference is relative to the file that it stands in", name, meant)
		}
		return fmt.Sprintf("there is no file %s; add it, or mend the reference", name)
	}
	if cause := errors.Unwrap(err); cause != nil {
		return cause.Error() // who refers to it is said already
	}
	return err.Error()
}
