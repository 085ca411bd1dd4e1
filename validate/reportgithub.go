package validate

import (
	"fmt"
	"io"
	"strings"

	"ichor.maesh.dev/internal/printable"
)

// WriteGitHub writes each finding as a workflow command, which GitHub, Gitea and Forgejo show at the line it points at.
func (r Report) WriteGitHub(w io.Writer) error {
	for _, f := range r.Findings {
		properties := []string{}
		add := func(name, value string) {
			properties = append(properties, name+"="+escapeProperty(printable.Text(value)))
		}
		if f.File != "" {
			add("file", f.File)
			if f.Line > 0 {
				add("line", fmt.Sprint(f.Line))
				if f.Column > 0 {
					add("col", fmt.Sprint(f.Column))
				}
			}
		}
		add("title", f.Rule)
		command := "error"
		if f.Severity == Warning {
			command = "warning"
		}
		_, err := fmt.Fprintf(w, "::%s %s::%s\n", command, strings.Join(properties, ","), escapeData(printable.Text(f.Message)))
		if err != nil {
			return fmt.Errorf("write the findings: %w", err)
		}
	}
	return nil
}

// escapeData writes what would end a workflow command, as GitHub's runner reads it back.
func escapeData(text string) string {
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace(text)
}

// escapeProperty is escapeData for a property's value, where a colon and a comma would end it too.
func escapeProperty(text string) string {
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C").Replace(text)
}
