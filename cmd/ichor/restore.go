package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
)

// restoreFlags are the command line of restore.
type restoreFlags struct {
	backupFlags
	state stateFlags

	recover, live, startOver, bump bool
	snapshot                       string
	controlPlanes                  []string
	without, wipe, trusted         []string
	spool, work, confirm           string
	timeScale                      float64

	// Made of them:
	name     string
	fleeted  bool // there is a checkout that says what the machines are
	declared map[string]*schema.TalosMachine
	machines []recovery.Machine
	// workers are the approved ones in the checkout, endpoint the cluster's; nil and empty without one.
	workers  []recovery.Machine
	endpoint string
}

func (a *app) restoreCommand() *cobra.Command {
	f := &restoreFlags{}
	var live *liveRestore
	cmd := &cobra.Command{
		Use:   "restore --live | --recover-cluster",
		Short: "Bring a cluster's etcd back from a snapshot",
		Long: `There are two restores. docs/recovery.md is the page for both, and says which one it is.

--live is for a cluster that works, or has an agent that does: a signed operation has the agent put a snapshot in the place of its etcd. It
says what would be done and what is lost, asks for the cluster's name, signs, pushes, and follows it to its end. It takes the flags of
'ichor run-op etcd-restore', of which it is the short form.

--recover-cluster is for a cluster whose etcd is lost: from its secrets bundle, a snapshot, and its control planes, which may be fresh
machines in maintenance mode or configured ones whose etcd is empty. No agent, no Kubernetes and no state are needed.
It shows what it would do and asks for the cluster's name. Then one control plane recovers etcd from the snapshot and the others join it.
A control plane that holds etcd data is refused unless --wipe names it. Killed or broken off at any moment, the same command goes on.`,
		Example: `  ichor restore --live --cluster prod --state s3://ichor/prod --age-identity key.txt
  ichor restore --live --cluster prod --snapshot etcd-20261129T100000Z.snapshot.age --age-identity key.txt --dry-run
  ichor restore --recover-cluster --fleet . --cluster prod --age-identity key.txt --state s3://ichor/prod
  ichor restore --recover-cluster --bundle secrets.yaml --cluster prod --file etcd-20261129T100000Z.snapshot.age \
    --control-plane cp-1=10.0.0.11 --control-plane cp-2=10.0.0.12 --control-plane cp-3=10.0.0.13`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.recover == f.live:
				return usageError(errors.New("which restore is meant was not said"),
					"give --live where etcd or an agent works, or --recover-cluster where the cluster's etcd is lost; docs/recovery.md says which")
			case f.live:
				return a.restoreLive(cmd.Context(), cmd, live)
			}
			if err := live.refuseLive(cmd); err != nil {
				return err
			}
			return f.goesOn(cmd, a.recoverCluster(cmd, f))
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	f.state.addPlace(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.live, "live", false, "the cluster works, or has an agent that does: have the agent restore a snapshot, by a signed operation")
	flags.BoolVar(&f.recover, "recover-cluster", false, "the cluster's etcd is lost: recover it on control planes that are empty")
	flags.StringVar(&f.snapshot, "snapshot", "latest", "the snapshot's name in the bucket, as 'ichor backup list' shows it, or latest")
	flags.StringArrayVar(&f.controlPlanes, "control-plane", nil,
		"a control plane as NAME=ADDRESS, or NAME of one in the checkout; given once or more, only these count (default: all approved ones in the checkout)")
	flags.StringArrayVar(&f.without, "without", nil, "leave out this control plane, which is gone for good (may be repeated)")
	flags.StringArrayVar(&f.wipe, "wipe", nil, "this control plane's etcd data, and all that its pods keep on its disk, may be lost (may be repeated)")
	flags.StringSliceVar(&f.trusted, "trust-maintenance-network", nil,
		"network (CIDR) in which a machine in maintenance mode gets its config without a fingerprint (may be repeated)")
	flags.BoolVar(&f.bump, "revision-bump", true, "raise etcd's revision, so that clients that live through this are told to read everything anew")
	flags.BoolVar(&f.startOver, "start-over", false, "give up the recovery that is under way, and begin a new one")
	flags.StringVar(&f.spool, "spool", "", "a private folder with room for three times the snapshot (default: in the user's cache folder)")
	flags.StringVar(&f.work, "work", "", "where the recovery's marker is kept when the snapshot is a file (default: in the user's cache folder)")
	flags.StringVar(&f.confirm, "confirm", "", "the cluster's name, which is asked for otherwise")
	flags.Float64Var(&f.timeScale, "time-scale", 1, "how many times as fast the time of the machines runs; for simulated ones only")
	live = a.addLive(cmd)
	return cmd
}

// goesOn adds to an error the command that goes on.
func (f *restoreFlags) goesOn(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	err = f.scrub(err)
	var exit *exitError
	if errors.As(err, &exit) && exit.hint == "" {
		exit.hint = "when that is mended, go on with: " + commandLine(cmd)
	}
	return err
}

