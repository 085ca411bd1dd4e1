package validate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"ichor.maesh.dev/schema"
)

// Checked says how much was looked at.
type Checked struct {
	Files   int `json:"files"`
	Objects int `json:"objects"`
	// Rules is how many rules were evaluated; those that need a base are not when there is none.
	Rules int `json:"rules"`
	// Rendered is how many Talos configs were rendered and checked.
	Rendered int `json:"rendered"`
	// Renderings is how many it took: machines that are alike share one.
	Renderings int `json:"-"`
	// Base is the revision that the proposal was compared with; empty when there was none.
	Base string `json:"base"`
}

// Report is the answer of `ichor validate`. Its JSON form is stable.
type Report struct {
	Findings []Finding `json:"findings"`
	Checked  Checked   `json:"checked"`
}

// Objects counts the objects of a fleet.
func Objects(f *schema.Fleet) int {
	return len(f.Clusters) + len(f.Machines) + len(f.Backups) + len(f.Operations) + len(f.Policies)
}

// Count gives how many findings are errors, and how many are warnings.
func (r Report) Count() (errorCount, warnings int) {
	for _, f := range r.Findings {
		if f.Severity == Error {
			errorCount++
		} else {
			warnings++
		}
	}
	return errorCount, warnings
}

// WriteJSON writes the report as indented JSON.
func (r Report) WriteJSON(w io.Writer) error {
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	return writeJSON(w, r)
}

func writeJSON(w io.Writer, value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write the findings: %w", err)
	}
	if _, err := io.WriteString(w, escapeActing(text.String())); err != nil {
		return fmt.Errorf("write the findings: %w", err)
	}
	return nil
}

// escapeActing writes what could do something to a terminal (C1 controls, bidirectional overrides) as JSON escapes. The
// ASCII controls are escaped by the encoder.
func escapeActing(text string) string {
	var out strings.Builder
	out.Grow(len(text))
	for _, r := range text {
		if r > unicode.MaxASCII && !unicode.IsGraphic(r) {
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&out, "\\u%04x", unit)
			}
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}
