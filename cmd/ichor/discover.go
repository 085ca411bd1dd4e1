package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"ichor.maesh.dev/internal/addresses"
	"ichor.maesh.dev/internal/bytesize"
	"ichor.maesh.dev/internal/scaffold"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// discoverFlags are the command line of discover.
type discoverFlags struct {
	cluster, role, output string
	timeout               time.Duration
	parallel              int
}

// discoveredMachine is what `ichor discover -o json` prints of a machine. Its form is stable.
type discoveredMachine struct {
	Endpoint     string           `json:"endpoint"`
	UUID         string           `json:"uuid"`
	Fingerprint  string           `json:"fingerprint"`
	Hostname     string           `json:"hostname,omitempty"`
	Addresses    []string         `json:"addresses,omitempty"`
	TalosVersion string           `json:"talosVersion,omitempty"`
	Disks        []discoveredDisk `json:"disks,omitempty"`
}

type discoveredDisk struct {
	Path     string   `json:"path"`
	Size     uint64   `json:"size"`
	Model    string   `json:"model,omitempty"`
	Serial   string   `json:"serial,omitempty"`
	WWID     string   `json:"wwid,omitempty"`
	ReadOnly bool     `json:"readOnly,omitempty"`
	Contents []string `json:"contents,omitempty"`
}

func (a *app) discoverCommand() *cobra.Command {
	f := &discoverFlags{}
	cmd := &cobra.Command{
		Use:   "discover ADDRESS|CIDR...",
		Short: "Find machines in maintenance mode, and print them as TalosMachine YAML",
		Long: `Asks each address, or each one of a network, whether a Talos machine waits there in maintenance mode, and prints a
TalosMachine for it: its UUID, the fingerprint of its certificate, and its disks as comments. Nothing is changed anywhere.

Nothing proves who answers at such an address. Compare the fingerprint with the one on the machine's console before you
approve it; it is another one after each boot.

What takes no connection in time, or takes one and tells nothing, is asked once more. Of what took none that is left out where it would take
more than three minutes, as in a network larger than a /20, and is said then; --parallel 1024 has time for the largest.

It ends with 0 when a machine was found and 1 when none was.`,
		Example: "  ichor discover 10.0.0.0/24\n  ichor discover 10.0.0.11 10.0.0.12 --cluster prod --role controlplane > machines.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runDiscover(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.cluster, "cluster", "prod", "name of the cluster that the machines are for")
	flags.StringVar(&f.role, "role", "", "controlplane or worker (default: worker, with a word to choose)")
	addOutput(flags, &f.output, "yaml", "json")
	flags.DurationVar(&f.timeout, "timeout", 2*time.Second, "how long an address may take to take a connection")
	flags.IntVar(&f.parallel, "parallel", 64, "how many addresses are asked at once")
	return cmd
}

func (a *app) runDiscover(ctx context.Context, f *discoverFlags, args []string) error {
	if err := checkOutput(f.output, "yaml", "json"); err != nil {
		return err
	}
	switch {
	case f.role != "" && f.role != string(schema.RoleControlPlane) && f.role != string(schema.RoleWorker):
		return usageError(fmt.Errorf("--role %s is not known", f.role), "use controlplane or worker")
	case f.parallel < 1 || f.parallel > 1024:
		return usageError(fmt.Errorf("--parallel %d is not possible", f.parallel), "give a number from 1 to 1024")
	case f.timeout <= 0:
		return usageError(fmt.Errorf("--timeout %s is not possible", f.timeout), "give a time, as in 2s")
	}
	list, err := addresses.Expand(args)
	if err != nil {
		return usageError(err, "")
	}
	found, err := a.askAll(ctx, f, list)
	if err != nil {
		return err
	}
	if err := a.printDiscovered(f, found); err != nil {
		return err
	}
	if len(found) == 0 {
		return answerNo(fmt.Errorf("no machine waits in maintenance mode at %s", addressCount(len(list))),
			"a machine does after it booted from Talos's image and before it has a config; check that port 50000 is open to here, or give it longer with --timeout")
	}
	return nil
}

// askAll asks every address and gives the machines in maintenance mode, in the order of their addresses.
func (a *app) askAll(ctx context.Context, f *discoverFlags, list []addresses.Address) ([]discoveredMachine, error) {
	answers, once, err := a.askTwice(ctx, f, list, func(address string) talos.Observation { return a.ask(ctx, f.timeout, address) })
	if err != nil {
		return nil, err
	}
	silent := 0
	var found []discoveredMachine
	uuids := map[string]string{}
	for i, answer := range answers {
		where := list[i].Text
		if answer.Mode != talos.ModeMaintenance || !isUUID(answer.UUID) {
			if answer.Problem == noneInTime && !list[i].Named {
				silent++
			} else if list[i].Named || answer.Problem != noConnection {
				fmt.Fprintf(a.err, "%s: %s\n", a.clean(where), a.clean(silence(answer)))
			}
			continue
		}
		if other, twice := uuids[answer.UUID]; twice {
			fmt.Fprintf(a.err, "%s and %s have the same UUID %s: they are one machine, or machines of a board that gives all the same\n", a.clean(other), a.clean(where), answer.UUID)
		}
		uuids[answer.UUID] = where
		found = append(found, a.describe(where, answer))
	}
	if silent > 0 {
		fmt.Fprintln(a.err, f.silentText(silent, once))
	}
	return found, nil
}

// silentText says how many addresses of networks took no connection.
func (f *discoverFlags) silentText(silent int, once bool) string {
	text := fmt.Sprintf("%s took no connection within %s", addressCount(silent), f.timeout)
	if once {
		return text + fmt.Sprintf(" and were asked only once, since asking them again takes %s: nothing is there, or they are slow; "+
			"--parallel asks more at once, and --timeout gives them longer", f.duration(silent))
	}
	return text + ", asked twice: nothing is there, or it is slow; --timeout gives it longer"
}

// againAtMost is how long it may take to ask those once more that took no connection. In a large network most are nobody's, and each takes the whole
// timeout; by default there is time for a /20.
const againAtMost = 3 * time.Minute

// duration is how long it takes to ask addresses that all are silent.
func (f *discoverFlags) duration(silent int) time.Duration {
	return time.Duration((silent+f.parallel-1)/f.parallel) * f.timeout
}

// askTwice asks every address, and those once more that a busy machine or network may have kept from answering. It says whether those of a network that
// took no connection were asked only once, since there are so many of them.
func (a *app) askTwice(ctx context.Context, f *discoverFlags, list []addresses.Address, ask func(address string) talos.Observation) (answers []talos.Observation, once bool, err error) {
	answers = make([]talos.Observation, len(list))
	all := make([]int, len(list))
	for i := range all {
		all[i] = i
	}
	if err := a.askEach(ctx, f.parallel, list, all, "", answers, ask); err != nil {
		return nil, false, err
	}
	silent := func(i int) bool { return answers[i].Problem == noneInTime && !list[i].Named }
	due := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !mayAnswerYet(answers[i]) })
	count := 0
	for _, i := range due {
		if silent(i) {
			count++
		}
	}
	if once = f.duration(count) > againAtMost; once {
		due = slices.DeleteFunc(due, silent)
	}
	return answers, once, a.askEach(ctx, f.parallel, list, due, " once more", answers, ask)
}

