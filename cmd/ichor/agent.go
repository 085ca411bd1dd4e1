package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// agentFlags are the agent's command line.
type agentFlags struct {
	state       stateFlags
	git         gitsource.Config
	interval    time.Duration
	once        bool
	shards      int
	single      bool
	trusted     []string
	logFormat   string
	timeScale   float64
	allowRewind bool
	spool       string
	// backups are the destinations for which the agent's own keys serve.
	backups []string
	signers signerFlags
	commits commitFlags
	// existing are operations that are run although they were there when a state was made anew, node the Kubernetes Node that this
	// agent runs on.
	existing []string
	node     string
	web      webFlags
}

func (a *app) agentCommand() *cobra.Command {
	f := &agentFlags{}
	cmd := &cobra.Command{
		Use:   "agent --repo URL --state URL --age-identity FILE",
		Short: "Bring the clusters of a repository to what it says, and keep them there",
		Long: `Pulls the repository, checks it, looks at the machines, decides what comes next, and does it, one cluster
independent of the others. What was done, and what was begun, stands in the state.

Operations (docs/operations) are carried out only for who stands in --allowed-signers; without it each is refused.

Who can push to the branch is root on the clusters, unless --verify-commits: then a commit is acted upon only if it,
and each before it on the branch, is signed by who may (docs/git.md).

With --once it makes one pass over every cluster and ends: 0 when all are Ready, 1 when one isn't, 2 when the
repository or the state can't be used. It stops on SIGTERM and Ctrl-C, once no call to a machine is open.`,
		Example: `  ichor agent --repo https://git.example.com/fleet.git --git-token-file token \
    --state s3://ichor/prod --age-identity agent.key --trust-maintenance-network 10.0.0.0/24`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runAgent(cmd.Context(), f) },
	}
	f.state.add(cmd)
	f.addGit(cmd)
	f.web.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.once, "once", false, "make one pass over every cluster, say what is wrong, and end")
	flags.IntVar(&f.shards, "shards", 1, "into how many shards the clusters are spread; the same for all agents of a state")
	flags.BoolVar(&f.single, "single-agent", false, "use a store that doesn't honour conditions; no other agent may ever run on this state")
	flags.StringSliceVar(&f.trusted, "trust-maintenance-network", nil,
		"network (CIDR) in which a machine in maintenance mode gets its config without a fingerprint (may be repeated)")
	flags.StringVar(&f.spool, "spool", "", "private folder on disk for snapshots on their way (default: in the cache folder)")
	flags.StringArrayVar(&f.backups, "backup-destination", nil,
		"destination (s3://bucket/prefix) for which the agent's own S3 keys serve, where a backup names none (may be repeated)")
	f.signers.add(flags)
	f.commits.add(flags)
	flags.StringSliceVar(&f.existing, "run-existing-operations", nil,
		"operations (by name) that are run although they were there already when the state of their cluster was made anew (may be repeated)")
	flags.StringVar(&f.node, "node-name", "", "the Kubernetes Node that this agent runs on, where it runs inside of a cluster that it manages; CLUSTER/NODE where clusters have machines of the same names")
	flags.StringVar(&f.logFormat, "log-format", "text", "how the log is written: text or json")
	flags.Float64Var(&f.timeScale, "time-scale", 1, "how many times as fast the time of the machines runs; for simulated ones only")
	return cmd
}

func (f *agentFlags) addGit(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.git.URL, "repo", "", "the fleet repository: https://, ssh:// or file:///path")
	flags.StringVar(&f.git.Branch, "branch", "", "the branch that is watched (default: the server's default branch)")
	flags.StringSliceVar(&f.git.Paths, "path", nil, "folder of the repository that holds documents (may be repeated; default: all of it)")
	flags.DurationVar(&f.interval, "interval", time.Minute, "how often the repository is asked, give or take a tenth")
	flags.StringVar(&f.git.Cache, "cache", "", "folder for the clone and for what this agent saw last (default: the user's cache folder)")
	addGitCredentials(flags, &f.git)
	flags.BoolVar(&f.allowRewind, "allow-rewind", false, "take one revision that does not descend from the last one")
}

