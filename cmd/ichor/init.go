package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/gendata"
	"github.com/spf13/cobra"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scaffold"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// initFlags are the command line of init.
type initFlags struct {
	cluster, endpoint               string
	talosVersion, kubernetesVersion string
	controlPlanes, workers          []string
	count                           int
	schedulable                     bool
	installDisk, installImage       string
	approve                         bool
	approvedBy                      string
	recipients                      []string
	identityOut                     string
	ci                              []string
}

func (a *app) initCommand() *cobra.Command {
	f := &initFlags{}
	cmd := &cobra.Command{
		Use:   "init [DIR] --cluster NAME",
		Short: "Write a fleet repository that validates: cluster, machines, sealed secrets, CI workflow",
		Long: `Writes into DIR (the folder it is started in, unless given) a cluster with new Talos secrets, its machines, a README and a
CI workflow that runs ichor validate and ichor plan on every proposed change. Nothing that exists is overwritten: a README or
workflow that is there stays, and a cluster that is there is refused. A second cluster can be added to a repository that has one.

The secrets are sealed with age, to every --recipient, and to a new identity whose file --age-identity-out names. That file
stays out of the repository; with neither flag it is NAME.agekey in ichor's folder of the user's configuration.

The workflow is GitHub's unless --ci says otherwise; Gitea and Forgejo run that one too. It needs no secrets.

A machine is NAME=ADDRESS,UUID. With NAME=ADDRESS alone, the machine, which must wait in maintenance mode, is asked for its UUID.`,
		Example: `  ichor init fleet --cluster prod --endpoint https://10.0.0.10:6443 \
    --control-plane cp-1=10.0.0.11 --control-plane cp-2=10.0.0.12 --control-plane cp-3=10.0.0.13 \
    --worker w-1=10.0.0.21,4c4c4544-0039-3310-8052-b4c04f4a3258`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			return a.runInit(cmd.Context(), f, dir)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.cluster, "cluster", "", "name of the cluster")
	flags.StringVar(&f.endpoint, "endpoint", "", "URL of its Kubernetes API: a virtual IP, load balancer or DNS name (default: the only control plane)")
	flags.StringVar(&f.talosVersion, "talos-version", gendata.VersionTag, "version of Talos")
	flags.StringVar(&f.kubernetesVersion, "kubernetes-version", "v"+constants.DefaultKubernetesVersion, "version of Kubernetes")
	flags.StringArrayVar(&f.controlPlanes, "control-plane", nil, "a control plane, as NAME=ADDRESS[,UUID] (may be repeated)")
	flags.StringArrayVar(&f.workers, "worker", nil, "a worker, as NAME=ADDRESS[,UUID] (may be repeated)")
	flags.IntVar(&f.count, "control-plane-count", 0, "how many control planes the cluster has: 1, 3 or 5 (default: as many as are given, or 3)")
	flags.BoolVar(&f.schedulable, "schedulable", true, "let workloads run on control planes")
	flags.StringVar(&f.installDisk, "install-disk", "/dev/sda", "disk that Talos is installed on")
	flags.StringVar(&f.installImage, "install-image", "", "installer image without a tag, for example of a schematic (default: Talos's own)")
	flags.BoolVar(&f.approve, "approve", false, "approve the machines: once this is merged, Ichor installs them")
	flags.StringVar(&f.approvedBy, "approved-by", "", "who approves, for the record")
	flags.StringArrayVar(&f.recipients, "recipient", nil, "age or SSH public key that the secrets are sealed to (may be repeated)")
	flags.StringVar(&f.identityOut, "age-identity-out", "", "file for a new age identity; outside of the repository, and it may not exist")
	flags.StringSliceVar(&f.ci, "ci", []string{string(scaffold.GitHub)}, "write the CI workflow for github, gitlab or both (github,gitlab), or none")
	return cmd
}

func (a *app) runInit(ctx context.Context, f *initFlags, dir string) error {
	if err := f.check(); err != nil {
		return err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return cannot(err, "")
	}
	place := filepath.Join(dir, "clusters", f.cluster)
	if _, err := os.Lstat(place); err == nil {
		return cannot(fmt.Errorf("%s is there already, and nothing is overwritten", place), "give another --cluster, or another folder")
	}
	keys, err := a.initKeys(f, dir)
	if err != nil {
		return err
	}
	machines, err := a.initMachines(ctx, f)
	if err != nil {
		return err
	}
	files, err := a.initFiles(f, keys, machines)
	if err != nil {
		return err
	}
	written, err := a.writeFleet(ctx, f, dir, keys, files)
	if err != nil {
		return err
	}
	for _, name := range written {
		fmt.Fprintln(a.out, a.clean(name))
	}
	a.initNext(f, dir, keys, len(machines))
	return nil
}