// askEach asks those of a list that are due, and says how far it is.
func (a *app) askEach(ctx context.Context, parallel int, list []addresses.Address, due []int, again string, answers []talos.Observation, ask func(address string) talos.Observation) error {
	var asked atomic.Int64
	done := make(chan struct{})
	reported := a.reportProgress(done, &asked, len(due), again)
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, i := range due {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			answers[i] = ask(list[i].Text)
			asked.Add(1)
			return nil
		})
	}
	_ = group.Wait()
	close(done)
	<-reported
	if ctx.Err() != nil {
		return cannot(fmt.Errorf("it was stopped after %d of %s were asked%s", asked.Load(), addressCount(len(due)), again), "")
	}
	return nil
}

// mayAnswerYet says whether an address is worth another try: it took a connection and told nothing of use, or took none in time. One that
// refuses connections, or that told what it is, is not.
func mayAnswerYet(answer talos.Observation) bool {
	switch {
	case answer.Mode == talos.ModeMaintenance:
		return answer.UUID == ""
	case answer.Mode == talos.ModeConfigured, answer.Problem == "", answer.Problem == noConnection:
		return false
	}
	return !strings.Contains(answer.Problem, wantsCertificate)
}

// onceMore looks, and looks once more where the first look told nothing that may yet come.
func onceMore(look func() talos.Observation) talos.Observation {
	found := look()
	if mayAnswerYet(found) {
		found = look()
	}
	return found
}

const (
	// noConnection is the Problem of an address where nothing takes a connection, noneInTime of one where nothing did in time.
	noConnection = "nothing answers"
	noneInTime   = "nothing answers in time"
	// wantsCertificate is in the Problem of a configured machine.
	wantsCertificate = "wants a client certificate"
)

// ask looks at one address: quickly where nothing takes a connection.
func (a *app) ask(ctx context.Context, timeout time.Duration, address string) talos.Observation {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, "tcp", talos.Target{Endpoint: address}.Address())
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		return talos.Observation{Problem: noneInTime}
	case err != nil:
		return talos.Observation{Problem: noConnection}
	}
	_ = conn.Close()
	return a.observeMaintenance(ctx, address)
}

// observeMaintenance looks at a machine as anyone may who has no secrets of it.
func (a *app) observeMaintenance(ctx context.Context, address string) talos.Observation {
	client := talos.NewClient(nil, talos.ClientOptions{Clock: a.clock})
	defer client.Close()
	return client.Observe(ctx, talos.Target{Name: address, Endpoint: address})
}

