package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// talosconfigFlags are the command line of talosconfig.
type talosconfigFlags struct {
	fleet      string
	identities []string
	role       string
	life       time.Duration
	out        string
}

func (a *app) talosconfigCommand() *cobra.Command {
	f := &talosconfigFlags{}
	cmd := &cobra.Command{
		Use:   "talosconfig CLUSTER",
		Short: "Make a short-lived talosconfig from a cluster's secrets bundle",
		Long: `Mints a client certificate from the cluster's secrets bundle and writes a talosconfig with it, to a file (mode 0600) or to
standard output where that is no terminal. The certificate ends by itself; it can't be taken back before.

The roles are reader (looks), operator (reboots, restarts services), etcd-backup (takes snapshots) and admin (everything).`,
		Example: `  ichor talosconfig prod --fleet . --age-identity key.txt --out ~/prod.talosconfig
  talosctl --talosconfig ~/prod.talosconfig get members`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return a.talosconfig(f, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.fleet, "fleet", ".", "a checkout of the fleet repository")
	flags.StringSliceVar(&f.identities, "age-identity", nil, "file with an age identity or SSH key (may be repeated)")
	flags.StringVar(&f.role, "role", "reader", "reader, operator, etcd-backup or admin")
	flags.DurationVar(&f.life, "ttl", time.Hour, "how long the certificate serves; at most 24h")
	flags.StringVar(&f.out, "out", "", "the file to write (default: standard output, unless it is a terminal)")
	return cmd
}

func (a *app) talosconfig(f *talosconfigFlags, name string) error {
	if err := a.keyNeedsFile(f.out, "talosconfig"); err != nil {
		return err
	}
	role, err := parseRole(f.role)
	if err != nil {
		return usageError(err, "use reader, operator, etcd-backup or admin")
	}
	fleet, _, bundle, err := a.openCluster(f.fleet, name, f.identities)
	if err != nil {
		return err
	}
	options := talos.TalosconfigOptions{Cluster: name, Role: role, Life: f.life, Now: a.clock.Now()}
	for _, machine := range fleet.MachinesOf(name) {
		options.Nodes = append(options.Nodes, machine.Spec.Endpoint)
		if machine.Spec.Role == schema.RoleControlPlane && machine.Spec.Approved {
			options.Endpoints = append(options.Endpoints, machine.Spec.Endpoint)
		}
	}
	text, err := bundle.Talosconfig(options)
	if err != nil {
		return cannot(err, "")
	}
	return a.writeCredential(credential{out: f.out, what: "talosconfig", cluster: name, life: f.life, text: text, replaces: onlyCluster,
		merge: "'talosctl config merge' it"})
}

func onlyCluster(text []byte, name string) bool {
	parsed, err := clientconfig.FromBytes(text)
	if err != nil || len(parsed.Contexts) != 1 {
		return false
	}
	return parsed.Contexts[name] != nil
}

// parseRole takes a role with or without Talos's own prefix.
func parseRole(text string) (talos.Role, error) {
	switch strings.TrimPrefix(text, "os:") {
	case "reader":
		return talos.RoleReader, nil
	case "operator":
		return talos.RoleOperator, nil
	case "etcd-backup", "etcd:backup":
		return talos.RoleEtcdBackup, nil
	case "admin":
		return talos.RoleAdmin, nil
	}
	return "", fmt.Errorf("role %q is not known", text)
}
