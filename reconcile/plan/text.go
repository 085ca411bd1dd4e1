package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"ichor.maesh.dev/internal/printable"
)

// WriteText writes the plan for people: the summary first, then what happens in which order, then how configs change.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Summary)
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "  %s\n", printable.Text(f.String()))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "  note: %s\n", note)
	}
	for _, c := range r.Clusters {
		c.writeText(&b, r)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

func (c *Cluster) writeText(b *strings.Builder, r *Report) {
	fmt.Fprintf(b, "\ncluster %s: %s\n", c.Name, c.headline())
	for _, refused := range c.refusals(r) {
		fmt.Fprintf(b, "  refused: %s\n", refused)
	}
	for n, line := range c.stepLines() {
		fmt.Fprintf(b, "  %d. %s\n", n+1, line)
	}
	for _, line := range c.lines() {
		fmt.Fprintf(b, "  - %s\n", line)
	}
	for _, note := range c.Notes {
		fmt.Fprintf(b, "  note: %s\n", note)
	}
	for _, d := range c.diffs() {
		fmt.Fprintf(b, "\n  config of %s:\n", d.who)
		for line := range strings.Lines(d.text) {
			fmt.Fprintf(b, "    %s\n", strings.TrimRight(line, "\n"))
		}
	}
}

// refusals are what refuses a cluster: by the rule alone where the finding stands above.
func (c *Cluster) refusals(r *Report) []string {
	var lines []string
	for _, refused := range c.Refused {
		rule, _, _ := strings.Cut(refused, ": ")
		if slices.Contains(r.Rules(), rule) {
			refused = "by " + rule
		}
		if !slices.Contains(lines, refused) {
			lines = append(lines, refused)
		}
	}
	return lines
}

// headline says how a cluster is changed.
func (c *Cluster) headline() string {
	switch {
	case len(c.Refused) > 0:
		return c.Message
	case c.Change == "removed":
		return c.Message
	case c.Change == "same":
		return "nothing would change"
	}
	text := c.Counts.sentence(0)
	if c.Change == "new" {
		text = "it is new; " + text
	}
	return text
}

// stepLines are the steps in words. That a tried config is kept goes without a line of its own.
func (c *Cluster) stepLines() []string {
	var lines []string
	for n, s := range c.Steps {
		if s.Action == "config-confirm" && n > 0 && c.Steps[n-1].Machine == s.Machine && c.Steps[n-1].Action == "config-try" {
			continue
		}
		line := s.Sentence
		if s.Refused != "" {
			line = fmt.Sprintf("%s: %s", s.Action, s.Refused)
		}
		lines = append(lines, line)
	}
	return lines
}

// lines are what else there is to say: reboots, machines that are not changed, versions, etcd, backups, operations.
func (c *Cluster) lines() []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for n, r := range c.Reboots {
		line := fmt.Sprintf("reboot %d of %d, %s", n+1, len(c.Reboots), r.Machine)
		if r.Message != "" {
			line += ": " + r.Message
		}
		lines = append(lines, line)
	}
	for _, m := range c.Machines {
		switch m.Outcome {
		case OutcomeWaiting:
			if m.Message != "" && m.Reason != "Ready" && m.Reason != "UpgradePending" {
				add("%s (%s): %s", m.Name, m.Reason, m.Message)
			}
		case OutcomeUnknown, OutcomeUnmanaged:
			add("%s (%s): %s", m.Name, m.Reason, m.Message)
		}
	}
	for _, m := range c.upgrades() {
		add("%s", m)
	}
	for _, m := range c.Machines {
		if l := m.Live; l != nil && (l.Problem != "" || l.DryRun == "refused" || l.DryRun == "unknown" || l.DryRunMessage != "") {
			add("%s is %s: %s", m.Name, cmp.Or(l.Stage, l.Mode), joined("; ", l.Problem, dryRunText(l)))
		}
	}
	if n := c.dryRuns(); n > 0 {
		add("dry runs that machines took: %d", n)
	}
	if len(c.Etcd.Joins)+len(c.Etcd.Removed) > 0 || c.Etcd.Bootstrap != "" {
		add("etcd ends with %s: %s", counted(len(c.Etcd.Members), "member"), list(c.Etcd.Members))
	}
	for _, d := range c.Backups {
		add("backup %s is %s: %s", d.Name, d.Change, d.Sentence)
	}
	for _, o := range c.Operations {
		add("operation %s %s", o.Name, o.Sentence)
	}
	if c.Reason == "Paused" || c.Reason == "OriginUnknown" || c.Reason == "Locked" || c.Reason == "BootstrapRefused" {
		add("the cluster (%s): %s", c.Reason, c.Message)
	}
	return lines
}

func (c *Cluster) dryRuns() int {
	n := 0
	for _, m := range c.Machines {
		if m.Live != nil && m.Live.DryRun == "ok" {
			n++
		}
	}
	return n
}

func dryRunText(l *Live) string {
	if l.DryRun == "" || l.DryRun == "ok" || l.DryRunMessage == "" {
		return ""
	}
	return fmt.Sprintf("dry run %s: %s", l.DryRun, l.DryRunMessage)
}

// upgrades are the versions that wait, machines with the same ones together.
func (c *Cluster) upgrades() []string {
	who := map[string][]string{}
	var order []string
	for _, m := range c.Machines {
		if m.Upgrade == "" {
			continue
		}
		if who[m.Upgrade] == nil {
			order = append(order, m.Upgrade)
		}
		who[m.Upgrade] = append(who[m.Upgrade], m.Name)
	}
	var lines []string
	for _, versions := range order {
		lines = append(lines, fmt.Sprintf("%s (UpgradePending): no config change brings another version (%s)", list(who[versions]), versions))
	}
	return lines
}

// configDiff is a diff and whose it is.
type configDiff struct{ who, text string }

// diffs gives each different diff once.
func (c *Cluster) diffs() []configDiff {
	var found []configDiff
	names := map[string][]string{}
	for _, m := range c.Machines {
		if m.Diff == "" {
			continue
		}
		if names[m.Diff] == nil {
			found = append(found, configDiff{text: m.Diff})
		}
		names[m.Diff] = append(names[m.Diff], m.Name)
	}
	for n := range found {
		found[n].who = list(names[found[n].text])
	}
	return found
}

// WriteJSON writes the plan as indented JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	if _, err := w.Write(text.Bytes()); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

// Rules names the rules behind the findings that refuse the change, each once.
func (r *Report) Rules() []string {
	var rules []string
	for _, f := range r.Findings {
		if f.Severity == "error" && !slices.Contains(rules, f.Rule) {
			rules = append(rules, f.Rule)
		}
	}
	return rules
}
