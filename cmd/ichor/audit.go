package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/statefile"
)

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Look at the record of what was done",
	}
	cmd.AddCommand(a.auditVerifyCommand())
	return cmd
}

// auditFlags are the command line of audit verify.
type auditFlags struct {
	statusFlags
	unsealed, events bool
}

// auditAnswer is audit verify's answer in JSON.
type auditAnswer struct {
	Clusters []clusterAudit `json:"clusters"`
}

type clusterAudit struct {
	Name     string            `json:"name"`
	Events   int               `json:"events"`
	Waiting  int               `json:"waiting"`
	Seal     string            `json:"seal"`
	Problems []string          `json:"problems"`
	Log      []statefile.Event `json:"log,omitempty"`
}

func (a *app) auditVerifyCommand() *cobra.Command {
	f := &auditFlags{}
	cmd := &cobra.Command{
		Use:   "verify --state URL --age-identity FILE [CLUSTER...]",
		Short: "Check that the record of what was done is whole and unchanged",
		Long: `Reads every audit event of the clusters, and finds events that are missing, changed, out of order or not sealed with
the cluster's secrets bundle. It ends with 0 when all is whole, and 1 when not.`,
		Example: "  ichor audit verify --state s3://ichor/prod --age-identity agent.key\n  ichor audit verify prod --events -o json",
		RunE:    func(cmd *cobra.Command, args []string) error { return a.verifyAudits(cmd.Context(), f, args) },
	}
	f.state.add(cmd)
	flags := cmd.Flags()
	addOutput(flags, &f.output, "text", "json")
	flags.StringVar(&f.fleet, "fleet", ".", "checkout of the fleet repository, for the secrets bundles that the seals are checked with")
	flags.BoolVar(&f.unsealed, "without-seals", false, "check numbers and the chain only, where no identity is at hand; who rewrote all of it isn't found")
	flags.BoolVar(&f.events, "events", false, "print the events too")
	return cmd
}

func (a *app) verifyAudits(ctx context.Context, f *auditFlags, clusters []string) error {
	if err := checkOutput(f.output, "text", "json"); err != nil {
		return err
	}
	scrubber := scrub.New()
	store, err := f.state.open(ctx, scrubber, false)
	if err != nil {
		return err
	}
	defer store.Close()
	if len(clusters) == 0 {
		if clusters, err = statefile.Clusters(ctx, store); err != nil {
			return cannot(scrubber.Error(err), "")
		}
	}
	if len(clusters) == 0 {
		return answerNo(errors.New("the state holds no cluster"), "name one to check what is left of its audit")
	}
	answer := auditAnswer{Clusters: []clusterAudit{}}
	problems := 0
	for _, name := range clusters {
		one, err := f.verify(ctx, store, name)
		if err != nil {
			return cannot(scrubber.Error(fmt.Errorf("%s: %w", name, err)), "")
		}
		problems += len(one.Problems)
		answer.Clusters = append(answer.Clusters, *one)
	}
	if err := a.printAudits(f, answer); err != nil {
		return err
	}
	if problems > 0 {
		return errNo
	}
	return nil
}

func (f *auditFlags) verify(ctx context.Context, store statefile.Store, name string) (*clusterAudit, error) {
	var sealer *statefile.Sealer
	if !f.unsealed {
		var err error
		if sealer, err = f.sealer(name); err != nil {
			return nil, fmt.Errorf("its seals can't be checked: %w (--without-seals checks the rest)", err)
		}
	}
	report, err := statefile.VerifyAudit(ctx, store, sealer, name)
	if err != nil {
		return nil, err
	}
	one := &clusterAudit{Name: name, Events: len(report.Events), Waiting: report.Waiting, Seal: "not checked", Problems: report.Problems}
	if report.Checked {
		one.Seal = "checked"
	}
	if one.Problems == nil {
		one.Problems = []string{}
	}
	if f.events {
		one.Log = report.Events
	}
	return one, nil
}

func (a *app) printAudits(f *auditFlags, answer auditAnswer) error {
	if f.output == "json" {
		encoder := json.NewEncoder(a.out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	}
	for _, one := range answer.Clusters {
		for _, event := range one.Log {
			fmt.Fprintf(a.out, "%6d  %s  %s  %s  %s\n", event.Sequence, event.At.UTC().Format(time.RFC3339), a.clean(event.Action),
				a.clean(event.Machine), a.clean(eventText(event.Message, event.Details)))
		}
		verdict := "whole"
		if len(one.Problems) > 0 {
			verdict = "NOT whole"
		}
		fmt.Fprintf(a.out, "%s: %d events, %s; seal %s\n", a.clean(one.Name), one.Events, verdict, one.Seal)
		for _, problem := range one.Problems {
			fmt.Fprintf(a.out, "  %s\n", a.clean(problem))
		}
	}
	return nil
}

// eventText is what an event of the audit says: its message, else the outcome of its call, which has no more to say.
func eventText(message string, details map[string]string) string {
	if message != "" {
		return message
	}
	return strings.TrimSpace(details["call"] + " " + details["outcome"])
}