func (a *app) runAgent(ctx context.Context, f *agentFlags) error {
	scrubber := scrub.New()
	log, err := a.logger(f.logFormat, scrubber)
	if err != nil {
		return err
	}
	networks, err := f.check()
	if err != nil {
		return err
	}
	if f.git.Cache, err = cacheFolder(f.git.Cache); err != nil {
		return err
	}
	requests := &statefile.Requests{}
	f.state.requests, f.web.config.Requests = requests, requests
	store, err := f.state.open(ctx, scrubber, true)
	if err != nil {
		return err
	}
	defer store.Close()
	page := &page{}
	if !f.once {
		if page, err = f.web.serve(ctx, a.clock, log, scrubber); err != nil {
			return err
		}
		defer page.stop()
	}
	if err := f.awaitStore(ctx, a, store, log, scrubber, page.waiting); err != nil || ctx.Err() != nil {
		return err
	}
	f.git.AllowRewind = f.allowRewind
	f.hideGitSecrets(scrubber)
	gitConfig := f.git
	gitConfig.Cache = filepath.Join(f.git.Cache, "git")
	source, err := gitsource.Open(gitConfig, a.clock)
	if err != nil {
		return cannot(scrubber.Error(err), "")
	}
	defer source.Close()
	config, err := f.config(ctx, a, store, log, scrubber)
	if err != nil {
		return err
	}
	config.Source, config.TrustedNetworks = source, networks
	agent := reconcile.New(config)
	if f.once {
		return a.agentOnce(ctx, agent)
	}
	page.attach(agent, store, source)
	return agent.Run(ctx)
}

// check refuses flags that can't be, and gives the networks that are trusted.
func (f *agentFlags) check() ([]netip.Prefix, error) {
	if err := f.commits.check(&f.signers); err != nil {
		return nil, err
	}
	networks, err := parseNetworks(f.trusted)
	if err != nil {
		return nil, err
	}
	if f.git.URL == "" {
		return nil, cannot(errors.New("which repository to watch was not said"), "give --repo URL")
	}
	if f.shards < 1 || f.shards > statefile.MaxShards {
		return nil, cannot(fmt.Errorf("--shards %d is not possible", f.shards), fmt.Sprintf("give a number from 1 to %d", statefile.MaxShards))
	}
	return networks, nil
}

// config is what the agent works with, but for its source.
func (f *agentFlags) config(ctx context.Context, a *app, store statefile.Store, log *slog.Logger, scrubber *scrub.Scrubber) (reconcile.Config, error) {
	engine, err := a.engine()
	if err != nil {
		return reconcile.Config{}, err
	}
	if _, err := f.signers.load(); err != nil {
		return reconcile.Config{}, err
	}
	if _, err := f.commits.load(); err != nil {
		return reconcile.Config{}, err
	}
	config := reconcile.Config{
		Validator: engine, Paths: f.git.Paths, AllowRewind: f.allowRewind, PollInterval: f.interval,
		Identities: f.identities(), StateEndpoint: storeHost(store), Mark: statefile.LocationHash(store), SingleAgent: f.single,
		Timing: reconcile.DefaultTiming().Scaled(f.timeScale), RecoveryTiming: recovery.DefaultTiming().Scaled(f.timeScale), RecoverFlags: f.recoverFlags(),
		Clock: a.clock, Clocks: statefile.SystemClocks(), Log: log, Scrubber: scrubber,
		OpenNodes: func(bundle *talos.Bundle) reconcile.Nodes {
			return reconcile.TalosNodes(talos.NewClient(bundle, talos.ClientOptions{Clock: a.clock, Scrubber: scrubber}))
		},
		OpenKubernetes: reconcile.OpenKubernetes(a.clock.Now),
	}
	if err := f.work(ctx, a, &config, store); err != nil {
		return reconcile.Config{}, err
	}
	f.operate(&config, store)
	config.Backups, err = f.keep(scrubber, store)
	return config, err
}

// recoverFlags are those with which 'ichor restore --recover-cluster' reaches the same state and opens the same files.
func (f *agentFlags) recoverFlags() string {
	text := "--fleet CHECKOUT" + f.state.typed()
	if f.timeScale != 1 {
		text += " --time-scale " + strconv.FormatFloat(f.timeScale, 'g', -1, 64)
	}
	return text
}

