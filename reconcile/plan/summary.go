package plan

import (
	"fmt"
	"strings"

	"ichor.maesh.dev/validate"
)

// conclude fills what is said of the plan as a whole.
func (p *planner) conclude() {
	r := p.report
	total := Counts{}
	documents := 0
	for n := range r.Clusters {
		c := &r.Clusters[n]
		if c.Change != "same" {
			r.Changes = true
		}
		if len(c.Refused) > 0 {
			r.Refused = true
		}
		total = total.plus(c.Counts)
		documents += len(c.Backups) + len(c.Operations)
	}
	errorCount := 0
	for n := range r.Findings {
		f := &r.Findings[n]
		for _, text := range []*string{&f.Message, &f.File, &f.Name, &f.Kind, &f.Cluster} {
			*text = p.clean(*text)
		}
		if f.Severity == validate.Error {
			errorCount++
		}
	}
	r.Refused = r.Refused || errorCount > 0
	if p.change.Base == nil && p.options.Look == nil {
		r.Notes = append(r.Notes, "there is no base: this is what would happen to clusters that are new, all of their machines waiting in maintenance "+
			"mode; --base REVISION shows what a change does to clusters that run, --live what the machines run now")
	}
	r.Summary = total.sentence(documents)
	if r.Refused {
		r.Summary = fmt.Sprintf("the change is refused (%s); %s", counted(max(1, errorCount), "error"), r.Summary)
	}
}

func (c Counts) plus(o Counts) Counts {
	return Counts{c.FirstConfig + o.FirstConfig, c.Live + o.Live, c.Reboot + o.Reboot, c.Waiting + o.Waiting, c.Unknown + o.Unknown,
		c.Unmanaged + o.Unmanaged, c.Nothing + o.Nothing}
}

// sentence says the counts in words: "2 machines change without a reboot, 1 needs a reboot, 3 stay as they are".
func (c Counts) sentence(documents int) string {
	var parts []string
	add := func(n int, one, many string) {
		if n == 0 {
			return
		}
		verb := many
		if n == 1 {
			verb = one
		}
		noun := ""
		if len(parts) == 0 {
			noun = map[bool]string{true: " machine", false: " machines"}[n == 1]
		}
		parts = append(parts, fmt.Sprintf("%d%s %s", n, noun, verb))
	}
	add(c.FirstConfig, "gets its first config", "get their first config")
	add(c.Live, "changes without a reboot", "change without a reboot")
	add(c.Reboot, "needs a reboot", "need a reboot")
	add(c.Waiting, "is not changed now", "are not changed now")
	add(c.Unknown, "can't be told about from here", "can't be told about from here")
	add(c.Unmanaged, "is no longer managed", "are no longer managed")
	add(c.Nothing, "stays as it is", "stay as they are")
	if documents > 0 {
		parts = append(parts, counted(documents, "backup or operation", "backups or operations")+" new or changed")
	}
	if len(parts) == 0 {
		return "nothing would change"
	}
	return strings.Join(parts, ", ")
}

// counted gives "1 error", "2 errors".
func counted(n int, noun string, plural ...string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case len(plural) > 0:
		return fmt.Sprintf("%d %s", n, plural[0])
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