// silence says why an answer is of no machine that can be used.
func silence(answer talos.Observation) string {
	switch {
	case answer.Mode == talos.ModeMaintenance && answer.UUID == "":
		return "it waits in maintenance mode and tells no UUID: " + answer.Problem
	case answer.Mode == talos.ModeMaintenance:
		return "it waits in maintenance mode and tells a UUID that is none"
	case answer.Problem == noConnection:
		return "nothing answers on the port of the Talos API"
	case answer.Problem == noneInTime:
		return "nothing answers on the port of the Talos API in time, asked twice; --timeout gives it longer"
	case answer.Problem == "":
		return "what answers there is no machine in maintenance mode"
	}
	problem := answer.Problem
	if _, cause, found := strings.Cut(problem, " can't be reached at "); found {
		_, problem, _ = strings.Cut(cause, ": ")
	}
	if strings.Contains(problem, wantsCertificate) {
		return "a machine is there, and it is configured already"
	}
	return "no machine in maintenance mode was seen there: " + problem
}

func isUUID(text string) bool {
	return regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`).MatchString(text)
}

// describe takes what is printed of a machine, without what could act on a terminal.
func (a *app) describe(endpoint string, o talos.Observation) discoveredMachine {
	m := discoveredMachine{Endpoint: endpoint, UUID: strings.ToLower(o.UUID), Fingerprint: a.clean(o.Fingerprint),
		Hostname: a.clean(o.Hostname), TalosVersion: a.clean(o.TalosVersion)}
	for _, address := range o.Addresses {
		m.Addresses = append(m.Addresses, a.clean(address))
	}
	for _, d := range o.Disks {
		disk := discoveredDisk{Path: a.clean(d.Path), Size: d.Size, Model: a.clean(d.Model), Serial: a.clean(d.Serial), WWID: a.clean(d.WWID), ReadOnly: d.ReadOnly}
		for _, content := range d.Contents {
			disk.Contents = append(disk.Contents, a.clean(content))
		}
		m.Disks = append(m.Disks, disk)
	}
	return m
}

func (a *app) printDiscovered(f *discoverFlags, found []discoveredMachine) error {
	if f.output == "json" {
		if found == nil {
			found = []discoveredMachine{}
		}
		encoder := json.NewEncoder(a.out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(found)
	}
	for i, m := range found {
		document := scaffold.Machine{
			Name: "m-" + m.UUID[len(m.UUID)-12:], Cluster: f.cluster, Role: schema.Role(f.role),
			Endpoint: m.Endpoint, UUID: m.UUID, Fingerprint: m.Fingerprint, Notes: notes(m),
		}
		if f.role == "" {
			document.Role, document.RoleIsGuessed = schema.RoleWorker, true
		}
		text, err := document.YAML()
		if err != nil {
			return cannot(err, "")
		}
		if i > 0 {
			fmt.Fprintln(a.out, "---")
		}
		if _, err := a.out.Write(text); err != nil {
			return cannot(fmt.Errorf("printing: %w", err), "")
		}
	}
	return nil
}

func addressCount(n int) string {
	if n == 1 {
		return "1 address"
	}
	return fmt.Sprintf("%d addresses", n)
}

// notes tell what a person wants to know before giving the machine a name and a disk.
func notes(m discoveredMachine) []string {
	var about []string
	if m.Hostname != "" {
		about = append(about, m.Hostname)
	}
	if m.TalosVersion != "" {
		about = append(about, "Talos "+m.TalosVersion)
	}
	if len(m.Addresses) > 0 {
		about = append(about, "addresses "+strings.Join(m.Addresses, " "))
	}
	var lines []string
	if len(about) > 0 {
		lines = append(lines, strings.Join(about, ", "))
	}
	for _, d := range m.Disks {
		line := fmt.Sprintf("disk %s, %s", d.Path, bytesize.Text(d.Size))
		for _, part := range []struct{ name, value string }{{"model", d.Model}, {"serial", d.Serial}, {"wwid", d.WWID}} {
			if part.value != "" {
				line += ", " + part.name + " " + part.value
			}
		}
		if d.ReadOnly {
			line += ", read-only"
		}
		if len(d.Contents) > 0 {
			line += ", holds " + strings.Join(d.Contents, ", ")
		} else {
			line += ", empty"
		}
		lines = append(lines, line)
	}
	return lines
}

// reportProgress says every two seconds how far it is: on one line of a terminal, on lines of their own elsewhere. The channel
// that it gives is closed once it has said its last word after done.
func (a *app) reportProgress(done <-chan struct{}, asked *atomic.Int64, all int, again string) <-chan struct{} {
	finished := make(chan struct{})
	ticker := a.clock.NewTicker(2 * time.Second)
	go func() {
		defer close(finished)
		defer ticker.Stop()
		said := false
		for {
			select {
			case <-done:
				if said && a.interactive {
					fmt.Fprint(a.err, "\r\x1b[K")
				}
				return
			case <-ticker.C():
				said = true
				if a.interactive {
					fmt.Fprintf(a.err, "\r\x1b[Kasked %d of %d addresses%s", asked.Load(), all, again)
				} else {
					fmt.Fprintf(a.err, "asked %d of %d addresses%s\n", asked.Load(), all, again)
				}
			}
		}
	}()
	return finished
}
