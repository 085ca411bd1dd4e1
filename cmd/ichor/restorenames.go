package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

// known refuses a name that --wipe mistyped, and gives sentences on those that --without names and nobody bears: what was meant would be
// recovered on. That may also be one that Git has no more, as in the command that an agent prints, so that it is no error.
func (f *restoreFlags) known(machines []recovery.Machine) (notes []string, err error) {
	is := func(name string) func(recovery.Machine) bool {
		return func(m recovery.Machine) bool { return m.Name == name }
	}
	for _, name := range f.wipe {
		if !slices.ContainsFunc(machines, is(name)) || slices.Contains(f.without, name) {
			return nil, usageError(fmt.Errorf("--wipe %s names none of the control planes", name), "")
		}
	}
	for _, name := range f.without {
		named := slices.ContainsFunc(f.controlPlanes, func(text string) bool { return text == name || strings.HasPrefix(text, name+"=") })
		if !named && f.declared[name] == nil && !slices.ContainsFunc(machines, is(name)) {
			notes = append(notes, fmt.Sprintf("--without %s names none of the control planes, so nothing is left out by it: is it written right?", name))
		}
	}
	return notes, nil
}

// checkNames says what known found.
func (r *recoverer) checkNames(machines []recovery.Machine) error {
	notes, err := r.known(machines)
	for _, note := range notes {
		fmt.Fprintf(r.err, "WARNING: %s\n", r.clean(note))
	}
	return err
}

// stateOfName refuses a cluster's name that was mistyped. Without a checkout nothing but the state tells it: under another name a state would be
// made with a lock that no agent looks at, and those of the cluster would act beside the recovery.
func (r *recoverer) stateOfName(ctx context.Context) error {
	if r.fleeted {
		return nil
	}
	_, err := r.state.Load(ctx)
	if !errors.Is(err, statefile.ErrNotFound) {
		return nil // it is there; what else is wrong with it is said where it is needed
	}
	names, err := statefile.Clusters(ctx, r.store)
	if err != nil {
		return r.stateTrouble(err)
	}
	for _, name := range names {
		other, err := statefile.OpenCluster(r.store, statefile.Options{Name: name, Sealer: r.owner.Sealer, WriterID: statefile.NewNonce(), Clock: r.clock})
		if err != nil {
			return cannot(err, "")
		}
		var forged *statefile.StateForgedError
		state, err := other.Load(ctx)
		switch {
		case errors.As(err, &forged), errors.Is(err, statefile.ErrNotFound): // another bundle's
		case err != nil:
			return r.stateTrouble(err)
		case state.Cluster.ID == r.owner.ClusterID:
			return answerNo(fmt.Errorf("--state has no state of %s, and that of %s is of this secrets bundle: under another name no agent of %s would be kept from acting",
				r.name, name, name), "give --cluster "+name+", or a checkout with --fleet where both are clusters")
		}
	}
	return nil
}