// hideGitSecrets makes what opens the repository known to the scrubber, as far as it can be read; the source reads it by itself.
func (f *agentFlags) hideGitSecrets(scrubber *scrub.Scrubber) {
	if parsed, err := url.Parse(f.git.URL); err == nil && parsed.User != nil {
		password, _ := parsed.User.Password()
		scrubber.Add(password)
	}
	for _, file := range []string{f.git.TokenFile, f.git.PasswordFile, f.git.SSHPassphraseFile} {
		if text, err := readAtMost(file, 1<<16); file != "" && err == nil {
			scrubber.Add(strings.TrimSpace(string(text)))
		}
	}
}

// work puts the leases and the handles on the states into the config.
func (f *agentFlags) work(ctx context.Context, a *app, config *reconcile.Config, store statefile.Store) error {
	if err := statefile.AgreeShards(ctx, store, f.shards); err != nil {
		return cannot(config.Scrubber.Error(err), "start every agent of this state with the same --shards")
	}
	writer := statefile.NewNonce()
	for shard := range f.shards {
		lease, err := statefile.NewLease(store, statefile.LeaseOptions{Shard: shard, Holder: writer, Clock: a.clock})
		if err != nil {
			return cannot(config.Scrubber.Error(err), "")
		}
		config.Leases = append(config.Leases, lease)
	}
	states := statefile.InTurn(store, statefile.AtOnce)
	config.OpenState = func(cluster string, bundle *talos.Bundle) (reconcile.StateStore, error) {
		sealer, err := sealerOf(bundle)
		if err != nil {
			return nil, err
		}
		return statefile.OpenCluster(states, statefile.Options{Name: cluster, Sealer: sealer, WriterID: writer,
			CacheDir: filepath.Join(f.git.Cache, "state"), Clock: a.clock})
	}
	return nil
}

// operate puts what operations need into the config.
func (f *agentFlags) operate(config *reconcile.Config, store statefile.Store) {
	config.RunExisting, config.NodeName = f.existing, f.node
	if f.signers.allowed != "" {
		config.Signers = f.signers.loader().load
	}
	if f.commits.verify {
		config.CommitSigners = f.commits.loader(f.signers).load
	}
	config.Inbox = func(ctx context.Context, cluster string) ([]statefile.InboxFile, bool, error) {
		return statefile.ReadInbox(ctx, store, cluster)
	}
	config.Bell = statefile.NewBell(store).Rings
	if clock, is := store.(interface{ Skew() time.Duration }); is {
		config.Skew = clock.Skew
	}
}

// storeHost is the host of a bucket's server; empty for a folder.
func storeHost(store statefile.Store) string {
	where, err := url.Parse(store.Location())
	if err != nil || where.Scheme != "s3" {
		return ""
	}
	return where.Host
}

// takesAtOnce is how many snapshots an agent takes at the same time, over all clusters: few enough that their memory stays small (some
// 20 MiB each), enough that a few members that hang delay nobody else's.
const takesAtOnce = 8

// keep makes what the agent takes backups with.
func (f *agentFlags) keep(scrubber *scrub.Scrubber, store statefile.Store) (*reconcile.Backups, error) {
	places := &keeper.Places{Identities: f.identities(), Scrubber: scrubber, StateLocation: store.Location(), Requests: f.state.requests}
	var err error
	if places.Own, err = keeper.ParseOwn(f.backups); err != nil {
		return nil, usageError(fmt.Errorf("--backup-destination: %w", err), "")
	}
	if where, err := statefile.ParseStoreURL(f.state.url); err == nil && where.Bucket != "" {
		for _, own := range places.Own {
			if own.Bucket == where.Bucket && keeper.Within(own.Prefix, where.Prefix) {
				return nil, usageError(fmt.Errorf("--backup-destination s3://%s/%s is where the state is: whoever may write snapshots could write the state",
					own.Bucket, own.Prefix), "give another bucket, or another prefix")
			}
		}
	}
	if f.state.credentials != "" {
		if places.Keys, err = f.state.keys(); err != nil {
			return nil, cannot(fmt.Errorf("--state-credentials %s: %w", f.state.credentials, err), "")
		}
	}
	if f.spool == "" {
		f.spool = filepath.Join(f.git.Cache, "spool")
	}
	spool, err := backup.OpenSpool(f.spool)
	if err != nil {
		return nil, cannot(err, "give a private folder on disk with --spool DIR")
	}
	return &reconcile.Backups{Opener: places, Spool: spool, Limits: keeper.NewLimits(takesAtOnce)}, nil
}

