package talos

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"

	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/schema"
)

// maxPatch bounds one patch file.
const maxPatch = 4 << 20

// at puts the position of a field to an error.
func at(source schema.Source, field string, err error) error {
	if err == nil {
		return nil
	}
	return &RenderError{Position: positionOf(source, field), Message: field + ": " + err.Error(), Err: err, source: source.Position, field: field}
}

// positionOf gives the position of a field, else of the nearest field around it.
func positionOf(source schema.Source, field string) schema.Position {
	for field != "" {
		if position, ok := source.Fields[field]; ok {
			if position.File == "" {
				position.File = source.File
			}
			return position
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return source.Position
}

// failure gives every error of a rendering its machine, a position and a text without secrets.
func (r *renderer) failure(err error) error {
	failed := &RenderError{Position: r.machine.Source.Position, Message: err.Error(), Err: err}
	var placed *RenderError
	if errors.As(err, &placed) {
		failed.Position, failed.Message = placed.Position, placed.Message
	}
	failed.Machine = r.machine.Metadata.Name
	scrubber := scrub.New(r.bundle.Scalars()...)
	scrubber.Add(r.options.Identities.Values()...)
	failed.Message = fmt.Sprintf("%s: %s", failed.Machine, scrubber.Text(failed.Message))
	return failed
}

// loadedPatch is a patch that was read.
type loadedPatch struct {
	// name is the file that it stands in; inline says where an inline one stands there.
	name   string
	inline *inlinePatch
	text   []byte
	sealed bool
	nodes  []*yaml.Node
}

// patches loads the patches of the machine in their order: all, role, machine.
func (r *renderer) patches() ([]*loadedPatch, error) {
	patches := r.cluster.Spec.Patches
	role, roleField := patches.Worker, "spec.patches.worker"
	if r.machine.Spec.Role == schema.RoleControlPlane {
		role, roleField = patches.ControlPlane, "spec.patches.controlPlane"
	}
	var all []*loadedPatch
	for _, group := range []struct {
		source  schema.Source
		field   string
		patches []schema.Patch
	}{
		{r.cluster.Source, "spec.patches.all", patches.All},
		{r.cluster.Source, roleField, role},
		{r.machine.Source, "spec.patches", r.machine.Spec.Patches},
	} {
		for n, one := range group.patches {
			loaded, err := r.loadOnce(group.source, fmt.Sprintf("%s[%d]", group.field, n), one)
			if err != nil {
				return nil, err
			}
			all = append(all, loaded)
		}
	}
	return all, nil
}

// lay lays patches over the config.
func (r *renderer) lay(provider config.Provider, patches []*loadedPatch) (config.Provider, error) {
	for _, patch := range patches {
		patched, err := r.apply(provider, patch)
		if err != nil {
			return nil, err
		}
		provider = patched
	}
	return provider, nil
}

// loadOnce is load, but for the cluster's patches where several renderings share them.
func (r *renderer) loadOnce(source schema.Source, field string, one schema.Patch) (*loadedPatch, error) {
	if r.shared == nil || source.Position != r.cluster.Source.Position {
		return r.load(source, field, one)
	}
	if known := r.shared.patch(field); known != nil {
		return known, nil
	}
	loaded, err := r.load(source, field, one)
	if err == nil {
		r.shared.keep(field, loaded)
	}
	return loaded, err
}

func (r *renderer) load(source schema.Source, field string, one schema.Patch) (*loadedPatch, error) {
	switch {
	case one.File != "" && one.Inline != nil:
		return nil, at(source, field, errors.New("file and inline exclude each other; keep one"))
	case one.Inline != nil:
		text, err := yaml.Marshal(one.Inline)
		if err != nil {
			return nil, at(source, field, errors.New("the inline patch can't be written as YAML"))
		}
		position := positionOf(source, field+".inline")
		return parsePatch(&loadedPatch{name: position.File, inline: &inlinePatch{at: position, source: source, read: r.options.Read}, text: text})
	case one.File == "":
		return nil, at(source, field, errors.New("a patch needs a file or an inline document"))
	case r.options.Read == nil:
		return nil, at(source, field, errors.New("there is no repository to read the file from"))
	}
	name, data, err := r.options.Read(source.File, schema.FileRef{File: one.File})
	if err != nil {
		return nil, at(source, field, err)
	}
	plain, wasSealed, err := r.options.Identities.Open(name, data)
	if err != nil {
		return nil, at(source, field, err)
	}
	return parsePatch(&loadedPatch{name: name, text: plain, sealed: wasSealed})
}

// parsePatch reads the YAML and refuses what no patch may be.
func parsePatch(patch *loadedPatch) (*loadedPatch, error) {
	if len(patch.text) > maxPatch {
		return nil, patch.problem(spot{}, fmt.Errorf("the patch has more than %d MiB", maxPatch>>20))
	}
	var err error
	if patch.nodes, err = yamlDocuments(patch.text); err != nil {
		said := fmt.Errorf("the patch is not YAML: %s", strings.TrimPrefix(oneSentence(err), "yaml: "))
		return nil, patch.problem(spot{line: lineIn(err.Error())}, patch.words(said, "the patch is not YAML"))
	}
	for _, document := range patch.nodes {
		root := content(document)
		if root == nil {
			continue
		}
		if root.Kind == yaml.SequenceNode {
			return nil, patch.problem(spotOf(root), listProblem(patch, root))
		}
		if err := ownedProblem(patch, document); err != nil {
			return nil, err
		}
	}
	return patch, nil
}

// yamlDocuments parses a text.
func yamlDocuments(text []byte) ([]*yaml.Node, error) {
	var documents []*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		document := &yaml.Node{}
		err := decoder.Decode(document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, err
		}
		documents = append(documents, document)
	}
}

func content(document *yaml.Node) *yaml.Node {
	if document.Kind != yaml.DocumentNode || len(document.Content) == 0 {
		return nil
	}
	return document.Content[0]
}

// words gives the parser's or patcher's own words, but not of a sealed patch: they may quote it.
func (p *loadedPatch) words(err error, instead string) error {
	if p.sealed {
		return fmt.Errorf("%s (what exactly is not said because the file is sealed; 'age -d -i IDENTITY %s' shows it to you)", instead, path.Base(p.name))
	}
	return err
}

func (r *renderer) apply(provider config.Provider, patch *loadedPatch) (config.Provider, error) {
	// Read anew for each rendering: merging may keep parts of the patch in its result.
	loaded, err := configloader.NewFromBytes(patch.text, configloader.WithAllowPatchDelete())
	if errors.Is(err, configloader.ErrNoConfig) {
		return provider, nil // an empty file, or comments only
	}
	if err != nil {
		where, said := loaderProblem(patch, err)
		return nil, patch.problem(where, patch.words(fmt.Errorf("the patch is no Talos config: %s", said),
			"the patch is no Talos config: an unknown or misspelt field, or a wrong type"))
	}
	if err := r.nothingToDelete(provider, loaded, patch); err != nil {
		return nil, err
	}
	patched, err := configpatcher.StrategicMerge(provider, configpatcher.NewStrategicMergePatch(loaded))
	if err != nil {
		where, said := mergeProblem(patch, err)
		return nil, patch.problem(where, patch.words(errors.New(said), "the patch can't be applied"))
	}
	if patch.sealed {
		for _, document := range patch.nodes {
			r.hidden.add(document)
		}
	}
	return patched, nil
}

var deletedPath = regexp.MustCompile(`failed to delete path '([^']*)'`)

// mergeProblem says in plain words, and where, why a patch can't be laid over the config.
func mergeProblem(patch *loadedPatch, err error) (spot, string) {
	if match := deletedPath.FindStringSubmatch(err.Error()); match != nil && errors.Is(err, configloader.ErrLookupFailed) {
		return patch.fieldSpot(match[1]), fmt.Sprintf("the patch deletes %s, which the config doesn't have; take the '$patch: delete' out", match[1])
	}
	return patch.spotOfValue(err.Error()), fmt.Sprintf("the patch can't be applied: %s", oneSentence(err))
}

// nothingToDelete refuses to delete in a document that the config doesn't have: the machinery would add the deletion itself
// to the config, as if it were a document.
func (r *renderer) nothingToDelete(provider, loaded config.Provider, patch *loadedPatch) error {
	have := map[string]bool{}
	for _, document := range provider.Documents() {
		have[documentID(document)] = true
	}
	for _, document := range loaded.Documents() {
		_, isDeletion := document.(configloader.Selector)
		id := documentID(document)
		if !isDeletion {
			have[id] = true
			continue
		}
		if id == v1alpha1.Version || have[id] {
			continue
		}
		return patch.problem(patch.documentSpot(id), fmt.Errorf("the patch deletes from %s, and the config has no such document (contract %s doesn't generate it); take the '$patch: delete' out",
			id, r.cluster.Spec.ContractVersion()))
	}
	return nil
}

// documentSpot gives the place of the document with that ID.
func (p *loadedPatch) documentSpot(id string) spot {
	for _, document := range p.nodes {
		if root := content(document); root != nil && yamlID(root) == id {
			return spotOf(root)
		}
	}
	return p.firstSpot()
}
