package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"ichor.maesh.dev/internal/scaffold"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

// writeFleet writes everything beside its place, checks it there, and moves it. It gives what it wrote. What fails leaves
// nothing.
func (a *app) writeFleet(ctx context.Context, f *initFlags, dir string, keys *initKeys, files map[string][]byte) (written []string, err error) {
	undo := &undoing{}
	defer func() {
		if err != nil {
			undo.run()
		}
	}()
	if err := undo.makeFolder(filepath.Join(dir, "clusters")); err != nil {
		return nil, notWritten(err)
	}
	staging, err := os.MkdirTemp(dir, ".ichor-init-") // begins with a dot, so nothing reads it as documents
	if err != nil {
		return nil, notWritten(err)
	}
	defer func() { _ = os.RemoveAll(staging) }()
	staged := filepath.Join(staging, "clusters", f.cluster)
	for name, data := range files {
		if err := writeNew(filepath.Join(staged, filepath.FromSlash(name)), data, 0o644); err != nil {
			return nil, notWritten(err)
		}
	}
	if err := checkFleet(staging); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, cannot(fmt.Errorf("it was stopped: %w", err), "nothing was written")
	}
	if written, err = a.writeBeside(undo, f, dir, keys); err != nil {
		return nil, notWritten(err)
	}
	place := filepath.Join(dir, "clusters", f.cluster)
	// A rename onto a folder that came to be meanwhile fails, unless it is empty.
	if err := os.Rename(staged, place); err != nil {
		return nil, notWritten(err)
	}
	for name := range files {
		written = append(written, filepath.Join(place, filepath.FromSlash(name)))
	}
	slices.Sort(written)
	return written, nil
}

func notWritten(err error) error { return cannot(fmt.Errorf("writing the repository: %w", err), "") }

// writeBeside writes what stands outside of the cluster's folder: the identity, and what a repository has once.
func (a *app) writeBeside(undo *undoing, f *initFlags, dir string, keys *initKeys) ([]string, error) {
	var written []string
	if keys.identity != nil {
		if err := undo.makeFolder(filepath.Dir(keys.out)); err != nil {
			return nil, err
		}
		if err := undo.write(keys.out, keys.identity, 0o600); err != nil {
			return nil, err
		}
		written = append(written, keys.out)
	}
	common, err := commonFiles(f, keys)
	if err != nil {
		return nil, err
	}
	for _, file := range common {
		name := filepath.Join(dir, filepath.FromSlash(file.name))
		if err := undo.makeFolder(filepath.Dir(name)); err != nil {
			return nil, err
		}
		err := undo.write(name, file.data, 0o644)
		switch {
		case errors.Is(err, fs.ErrExist):
			fmt.Fprintf(a.err, "%s is there already and stays as it is\n", a.clean(name))
		case err != nil:
			return nil, err
		default:
			written = append(written, name)
		}
	}
	return written, nil
}

// checkFleet validates what was written, as ichor validate would.
func checkFleet(dir string) error {
	engine, err := validate.New()
	if err != nil {
		return cannot(err, "this is a fault of ichor itself; please report it")
	}
	fleet, problems := schema.Load(os.DirFS(dir), []string{"."})
	findings := append(validate.FromProblems(problems), engine.Check(nil, fleet, validate.WithProblems(problems))...)
	for _, finding := range findings {
		if finding.Severity == validate.Error {
			return usageError(fmt.Errorf("what would be written is not valid: %s: %s", finding.File, finding.Message), "correct the flags; nothing was written")
		}
	}
	return nil
}

type initFile struct {
	name string
	data []byte
}

// commonFiles are those that a repository has once.
func commonFiles(f *initFlags, keys *initKeys) ([]initFile, error) {
	identity := "FILE"
	if keys.out != "" {
		identity = filepath.Base(keys.out)
	}
	systems, err := f.workflows()
	if err != nil {
		return nil, err
	}
	readme, err := scaffold.Readme(f.cluster, identity, systems)
	if err != nil {
		return nil, err
	}
	release := readVersion().Version
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?$`).MatchString(release) {
		release = "latest"
	}
	files := []initFile{{"README.md", readme}}
	for _, system := range systems {
		workflow, err := system.Workflow(release)
		if err != nil {
			return nil, err
		}
		files = append(files, initFile{system.File(), workflow})
	}
	return files, nil
}

// undoing remembers what was made, to take it away again.
type undoing struct{ made []string }

func (u *undoing) run() {
	for _, name := range slices.Backward(u.made) {
		_ = os.Remove(name) // a folder goes only if it is empty
	}
}

func (u *undoing) write(name string, data []byte, mode fs.FileMode) error {
	if _, err := os.Lstat(name); err == nil {
		return &fs.PathError{Op: "write", Path: name, Err: fs.ErrExist}
	}
	err := writeNew(name, data, mode)
	if !errors.Is(err, fs.ErrExist) { // who made it meanwhile keeps it
		u.made = append(u.made, name)
	}
	return err
}

// makeFolder makes a folder and those above it.
func (u *undoing) makeFolder(name string) error {
	if info, err := os.Stat(name); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is a file and not a folder", name)
		}
		return nil
	}
	if err := u.makeFolder(filepath.Dir(name)); err != nil {
		return err
	}
	if err := os.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	u.made = append(u.made, name)
	return nil
}

// writeNew writes a file that isn't there yet, whole.
func writeNew(name string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		_ = file.Close()
		_ = os.Remove(name)
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