// commandLine is the command as it was given, to be typed again, without some of its flags.
func commandLine(cmd *cobra.Command, without ...string) string {
	parts := []string{"ichor restore", "--recover-cluster"}
	without = append(without, "recover-cluster", "start-over") // the first is there already, and the second would give up what goes on
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if slices.Contains(without, flag.Name) {
			return
		}
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			switch {
			case flag.Value.Type() == "bool" && value == "true":
				parts = append(parts, "--"+flag.Name)
			case flag.Value.Type() == "bool":
				parts = append(parts, "--"+flag.Name+"="+value)
			default:
				parts = append(parts, "--"+flag.Name, quoted(value))
			}
		}
	})
	return strings.Join(parts, " ")
}

// quoted is a word for a shell.
func quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%", r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// loadRestore reads everything that the flags name. It sends nothing.
func (f *restoreFlags) loadRestore(cmd *cobra.Command, a *app) error {
	if f.file != "" && cmd.Flags().Changed("snapshot") {
		return usageError(errors.New("--file and --snapshot exclude each other"), "give one of them")
	}
	if err := f.load(cmd); err != nil {
		return err
	}
	f.fleeted = f.bundle == "" || cmd.Flags().Changed("fleet")
	if f.fleeted {
		if err := f.loadFleet(a); err != nil {
			return err
		}
	} else if f.cluster == "" {
		return usageError(errors.New("without a checkout the cluster's name isn't known"), "give --cluster NAME")
	} else {
		f.name = f.cluster
	}
	if err := f.chooseMachines(); err != nil {
		return err
	}
	f.state.identities = f.identities
	return f.folders()
}

// loadFleet takes the cluster and its machines out of the checkout.
func (f *restoreFlags) loadFleet(a *app) error {
	tree, problems := loadTree(f.fleet)
	f.tree = tree
	cluster, err := f.findCluster()
	if err != nil {
		return err
	}
	if id := f.owner.ClusterID; cluster.Spec.ID != "" && cluster.Spec.ID != id {
		return answerNo(fmt.Errorf("the bundle is of the cluster %s, and the cluster's YAML says spec.id: %s", id, cluster.Spec.ID), "give the bundle of this cluster")
	}
	f.name, f.declared = cluster.Metadata.Name, map[string]*schema.TalosMachine{}
	for _, problem := range problems {
		fmt.Fprintf(a.err, "warning: the checkout: %s\n", a.clean(problem.Message))
	}
	for _, m := range tree.Machines {
		if m.Spec.ClusterRef.Name != f.name {
			continue
		}
		if m.Spec.Role == schema.RoleControlPlane {
			f.declared[m.Metadata.Name] = m
		} else if m.Spec.Approved {
			f.workers = append(f.workers, recovery.Machine{Name: m.Metadata.Name, Endpoint: m.Spec.Endpoint, UUID: strings.ToLower(m.Spec.UUID)})
		}
	}
	f.endpoint = cluster.Spec.Endpoint
	return nil
}

// chooseMachines makes the list of control planes.
func (f *restoreFlags) chooseMachines() error {
	given := f.controlPlanes
	if len(given) == 0 {
		for name, m := range f.declared {
			if m.Spec.Approved {
				given = append(given, name)
			}
		}
	}
	for _, text := range given {
		name, endpoint, addressed := strings.Cut(text, "=")
		m := recovery.Machine{Name: name, Endpoint: endpoint}
		if declared := f.declared[name]; declared != nil {
			m.UUID = strings.ToLower(declared.Spec.UUID)
			if !addressed {
				m.Endpoint = declared.Spec.Endpoint
			}
		}
		switch {
		case name == "" || m.Endpoint == "":
			return usageError(fmt.Errorf("--control-plane %s doesn't say where it is", text), "write it as NAME=ADDRESS, or name one that is in the checkout")
		case slices.ContainsFunc(f.machines, func(o recovery.Machine) bool { return o.Name == name || o.Endpoint == m.Endpoint }):
			return usageError(fmt.Errorf("--control-plane %s is named twice, by its name or its address", text), "")
		}
		if !slices.Contains(f.without, name) {
			f.machines = append(f.machines, m)
		}
	}
	slices.SortFunc(f.machines, func(a, b recovery.Machine) int { return strings.Compare(a.Name, b.Name) })
	if len(f.machines) == 0 {
		return usageError(errors.New("no control plane is named"), "give --control-plane NAME=ADDRESS for each, or a checkout with --fleet")
	}
	return nil
}

// others are the control planes that the checkout declares and that are not recovered on: not approved, not named, or left out.
func (f *restoreFlags) others() []recovery.Machine {
	var others []recovery.Machine
	for _, name := range slices.Sorted(maps.Keys(f.declared)) {
		if !slices.ContainsFunc(f.machines, func(m recovery.Machine) bool { return m.Name == name }) {
			others = append(others, recovery.Machine{Name: name, Endpoint: f.declared[name].Spec.Endpoint})
		}
	}
	return others
}

func (f *restoreFlags) folders() error {
	if f.spool != "" && f.work != "" {
		return nil
	}
	cache, err := cacheFolder("")
	if err != nil {
		return cannot(errors.New("no cache folder is known to work in"), "give --spool FOLDER and --work FOLDER")
	}
	if f.spool == "" {
		f.spool = filepath.Join(cache, "spool")
	}
	if f.work == "" {
		f.work = filepath.Join(cache, "recovery", f.owner.ClusterID)
	}
	return nil
}