// check refuses what makes no sense before anything is asked or made.
func (f *initFlags) check() error {
	if f.cluster == "" {
		return usageError(errors.New("the cluster has no name"), "give one by --cluster, as in --cluster prod")
	}
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`).MatchString(f.cluster) {
		return usageError(fmt.Errorf("--cluster %q is no name", f.cluster), "use lower-case letters, digits and dashes, as in prod-1")
	}
	if f.count == 0 {
		f.count = max(len(f.controlPlanes), 1)
		if len(f.controlPlanes) == 0 {
			f.count = 3
		}
	}
	if !slices.Contains([]int{1, 3, 5}, f.count) {
		return usageError(fmt.Errorf("a cluster has 1, 3 or 5 control planes, not %d", f.count), "give --control-plane-count 1, 3 or 5; machines can be added later")
	}
	if _, err := f.workflows(); err != nil {
		return err
	}
	if f.approvedBy != "" && !f.approve {
		return usageError(errors.New("--approved-by says who approves, and nothing is approved"), "give --approve too")
	}
	return nil
}

// workflows gives the CI systems that a workflow is written for, each once.
func (f *initFlags) workflows() ([]scaffold.CI, error) {
	if slices.Equal(f.ci, []string{"none"}) {
		return nil, nil
	}
	var systems []scaffold.CI
	for _, name := range f.ci {
		system := scaffold.CI(name)
		if !slices.Contains(scaffold.CIs(), system) {
			return nil, usageError(fmt.Errorf("--ci %q is not known", name), "give github, gitlab, both (github,gitlab) or none alone")
		}
		if !slices.Contains(systems, system) {
			systems = append(systems, system)
		}
	}
	return systems, nil
}

// initMachine is a machine as the command line and the machine itself describe it.
type initMachine struct {
	name, endpoint, uuid string
	role                 schema.Role
}

func (a *app) initMachines(ctx context.Context, f *initFlags) ([]initMachine, error) {
	var machines []initMachine
	for _, group := range []struct {
		role schema.Role
		flag string
		list []string
	}{{schema.RoleControlPlane, "--control-plane", f.controlPlanes}, {schema.RoleWorker, "--worker", f.workers}} {
		for _, text := range group.list {
			name, rest, found := strings.Cut(text, "=")
			endpoint, uuid, _ := strings.Cut(rest, ",")
			if !found || name == "" || endpoint == "" {
				return nil, usageError(fmt.Errorf("%s %q is no machine", group.flag, text), "write NAME=ADDRESS,UUID, as in cp-1=10.0.0.11,4c4c4544-0039-3310-8052-b4c04f4a3258")
			}
			machines = append(machines, initMachine{name: name, endpoint: endpoint, uuid: uuid, role: group.role})
		}
	}
	for i := range machines {
		if machines[i].uuid != "" {
			continue
		}
		found := onceMore(func() talos.Observation { return a.observeMaintenance(ctx, machines[i].endpoint) })
		if found.UUID == "" {
			return nil, cannot(fmt.Errorf("the UUID of %s can't be asked of %s: %s", machines[i].name, machines[i].endpoint, silence(found)),
				fmt.Sprintf("boot it into maintenance mode, or give its UUID: %s=%s,UUID", machines[i].name, machines[i].endpoint))
		}
		machines[i].uuid = found.UUID
	}
	if f.endpoint == "" && len(f.controlPlanes) == 1 && f.count == 1 {
		f.endpoint = "https://" + net6(schema.MachineSpec{Endpoint: machines[0].endpoint}.Host()) + ":6443"
	}
	if f.endpoint == "" {
		return nil, usageError(errors.New("the cluster has no endpoint for its Kubernetes API"),
			"give one by --endpoint, as in https://10.0.0.10:6443: a virtual IP, load balancer or DNS name of all control planes")
	}
	return machines, nil
}

// net6 puts an IPv6 address into brackets.
func net6(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// initKeys is to whom the secrets are sealed.
type initKeys struct {
	recipients []sealed.Recipient
	// identity is the text of a new identity for the file out, nil when none is made.
	identity []byte
	out      string
}

func (a *app) initKeys(f *initFlags, dir string) (*initKeys, error) {
	keys := &initKeys{}
	if len(f.recipients) > 0 {
		parsed, err := sealed.ParseRecipients("--recipient", []byte(strings.Join(f.recipients, "\n")))
		if err != nil {
			return nil, usageError(err, "give a public key: age1... (age-keygen -y prints yours), or an SSH one")
		}
		keys.recipients = parsed
	}
	out := f.identityOut
	if out == "" {
		if len(f.recipients) > 0 {
			return keys, nil
		}
		base, err := os.UserConfigDir()
		if err != nil {
			return nil, cannot(fmt.Errorf("no folder for the age identity is known: %w", err), "give --age-identity-out FILE, or --recipient")
		}
		out = filepath.Join(base, "ichor", f.cluster+".agekey")
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return nil, cannot(err, "")
	}
	if _, err := os.Lstat(out); err == nil {
		return nil, cannot(fmt.Errorf("%s is there already, and nothing is overwritten", out),
			"give another file by --age-identity-out, or seal to the identity that you have by --recipient")
	}
	if top := repositoryAround(dir); within(top, out) {
		return nil, usageError(fmt.Errorf("%s is inside of the repository %s: who can read that could open every secret", out, top), "give a file elsewhere by --age-identity-out")
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, cannot(fmt.Errorf("making an age identity: %w", err), "")
	}
	recipient := identity.Recipient().String()
	keys.out = out
	keys.identity = fmt.Appendf(nil, "# created: %s\n# public key: %s\n%s\n", a.clock.Now().UTC().Format(time.RFC3339), recipient, identity)
	keys.recipients = append(keys.recipients, sealed.Recipient{Recipient: identity.Recipient(), Text: recipient})
	return keys, nil
}

// repositoryAround gives the top of the Git checkout that a folder is, or will be, in; the folder itself where there is none.
func repositoryAround(dir string) string {
	for folder := dir; ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(folder); err == nil {
			if checkout, err := gitsource.OpenCheckout(folder); err == nil {
				return checkout.Dir
			}
			return dir
		}
		if folder == filepath.Dir(folder) {
			return dir
		}
	}
}

// within tells whether a file is, or would be, below a folder, whatever links lead there.
func within(folder, file string) bool {
	relative, err := filepath.Rel(resolved(folder), resolved(file))
	return err == nil && relative != ".." && !strings.HasPrefix(relative, ".."+string(filepath.Separator))
}

// resolved follows the links of as much of a path as is there.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(resolved(parent), filepath.Base(path))
}

// initFiles makes every file of the cluster's folder, by its name there.
func (a *app) initFiles(f *initFlags, keys *initKeys, machines []initMachine) (map[string][]byte, error) {
	contract, err := contractOf(f.talosVersion)
	if err != nil {
		return nil, err
	}
	bundle, err := talos.GenerateBundle(contract)
	if err != nil {
		return nil, cannot(fmt.Errorf("making the Talos secrets: %w", err), "give a version of Talos that this ichor knows by --talos-version")
	}
	secrets, err := bundle.Marshal()
	if err != nil {
		return nil, cannot(fmt.Errorf("making the Talos secrets: %w", err), "")
	}
	files := map[string][]byte{}
	if files["secrets.age"], err = sealed.Seal(keys.recipients, secrets); err != nil {
		return nil, cannot(err, "")
	}
	var recipients []string
	for _, recipient := range keys.recipients {
		recipients = append(recipients, recipient.Text)
	}
	files["recipients.txt"] = scaffold.Recipients(recipients)
	files["cluster.yaml"], err = scaffold.Cluster{
		Name: f.cluster, ID: schema.ClusterID(bundle.ClusterID()), Endpoint: f.endpoint,
		TalosVersion: f.talosVersion, KubernetesVersion: f.kubernetesVersion, Contract: contract,
		ControlPlanes: f.count, Schedulable: f.schedulable, InstallImage: f.installImage, InstallDisk: f.installDisk,
	}.YAML()
	if err != nil {
		return nil, cannot(err, "")
	}
	for _, m := range machines {
		document := scaffold.Machine{Name: m.name, Cluster: f.cluster, Role: m.role, Endpoint: m.endpoint, UUID: m.uuid, Hostname: m.name}
		if f.approve {
			document.Approval = &schema.ApprovalDecision{At: a.clock.Now().UTC().Truncate(time.Second), By: f.approvedBy}
		}
		name := "machines/" + m.name + ".yaml"
		if files[name] != nil || strings.ContainsAny(m.name, `/\`) {
			return nil, usageError(fmt.Errorf("two machines are named %q, or it is no name", m.name), "give each machine a name of its own: lower-case letters, digits and dashes")
		}
		if files[name], err = document.YAML(); err != nil {
			return nil, cannot(err, "")
		}
	}
	return files, nil
}

// contractOf gives the config generation of a Talos version: v1.13 of v1.13.6.
func contractOf(version string) (string, error) {
	match := regexp.MustCompile(`^(v\d+\.\d+)\.\d+`).FindStringSubmatch(version)
	if match == nil {
		return "", usageError(fmt.Errorf("--talos-version %q is no version", version), "write it as in "+gendata.VersionTag)
	}
	return match[1], nil
}

// initNext says what comes next, to a person.
func (a *app) initNext(f *initFlags, dir string, keys *initKeys, machines int) {
	say := func(format string, values ...any) { fmt.Fprintf(a.err, format+"\n", values...) }
	if keys.out != "" {
		say("\nKeep %s safe, with a copy elsewhere, and out of the repository: it alone opens the sealed secrets.", a.clean(keys.out))
	}
	say("\nNext:")
	switch {
	case machines == 0:
		say("  ichor discover ADDRESS     prints a file for each machine that waits in maintenance mode; put them into clusters/%s/machines", f.cluster)
	case !f.approve:
		say("  in the files of the machines that Ichor may install: set approved: true, and put in the fingerprint that you compared with\n  the machine's console (ichor discover ADDRESS prints it)")
	}
	say("  ichor validate %s", a.clean(dir))
	say("  commit and push it, and start ichor agent with --repo, --state and --age-identity (see README.md there)")
}
