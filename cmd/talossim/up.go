package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/talossim"
)

// consolePeriod is how often up looks whether a machine waits in maintenance mode.
const consolePeriod = time.Second

func newUp() *cobra.Command {
	var (
		options  talossim.Options
		platform string
		verbose  bool
	)

	cmd := &cobra.Command{
		Use:   "up --dir DIR",
		Short: "Run simulated Talos nodes until stopped",
		Long: `Run simulated Talos nodes, each on its own loopback address, port 50000, until stopped.

They wait in maintenance mode for a config, as new machines do; those of a folder that was used before go on where a power
cut left them. DIR/nodes.json lists them, DIR/NODE/journal.jsonl holds every call that one got. The time scale divides Talos's
own times: 1 is Talos's pace, 20 is pleasant.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := filepath.Abs(options.Dir)
			if err != nil {
				return fmt.Errorf("finding %s: %w", options.Dir, err)
			}

			options.Dir, options.Platform = dir, talossim.Platform(platform)

			if options.Platform != talossim.Metal && options.Platform != talossim.Container {
				return fmt.Errorf("--platform is metal or container, not %s", platform)
			}

			if verbose {
				options.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			}

			return up(cmd.Context(), cmd.OutOrStdout(), options)
		},
	}
	cmd.Flags().StringVar(&options.Dir, "dir", "", "folder for the machines' disks; made if it isn't there")
	cmd.Flags().IntVar(&options.ControlPlanes, "control-planes", 3, "how many machines are meant as control planes, cp-1, cp-2, …")
	cmd.Flags().IntVar(&options.Workers, "workers", 1, "how many machines are meant as workers, w-1, w-2, …")
	cmd.Flags().StringVar(&options.First, "first", "127.0.10.1", "loopback address of the first machine; the next ones follow")
	cmd.Flags().Float64Var(&options.TimeScale, "time-scale", 1, "what Talos's own times are divided by")
	cmd.Flags().StringVar(&platform, "platform", string(talossim.Metal), "metal or container")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "log what the machines do to stderr")
	cmd.MarkFlagRequired("dir") //nolint:errcheck // the flag exists

	return cmd
}

// up runs a farm until the context ends.
func up(ctx context.Context, out io.Writer, options talossim.Options) (err error) {
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return fmt.Errorf("making the machines' folder: %w", err)
	}

	board := &board{}

	stop, err := control(ctx, options.Dir, board)
	if err != nil {
		return err
	}
	defer stop()

	// Not ctx: when that ends, the machines are switched off in order.
	farm, err := talossim.Start(context.WithoutCancel(ctx), options)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, farm.Close()) }()

	board.set(farm)

	console := &console{out: out}
	console.table(farm, options)

	var watching sync.WaitGroup
	defer watching.Wait()

	for _, node := range farm.Nodes() {
		watching.Go(func() { console.watch(ctx, node) })
	}

	<-ctx.Done()
	console.line("Stopping: the machines' power is cut; their disks stay in %s", options.Dir)

	return nil
}

// console prints what a person in front of the machines would see.
type console struct {
	mu  sync.Mutex
	out io.Writer
}

func (c *console) line(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()

	fmt.Fprintf(c.out, format+"\n", args...) //nolint:errcheck // there is nobody else to tell
}

func (c *console) table(farm *talossim.Farm, options talossim.Options) {
	var b strings.Builder

	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tADDRESS\tUUID\tMEANT AS") //nolint:errcheck // a builder takes everything

	for _, n := range farm.Nodes() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Name(), n.Address(), n.UUID(), n.Role()) //nolint:errcheck // likewise
	}

	w.Flush() //nolint:errcheck // likewise
	c.line("%sTime scale %g; the list is in %s", b.String(), options.TimeScale, filepath.Join(options.Dir, talossim.NodesFile))
}

// watch prints a machine's certificate fingerprint whenever it waits in maintenance mode with a new one.
func (c *console) watch(ctx context.Context, node *talossim.Node) {
	ticker := time.NewTicker(consolePeriod)
	defer ticker.Stop()

	for shown := ""; ; {
		if now := maintenanceFingerprint(ctx, node.Endpoint()); now != "" && now != shown {
			shown = now

			c.line("%s waits in maintenance mode; its certificate's fingerprint is %s", node.Name(), now)
		}

		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// maintenanceFingerprint is that of the certificate a machine shows in maintenance mode; empty when it isn't in it.
func maintenanceFingerprint(ctx context.Context, endpoint string) string {
	ctx, cancel := context.WithTimeout(ctx, consolePeriod)
	defer cancel()

	dialer := &tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // it is looked at, nothing is sent
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"h2"},
	}}

	conn, err := dialer.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return ""
	}

	defer conn.Close() //nolint:errcheck // nothing was sent

	certs := conn.(*tls.Conn).ConnectionState().PeerCertificates
	if len(certs) == 0 || certs[0].Subject.CommonName != constants.MaintenanceServiceCommonName {
		return ""
	}

	return x509.SPKIFingerprint(certs[0]).String()
}

// board is the switchboard of a farm.
type board struct {
	mu   sync.Mutex
	farm *talossim.Farm
}

func (b *board) set(farm *talossim.Farm) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.farm = farm
}

// Do does an action to a machine.
func (b *board) Do(_ context.Context, machine, action string, delay time.Duration) error {
	b.mu.Lock()
	farm := b.farm
	b.mu.Unlock()

	if farm == nil {
		return errors.New("the machines aren't there yet; ask again in a moment")
	}

	node := farm.Node(machine)
	if node == nil {
		names := make([]string, 0, len(farm.Nodes()))
		for _, n := range farm.Nodes() {
			names = append(names, n.Name())
		}

		return fmt.Errorf("there is no machine %q; there are %s", machine, strings.Join(names, ", "))
	}

	switch action {
	case "power-cycle":
		return node.PowerCycle()
	case "power-off":
		return node.PowerOff()
	case "power-on":
		node.PowerOn()
	case "partition":
		node.Partition()
	case "heal":
		node.Heal()
	case "slow":
		node.Slow(delay)
	default:
		return fmt.Errorf("%q is nothing that can be done to a machine", action)
	}

	return nil
}
