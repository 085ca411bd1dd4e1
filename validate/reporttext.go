package validate

import (
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"

	"ichor.maesh.dev/internal/printable"
)

// TextOptions says how a report is written as text.
type TextOptions struct {
	// Source gives a file as it was judged, so that the line at which a finding points can be shown; nil when it can't.
	Source func(file string) []byte
	// Colour is for a terminal that shows colours.
	Colour bool
}

// WriteText writes the findings file by file, with an empty line between two files. Each begins with a line of the form
// "file:line:col: severity: rule: message"; the line at which it points follows where it can be shown. Control characters
// never reach a terminal, and no line is shown of which anything looks like a secret.
func (r Report) WriteText(w io.Writer, o TextOptions) error {
	out := &textReport{style: style{o.Colour}, source: o.Source, secret: map[string]bool{}, secrecy: newSecrecy()}
	for _, f := range r.Findings {
		if f.Rule == RuleSecret {
			out.secret[f.File] = true
		}
	}
	for i, f := range r.Findings {
		if i > 0 && f.File != r.Findings[i-1].File {
			out.text.WriteString("\n")
		}
		out.finding(f)
	}
	if _, err := io.WriteString(w, out.text.String()); err != nil {
		return fmt.Errorf("write the findings: %w", err)
	}
	return nil
}

type textReport struct {
	style
	text   strings.Builder
	source func(file string) []byte
	// secret are the files in which secrets stand: of them nothing is shown.
	secret  map[string]bool
	secrecy secrecy
	// file and lines are the file that was shown last.
	file  string
	lines []string
}

func (t *textReport) finding(f Finding) {
	place, rest, _ := strings.Cut(printable.Text(f.String()), string(f.Severity)+": ")
	colour := red
	if f.Severity == Warning {
		colour = yellow
	}
	fmt.Fprintf(&t.text, "%s%s %s\n", t.paint(bold, place), t.paint(colour, string(f.Severity)+":"), rest)
	line, ok := t.line(f)
	if !ok {
		return
	}
	shown, offset := excerpt(line, f.Column)
	margin := fmt.Sprintf("%6d | ", f.Line)
	fmt.Fprintf(&t.text, "%s%s\n", t.paint(faint, margin), shown)
	if f.Column > 0 {
		fmt.Fprintf(&t.text, "%s%s\n", t.paint(faint, strings.Repeat(" ", len(margin)-2)+"| "), strings.Repeat(" ", offset)+t.paint(colour, "^"))
	}
}

// line gives the line at which a finding points, if it may be shown.
func (t *textReport) line(f Finding) (string, bool) {
	extension := path.Ext(f.File)
	if t.source == nil || f.Line < 1 || t.secret[f.File] || f.Rule == RuleSecret || extension != ".yaml" && extension != ".yml" {
		return "", false
	}
	if t.file != f.File || t.lines == nil {
		text := strings.TrimPrefix(string(t.source(f.File)), "\ufeff")
		t.file, t.lines = f.File, strings.Split(text, "\n")
	}
	if f.Line > len(t.lines) {
		return "", false
	}
	line := strings.TrimSuffix(t.lines[f.Line-1], "\r")
	if strings.TrimSpace(line) == "" || len(line) > maxLooked || !utf8.ValidString(line) || t.secrecy.suspects(line) {
		return "", false
	}
	return line, true
}

// secrecy tells lines in which a secret may stand. It errs on the safe side, since a log is read by more people than a
// repository.
type secrecy struct{ names, sealed, run, plain *regexp.Regexp }

func newSecrecy() secrecy {
	return secrecy{
		names: regexp.MustCompile(`(?i)secret|token|passw|passphrase|private|credential|access_?key|api_?key|client-?key|\b(key|crt|auth\w*)\b|\bcert|AGE-SECRET|-----BEGIN|\bAKIA`),
		// A sealed file's name is no secret.
		sealed: regexp.MustCompile(`\bfile:\s*["']?[\w./-]+\.age\b`),
		// What only a machine would write, and the parts of it that are none: words of a path, UUIDs, the ID of an image.
		run:   regexp.MustCompile(`[A-Za-z0-9+/=_-]{33,}`),
		plain: regexp.MustCompile(`^([a-z0-9_-]{0,32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{64})$`),
	}
}

func (s secrecy) suspects(line string) bool {
	if s.names.MatchString(line) && !s.sealed.MatchString(line) {
		return true
	}
	for _, run := range s.run.FindAllString(line, -1) {
		for part := range strings.SplitSeq(run, "/") {
			if !s.plain.MatchString(part) {
				return true
			}
		}
	}
	return false
}

const (
	// maxLine is how much of a line is shown, and before how much of it stands before the column.
	maxLine  = 120
	maxAhead = 60
	// maxLooked is the longest line, in bytes, of which anything is shown: no person wrote a longer one.
	maxLooked = 16 << 10
)

// excerpt gives a line as it may be shown, and how many columns of the terminal stand before the given column of it.
func excerpt(line string, column int) (string, int) {
	runes := []rune(line)
	at := min(max(column-1, 0), len(runes))
	begin, end := 0, len(runes)
	if end > maxLine {
		begin = max(0, min(at-maxAhead, end-maxLine))
		end = begin + maxLine
	}
	before, after := printable.Text(string(runes[begin:at])), ""
	if at < end {
		after = printable.Text(string(runes[at:end]))
	}
	if begin > 0 {
		before = "…" + before
	}
	if end < len(runes) {
		after += "…"
	}
	return before + after, columns(before)
}

// columns gives how many columns of a terminal a text takes.
func columns(text string) int {
	count := 0
	for _, r := range text {
		switch kind := width.LookupRune(r).Kind(); {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case kind == width.EastAsianWide || kind == width.EastAsianFullwidth:
			count += 2
		default:
			count++
		}
	}
	return count
}

// style paints text where colours are shown.
type style struct{ colours bool }

const (
	bold   = "1"
	faint  = "2"
	red    = "1;31"
	yellow = "1;33"
)

func (s style) paint(code, text string) string {
	if !s.colours || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
