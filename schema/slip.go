package schema

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// slip says what a person probably did where the parser gave up, and the way out: the parser says what it expected, which
// tells the person who wrote the file little. It is empty where nothing likely is seen.
func slip(data []byte, at Position, text string) string {
	line := lineOf(data, at.Line)
	switch {
	case startsWithTab(line):
		return "a tab can't indent YAML, use spaces"
	case strings.Contains(indentOf(line), "\u00a0"):
		return fmt.Sprintf("line %d is indented with no-break spaces, as text from a web page is; use plain ones", at.Line)
	case strings.Contains(indentOf(lineOf(data, at.Line-1)), "\u00a0"):
		return fmt.Sprintf("line %d is indented with no-break spaces, as text from a web page is; use plain ones", at.Line-1)
	case strings.Contains(text, "cannot start any token"):
		return fmt.Sprintf("put a text that begins with %s in quotes", firstMark(line))
	case strings.Contains(text, "scanning an alias"), strings.HasPrefix(text, "unknown anchor"):
		return "put a text that begins with * in quotes"
	case strings.Contains(text, "scanning an anchor"):
		return "put a text that begins with & in quotes"
	case strings.Contains(text, "scanning a quoted scalar"):
		return "close the quote"
	case strings.Contains(text, "parsing a flow sequence"):
		return "close the bracket, and put a text that holds a comma, a bracket or a colon in quotes"
	case strings.Contains(text, "parsing a flow mapping"):
		return "close the brace, and put a text that holds a comma, a brace or a colon in quotes"
	case strings.Contains(text, "mapping values are not allowed"):
		return colonSlip(data, at)
	case strings.Contains(text, "expected ':'"):
		return "write a colon and a space behind the name of each field"
	case strings.Contains(text, "expected '-' indicator"):
		return "indent all items of a list alike, each with a dash and a space"
	case strings.Contains(text, "did not find expected key"):
		return keySlip(line, at.Line)
	}
	return ""
}

// colonSlip is about a colon where none may stand.
func colonSlip(data []byte, at Position) string {
	line := lineOf(data, at.Line)
	if name, value, found := strings.Cut(strings.TrimSpace(line), ": "); found && strings.Contains(value, ": ") && !strings.ContainsAny(name, `"'`) {
		return `put a text that holds a colon and a space in quotes`
	}
	return fmt.Sprintf("indent line %d as the lines beside it, and write a colon behind the name in the line before it", at.Line)
}

// keySlip is about a line that is no field of what it stands in.
func keySlip(line string, number int) string {
	if bracketed.MatchString(line) {
		return "put a text that begins with a bracket or a brace in quotes"
	}
	if quoted.MatchString(line) {
		return "put the whole text in quotes, and double a quote that stands in it"
	}
	return fmt.Sprintf("indent line %d as the lines beside it", number)
}

var (
	bracketed = regexp.MustCompile(`[:-] +[\[{].*[\]}][^\s,\]}]`)
	quoted    = regexp.MustCompile(`[:-] +["'].*["'] *[^\s#]`)
)

// conflict finds the first mark of a merge that was not settled; 0 when there is none.
func conflict(data []byte) int {
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if bytes.HasPrefix(line, []byte("<<<<<<< ")) || bytes.HasPrefix(line, []byte(">>>>>>> ")) {
			return number
		}
	}
	return 0
}

// lineOf gives a line of a file by its number, empty where there is none.
func lineOf(data []byte, number int) string {
	if number < 1 {
		return ""
	}
	lines := bytes.SplitN(data, []byte("\n"), number+1)
	if number > len(lines) {
		return ""
	}
	return string(lines[number-1])
}

func indentOf(line string) string {
	return line[:len(line)-len(strings.TrimLeft(line, " \t\u00a0"))]
}

func startsWithTab(line string) bool { return strings.Contains(indentOf(line), "\t") }

// firstMark gives the mark that a line's value begins with, as far as it can be made out.
func firstMark(line string) string {
	if match := regexp.MustCompile("(?:^|[:-] +|^\\s*)([@`%])").FindStringSubmatch(line); match != nil {
		return match[1]
	}
	return "a mark"
}