// sealerOf makes the sealer of a cluster's records from its secrets bundle.
func sealerOf(bundle *talos.Bundle) (*statefile.Sealer, error) {
	material := bundle.SealingMaterial()
	return statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
}

// storeRetry is how often a store that can't be reached when the agent starts is tried again.
const storeRetry = 5 * time.Second

// awaitStore is prove for an agent that stays: it waits, and says so once, while the store can't be reached.
func (f *agentFlags) awaitStore(ctx context.Context, a *app, store statefile.Store, log *slog.Logger, scrubber *scrub.Scrubber,
	waiting func(why string)) error {
	for said := false; ; said = true {
		err := f.prove(ctx, store, log, scrubber)
		if f.once || !errors.Is(err, statefile.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		waiting("the agent waits for its state, and does nothing before: " + err.Error())
		if !said {
			log.Error("the agent waits for its state, and does nothing before", "problem", err)
		}
		timer := a.clock.NewTimer(storeRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// prove refuses a store that doesn't honour conditions.
func (f *agentFlags) prove(ctx context.Context, store statefile.Store, log *slog.Logger, scrubber *scrub.Scrubber) error {
	result, err := statefile.Probe(ctx, store)
	switch {
	case err == nil:
		if skew := result.LocalTime.Sub(result.StoreTime); !result.StoreTime.IsZero() && (skew > 5*time.Minute || skew < -5*time.Minute) {
			log.Warn("this machine's clock and the store's differ by more than 5 minutes", "difference", skew.Round(time.Second))
		}
		return nil
	case errors.Is(err, statefile.ErrNoConditions) && f.single:
		log.Warn("the store does not honour conditional writes; no other agent may run on this state (--single-agent)")
		return nil
	case errors.Is(err, statefile.ErrNoConditions):
		return cannot(scrubber.Error(err), "use a store with conditional writes, or --single-agent if no other agent will ever use this state")
	}
	return cannot(scrubber.Error(fmt.Errorf("the state can't be used: %w", err)), "")
}

// identities reads the identity files anew each time they changed, so that a corrected one is used without a restart.
func (f *agentFlags) identities() func() (*sealed.Identities, error) {
	loader := &fileLoader[*sealed.Identities]{what: "--age-identity", files: f.state.identities, read: f.state.load}
	return loader.load
}

func (a *app) agentOnce(ctx context.Context, agent *reconcile.Agent) error {
	report, err := agent.Once(ctx)
	if err != nil {
		return cannot(err, "")
	}
	if len(report.Clusters) == 0 && report.Git != "" {
		return answerNo(errors.New(report.Git), "docs/git.md says how commits are signed")
	}
	if len(report.Clusters) == 0 {
		return answerNo(errors.New("the repository holds no TalosCluster"), "make one with ichor init")
	}
	problems := report.Problems()
	said := map[string]bool{}
	for _, c := range report.Clusters {
		line := fmt.Sprintf("%s: %s: %s", c.Name, c.Ready.Reason, c.Ready.Message)
		said[line] = true
		fmt.Fprintln(a.out, a.clean(line))
	}
	if len(problems) == 0 {
		return nil
	}
	// What each cluster says of itself stands above already.
	for _, problem := range problems {
		if !said[problem] {
			fmt.Fprintln(a.err, a.clean(problem))
		}
	}
	return answerNo(errors.New("not all is as the repository says"), "the lines above say why; ichor status shows each machine")
}

// logger writes the agent's log to standard error, scrubbed.
func (a *app) logger(format string, scrubber *scrub.Scrubber) (*slog.Logger, error) {
	var handler slog.Handler
	switch format {
	case "text":
		handler = slog.NewTextHandler(a.err, nil)
	case "json":
		handler = slog.NewJSONHandler(a.err, nil)
	default:
		return nil, usageError(fmt.Errorf("--log-format %s is not known", format), "want text or json")
	}
	return slog.New(scrubber.Handler(handler)), nil
}

func parseNetworks(list []string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for _, text := range list {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usageError(fmt.Errorf("--trust-maintenance-network %s is not a network", text), "write it as in 10.0.0.0/24")
		}
		networks = append(networks, network.Masked())
	}
	return slices.Compact(networks), nil
}

func cacheFolder(given string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", cannot(fmt.Errorf("no cache folder is known: %w", err), "give --cache FOLDER")
	}
	return filepath.Join(base, "ichor"), nil
}
