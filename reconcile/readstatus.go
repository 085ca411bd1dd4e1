package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"ichor.maesh.dev/statefile"
)

// StatusReader reads the status of clusters out of a store. It writes nothing, and needs no agent.
type StatusReader struct {
	Store statefile.Store
	// Sealer makes what a cluster's seal is checked with; its error is why the seal of that cluster is not checked.
	Sealer func(cluster string) (*statefile.Sealer, error)
}

// Read reads the status of the named clusters.
func (r StatusReader) Read(ctx context.Context, clusters []string) (*Status, error) {
	shards, err := statefile.ReadShards(ctx, r.Store)
	if err != nil {
		shards = 1
	}
	status := &Status{Clusters: []ClusterStatus{}}
	for _, name := range clusters {
		one, err := r.cluster(ctx, name, shards)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		status.Clusters = append(status.Clusters, one)
	}
	return status, nil
}

func (r StatusReader) cluster(ctx context.Context, name string, shards int) (ClusterStatus, error) {
	seal := "checked"
	sealer, err := r.Sealer(name)
	if err != nil {
		seal = "not checked: " + err.Error()
	}
	handle, err := statefile.OpenCluster(r.Store, statefile.Options{Name: name, Sealer: sealer})
	if err != nil {
		return ClusterStatus{}, err
	}
	state, err := handle.Load(ctx)
	if err != nil {
		return ClusterStatus{}, err
	}
	var lease *statefile.LeaseStatus
	if found, err := statefile.ReadLease(ctx, r.Store, statefile.ShardOf(name, shards)); err == nil {
		lease = found
	}
	one := StatusOf(state, lease)
	one.Seal = seal
	return one, nil
}

// WriteJSON writes any part of a status as `ichor status -o json` does.
func WriteJSON(w io.Writer, part any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(part)
}
