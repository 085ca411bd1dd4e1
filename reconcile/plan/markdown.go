package plan

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"ichor.maesh.dev/internal/printable"
)

// Marker begins every plan in Markdown, so that the comment that holds it can be found and replaced.
const Marker = "<!-- ichor plan -->"

// mostMarkdown is how many characters a comment on GitHub may have, and reserve what is kept back for saying what was cut.
const (
	mostMarkdown = 65536
	reserve      = 200
)

// WriteMarkdown writes the plan as a comment for a pull request: what happens first, the diffs collapsed at the end. What doesn't
// fit into a comment is left out, diffs first, and that is said.
func (r *Report) WriteMarkdown(w io.Writer) error {
	m := &markdown{left: mostMarkdown - reserve}
	m.add(Marker + "\n### ichor plan\n\n" + escape(r.Summary) + "\n")
	if r.Base != "" {
		m.add(fmt.Sprintf("\nCompared with `%.12s`.\n", r.Base))
	}
	for n, f := range r.Findings {
		if n == 0 {
			m.add("\n")
		}
		m.add(fmt.Sprintf("- **%s** %s %s\n", f.Severity, code(f.Rule), escape(printable.Text(f.String()))))
	}
	for _, note := range r.Notes {
		m.add("\n> " + escape(note) + "\n")
	}
	for _, c := range r.Clusters {
		c.writeMarkdown(m, r)
	}
	for _, c := range r.Clusters {
		for _, d := range c.diffs() {
			m.diff(c.Name, d)
		}
	}
	if m.cut > 0 {
		m.text.WriteString(fmt.Sprintf("\n_%s left out, because a comment has room for %d characters; `ichor plan` shows all._\n",
			counted(m.cut, "part was", "parts were"), mostMarkdown))
	}
	if _, err := io.WriteString(w, m.text.String()); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

func (c *Cluster) writeMarkdown(m *markdown, r *Report) {
	m.add(fmt.Sprintf("\n#### cluster %s\n\n%s\n", code(c.Name), escape(c.headline())))
	if len(c.Refused) > 0 {
		m.add("\n")
	}
	for _, refused := range c.refusals(r) {
		m.add("- refused: " + escape(refused) + "\n")
	}
	for n, line := range c.stepLines() {
		if n == 0 {
			m.add("\n")
		}
		m.add(fmt.Sprintf("%d. %s\n", n+1, escape(line)))
	}
	for n, line := range c.lines() {
		if n == 0 {
			m.add("\n")
		}
		m.add("- " + escape(line) + "\n")
	}
	for _, note := range c.Notes {
		m.add("\n> " + escape(note) + "\n")
	}
}

// markdown is a text that may not grow beyond its bound.
type markdown struct {
	text strings.Builder
	left int
	cut  int
}

// add adds a part, or counts it as cut where there is no room for it.
func (m *markdown) add(part string) bool {
	if size := utf8.RuneCountInString(part); size <= m.left {
		m.left -= size
		m.text.WriteString(part)
		return true
	}
	m.cut++
	return false
}

// diff adds a collapsed diff.
func (m *markdown) diff(cluster string, d configDiff) {
	fence := fenceFor(d.text)
	m.add(fmt.Sprintf("\n<details><summary>config of %s (%s)</summary>\n\n%sdiff\n%s\n%s\n</details>\n", html(d.who), html(cluster), fence,
		strings.TrimRight(d.text, "\n"), fence))
}

// fenceFor is a code fence that nothing in a text ends.
func fenceFor(text string) string {
	longest, run := 0, 0
	for _, r := range text {
		if r == '`' {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	return strings.Repeat("`", max(3, longest+1))
}

// code is a text as a code span.
func code(text string) string {
	text = strings.ReplaceAll(text, "\n", " ")
	fence := strings.Repeat("`", len(fenceFor(text))-2)
	if strings.HasPrefix(text, "`") || strings.HasSuffix(text, "`") {
		text = " " + text + " "
	}
	return fence + text + fence
}

// escape makes a text mean nothing to Markdown and HTML, and name nobody.
func escape(text string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(text, "\n", " ") {
		switch {
		case r == '<':
			b.WriteString("&lt;")
		case r == '>':
			b.WriteString("&gt;")
		case r == '&':
			b.WriteString("&amp;")
		case r == '@' || r == '#':
			b.WriteRune(r)
			b.WriteString("<!-- -->")
		case strings.ContainsRune("\\`*_{}[]|~!", r):
			b.WriteByte('\\')
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func html(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\n", " ").Replace(text)
}
