package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

// validateFlags are the command line of validate.
type validateFlags struct {
	base       string
	output     string
	outputFile string
	explain    string
	strict     bool
	noRender   bool
	// identities are files of age identities.
	identities []string
	signers    signerFlags
}

func (a *app) validateCommand() *cobra.Command {
	f := &validateFlags{}
	cmd := &cobra.Command{
		Use:   "validate [PATH]",
		Short: "Check a fleet repository, and the change that a branch would make",
		Long: `Reads every document under PATH (the folder it is started in, unless given) and checks it, files that are not committed yet
included. With --base the change is judged too: what the branch changed since it left the base, laid over the base's tip.
In CI the base is guessed from the variables of GitHub, Gitea and GitLab.

It ends with 0 when nothing is wrong (there may be warnings), 1 when something is, and 2 when it could not check.`,
		Example: "  ichor validate\n  ichor validate clusters/prod --base origin/main\n  ichor validate --explain approval-cap",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			a.onlyReads()
			rules := a.engineForOnce()
			path := "."
			if len(args) == 1 {
				path = args[0]
			}
			if f.explain == "" {
				return a.validate(rules, f, path)
			}
			engine, err := rules()
			if err != nil {
				return err
			}
			return a.explainRule(engine, f.explain, path)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.base, "base", "", "revision that the change is meant for: a branch, a tag or a commit")
	addOutput(flags, &f.output, reportFormats()...)
	flags.StringVar(&f.outputFile, "output-file", "", "write the findings to this file and not to standard output")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(reportFormats(), cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVar(&f.strict, "strict", false, "take warnings for errors")
	flags.BoolVar(&f.noRender, "no-render", false, "render no machine's Talos config: faster, and a patch that Talos would refuse is not found")
	flags.StringSliceVar(&f.identities, "age-identity", nil, "file with an age identity or SSH key that opens the cluster's secrets and sealed patches (may be repeated)")
	f.signers.add(flags)
	flags.StringVar(&f.explain, "explain", "", "print a rule, built in or of a policy under PATH, and end")
	return cmd
}

func (a *app) validate(rules func() (*validate.Engine, error), f *validateFlags, path string) error {
	if err := checkOutput(f.output, reportFormats()...); err != nil {
		return err
	}
	// The command lives for a moment and keeps most of what it reads: collecting half as often saves more than it costs.
	defer debug.SetGCPercent(debug.SetGCPercent(200))
	search := validate.NewSecretSearch()
	change, err := a.findChange(path, f.base, schema.Watched(search.File))
	if err != nil {
		return err
	}
	defer change.close()
	engine, err := rules()
	if err != nil {
		return err
	}
	base, old, proposal := change.base, change.old, change.proposal
	report := validate.Report{}
	if base != nil {
		report.Checked.Base = base.tip.Commit
	}
	report.Findings = append(validate.FromProblems(proposal.Problems), proposal.Findings...)
	searched := make(chan validate.Secrets, 1)
	go func() { // while the rules are asked, since both only read
		searched <- search.Finish(change.place.tree, change.place.roots, proposal.Fleet)
	}()
	report.Findings = append(report.Findings, engine.Check(old, proposal.Fleet, validate.WithProblems(proposal.Problems))...)
	secrets, err := a.judgeSecrets(change, <-searched)
	if err != nil {
		return err
	}
	report.Findings = append(report.Findings, secrets...)
	operations, err := a.checkOperations(engine, &f.signers, old, proposal)
	if err != nil {
		return err
	}
	report.Findings = append(report.Findings, operations...)
	configs, err := a.renderConfigs(f, proposal.Fleet)
	if err != nil {
		return err
	}
	report.Findings = append(report.Findings, configs.Findings...)
	validate.Sort(report.Findings)
	report.Checked.Rendered, report.Checked.Renderings = configs.Rendered, configs.Distinct
	report.Checked.Files, report.Checked.Objects = proposal.Fleet.Files, validate.Objects(proposal.Fleet)
	report.Checked.Rules = engine.RulesEvaluated(proposal.Fleet, old != nil)
	return a.printReport(engine, proposal.Fleet, f, report, change)
}

// renderConfigs renders the configs, unless that isn't wanted, and says what could not be opened for it.
func (a *app) renderConfigs(f *validateFlags, fleet *schema.Fleet) (validate.Rendering, error) {
	if f.noRender {
		return validate.Rendering{}, nil
	}
	identities, err := sealed.LoadIdentities(f.identities...)
	if err != nil {
		return validate.Rendering{}, cannot(fmt.Errorf("--age-identity: %w", err), "give files with an age identity each, as age-keygen writes them, or SSH keys")
	}
	configs, err := validate.RenderConfigs(fleet, identities)
	if err != nil {
		return configs, cannot(err, "this is a fault of ichor itself; please report it")
	}
	if configs.Sealed > 0 {
		fmt.Fprintf(a.err, "not rendered, because patches of theirs are sealed and could not be opened: %s; --age-identity FILE opens them\n", counted(configs.Sealed, "config"))
	}
	if made := len(fleet.Clusters) - len(configs.Opened); made > 0 && identities.Len() > 0 {
		fmt.Fprintf(a.err, "rendered with secrets made up for it, because none of the identities opens its own: %s\n", counted(made, "cluster"))
	}
	return configs, nil
}

// judgeSecrets gives the findings of the search for secrets in the clear. What Git leaves out can't be pushed, and is said alone.
func (a *app) judgeSecrets(c *change, found validate.Secrets) ([]validate.Finding, error) {
	for _, name := range found.Partly {
		fmt.Fprintf(a.err, "searched for secrets at its beginning only, because it is so large: %s\n", a.clean(name))
	}
	for _, name := range found.Unread {
		fmt.Fprintf(a.err, "not searched for secrets, because it can't be read: %s\n", a.clean(name))
	}
	if c.place.checkout == nil || len(found.Findings) == 0 {
		return found.Findings, nil
	}
	var names []string
	for _, finding := range found.Findings {
		names = append(names, finding.File)
	}
	leftOut, err := c.place.checkout.LeftOut(names)
	if err != nil {
		return nil, cannot(err, "check the repository with git status")
	}
	var kept []validate.Finding
	for _, finding := range found.Findings {
		if leftOut[finding.File] {
			fmt.Fprintf(a.err, "a secret stands in the clear in %s, which Git leaves out by .gitignore: keep it so, or better keep the file elsewhere\n", a.clean(finding.File))
			continue
		}
		kept = append(kept, finding)
	}
	return kept, nil
}

// counted gives "1 file", "2 files".
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
