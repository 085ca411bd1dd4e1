package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/term"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// openCluster gives a cluster of a checkout and its secrets bundle, which must be the cluster's own.
func (a *app) openCluster(folder, name string, files []string) (*schema.Fleet, *schema.TalosCluster, *talos.Bundle, error) {
	identities, err := sealed.LoadIdentities(files...)
	if err != nil {
		return nil, nil, nil, cannot(err, "")
	}
	fleet, _ := loadTree(folder)
	cluster := fleet.Cluster(name)
	if cluster == nil {
		return nil, nil, nil, cannot(fmt.Errorf("%s holds no TalosCluster %s that can be read", folder, a.clean(name)), "name a checkout with --fleet; 'ichor validate' says what can't be read")
	}
	bundle, err := bundleFromCheckout(folder, name, identities)
	if err != nil {
		return nil, nil, nil, cannot(err, "")
	}
	if id := schema.ClusterID(bundle.ClusterID()); id != cluster.Spec.ID {
		return nil, nil, nil, answerNo(fmt.Errorf("the bundle is of cluster %s, and %s says spec.id: %s", id, cluster.Source.File, a.clean(cluster.Spec.ID)), "put the bundle of this cluster there, or correct spec.id")
	}
	return fleet, cluster, bundle, nil
}

// credential is a text that holds a key, and where it goes.
type credential struct {
	out, what, cluster string
	life               time.Duration
	text               []byte
	// replaces says whether an older file may be replaced: it is of the same kind, and of the cluster alone. merge says what to
	// do where it may not.
	replaces func(old []byte, cluster string) bool
	merge    string
}

// keyNeedsFile refuses to print a key to a terminal, before anything is asked or opened.
func (a *app) keyNeedsFile(out, what string) error {
	if out == "" && a.printsToTerminal() {
		return usageError(fmt.Errorf("a %s holds a key, and keys are not printed to a terminal", what), "give --out FILE")
	}
	return nil
}

func (a *app) printsToTerminal() bool {
	file, ok := a.out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// writeCredential prints it, or replaces an older one of the same cluster, and no other file.
func (a *app) writeCredential(c credential) error {
	if c.out == "" {
		_, err := a.out.Write(c.text)
		return err
	}
	old, err := readAtMost(c.out, maxSecretFile) // a pipe would be waited for
	if err == nil && !c.replaces(old, c.cluster) {
		return answerNo(fmt.Errorf("%s exists and is not a %s of %s alone", c.out, c.what, a.clean(c.cluster)), "write to another file, and "+c.merge)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return cannot(fmt.Errorf("what stands in %s can't be read: %w", c.out, err), "write to another file")
	}
	if err := writeWhole(c.out, c.text, 0o600, err == nil); err != nil {
		return cannot(fmt.Errorf("writing %s: %w", c.out, err), "")
	}
	if full, err := filepath.Abs(c.out); err == nil {
		if checkout, err := gitsource.OpenCheckout(filepath.Dir(full)); err == nil && within(checkout.Dir, full) {
			fmt.Fprintf(a.err, "%s is in the repository %s and holds a key: don't commit it\n", a.clean(c.out), a.clean(checkout.Dir))
		}
	}
	fmt.Fprintf(a.err, "%s serves until %s\n", a.clean(c.out), a.clock.Now().Add(c.life).UTC().Format(time.RFC3339))
	return nil
}
