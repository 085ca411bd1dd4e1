package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/operation"
)

// opRightsFlags are the command line of op rights.
type opRightsFlags struct {
	signers       signerFlags
	fleet, output string
	clusters      []string
}

// opRight is a right in -o json.
type opRight struct {
	Cluster     string     `json:"cluster"`
	Principals  string     `json:"principals"`
	Fingerprint string     `json:"fingerprint"`
	Line        int        `json:"line"`
	Authority   bool       `json:"authority"`
	Operations  bool       `json:"operations"`
	Overrides   bool       `json:"overrides"`
	From        *time.Time `json:"from,omitempty"`
	Until       *time.Time `json:"until,omitempty"`
	// Now says whether the right holds now.
	Now bool `json:"now"`
}

func (a *app) opRightsCommand() *cobra.Command {
	f := &opRightsFlags{}
	cmd := &cobra.Command{
		Use:   "rights",
		Short: "Say who may sign what on which cluster",
		Long: `Reads the allowed signers as the agent does, and says of each cluster whose keys may sign ordinary operations and whose may
sign overrides, which wipe or rewind. Lines that give no right are named on standard error, with the reason. It answers no where
nobody may sign anything.`,
		Example: `  ichor op rights --allowed-signers ~/allowed_signers --cluster prod --cluster staging`,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.opRights(f) },
	}
	flags := cmd.Flags()
	f.signers.add(flags)
	flags.StringSliceVar(&f.clusters, "cluster", nil, "the cluster's name (may be repeated; default: those of the fleet repository)")
	flags.StringVar(&f.fleet, "fleet", ".", "a checkout of the fleet repository, for the names of the clusters")
	addOutput(flags, &f.output, "text", "json")
	return cmd
}

func (a *app) opRights(f *opRightsFlags) error {
	if err := checkOutput(f.output, "text", "json"); err != nil {
		return err
	}
	signers, err := f.signers.mustLoad()
	if err != nil {
		return err
	}
	clusters := f.clusters
	if len(clusters) == 0 {
		fleet, _ := loadTree(f.fleet)
		for _, cluster := range fleet.Clusters {
			clusters = append(clusters, cluster.Metadata.Name)
		}
		slices.Sort(clusters)
	}
	if len(clusters) == 0 {
		return cannot(fmt.Errorf("%s holds no TalosCluster that can be read, so there is no cluster to ask about", f.fleet), "name clusters with --cluster, or a checkout with --fleet")
	}
	now := a.clock.Now()
	rights := []opRight{}
	for _, right := range signers.Rights(clusters...) {
		rights = append(rights, opRight{right.Cluster, right.Principals, right.Fingerprint, right.Line, right.Authority, right.Operations, right.Overrides,
			moment(right.From), moment(right.Until), holds(right, now)})
		if f.output == "text" {
			fmt.Fprintln(a.out, a.clean(right.String()+timely(right, now)))
		}
	}
	if f.output == "json" {
		encoder := json.NewEncoder(a.out)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(rights); err != nil {
			return err
		}
	}
	for _, line := range signers.Powerless(clusters...) {
		fmt.Fprintln(a.err, a.clean(line))
	}
	return a.sayPowerless(clusters, rights)
}

// sayPowerless names the clusters on which nobody may sign anything now. That is the answer no.
func (a *app) sayPowerless(clusters []string, rights []opRight) error {
	failed := false
	for _, cluster := range clusters {
		if !slices.ContainsFunc(rights, func(r opRight) bool { return r.Cluster == cluster && r.Now }) {
			fmt.Fprintf(a.err, "nobody may sign anything on %s now\n", a.clean(cluster))
			failed = true
		}
	}
	if failed {
		return errNo
	}
	return nil
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// holds compares whole seconds, both ends included, as signatures are judged.
func holds(right operation.Right, now time.Time) bool { return timely(right, now) == "" }

func timely(right operation.Right, now time.Time) string {
	second := now.Truncate(time.Second)
	switch {
	case !right.From.IsZero() && second.Before(right.From):
		return ", which is not yet"
	case !right.Until.IsZero() && second.After(right.Until):
		return ", which is over"
	}
	return ""
}
