package schema

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// IgnoreFile names what is left out, in gitignore's syntax. One may stand in any folder; it speaks for that folder and
// what is below it.
const IgnoreFile = ".ichorignore"

// ignorePattern is one line of an ignore file.
type ignorePattern struct {
	folder     string // where the file stands, "." for the root
	regexp     *regexp.Regexp
	again      bool // the line begins with "!": take in again
	onlyFolder bool // the line ends with "/"
}

// ignores says whether a name is left out. The last pattern that matches decides, as in Git.
func ignores(patterns []ignorePattern, name string, isFolder bool) bool {
	for i := len(patterns) - 1; i >= 0; i-- {
		p := patterns[i]
		if p.onlyFolder && !isFolder {
			continue
		}
		if p.regexp.MatchString(below(p.folder, name)) {
			return !p.again
		}
	}
	return false
}

// below gives a name relative to a folder around it.
func below(folder, name string) string {
	if folder == "." {
		return name
	}
	return strings.TrimPrefix(name, folder+"/")
}

// readIgnore reads a folder's ignore file, if there is one.
func readIgnore(tree fs.FS, folder string) ([]ignorePattern, error) {
	data, err := readRegular(tree, path.Join(folder, IgnoreFile), maxIgnoreSize)
	if err != nil {
		return nil, err
	}
	var patterns []ignorePattern
	for i, line := range bytes.Split(data, []byte("\n")) {
		p, ok, err := parseIgnore(folder, strings.TrimSuffix(string(line), "\r"))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if ok {
			patterns = append(patterns, p)
		}
		if len(patterns) > maxIgnoreLines {
			return nil, fmt.Errorf("it holds more than %d patterns", maxIgnoreLines)
		}
	}
	return patterns, nil
}

// parseIgnore reads a line as git does (gitignore(5), "Pattern format").
func parseIgnore(folder, line string) (ignorePattern, bool, error) {
	line = trimSpaces(line)
	if line == "" || line[0] == '#' {
		return ignorePattern{}, false, nil
	}
	p := ignorePattern{folder: folder}
	if line[0] == '!' {
		p.again = true
		line = line[1:]
	}
	if strings.HasSuffix(line, "/") {
		p.onlyFolder = true
		line = line[:len(line)-1]
	}
	// A slash that isn't the last character ties the pattern to this folder; else it matches at any depth.
	tied := strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return ignorePattern{}, false, nil
	}
	expression := globExpression(line)
	if !tied {
		expression = `(?:.*/)?` + expression
	}
	compiled, err := regexp.Compile(`^(?s:` + expression + `)$`)
	if err != nil {
		return ignorePattern{}, false, fmt.Errorf("%s is no pattern that can be read", shown(line))
	}
	p.regexp = compiled
	return p, true, nil
}

// trimSpaces drops spaces at the end that no backslash keeps.
func trimSpaces(line string) string {
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	return line
}

// globExpression turns a pattern into a regular expression, whose matching takes linear time whatever the pattern.
func globExpression(glob string) string {
	var out strings.Builder
	parts := strings.Split(glob, "/")
	for i, part := range parts {
		last := i == len(parts)-1
		switch {
		case part == "**" && last:
			out.WriteString(`.+`)
		case part == "**":
			out.WriteString(`(?:.*/)?`)
		default:
			partExpression(&out, part)
			if !last {
				out.WriteByte('/')
			}
		}
	}
	return out.String()
}

// partExpression turns what stands between two slashes into a regular expression.
func partExpression(out *strings.Builder, part string) {
	for i := 0; i < len(part); i++ {
		switch c := part[i]; c {
		case '*':
			out.WriteString(`[^/]*`)
		case '?':
			out.WriteString(`[^/]`)
		case '\\':
			if i+1 < len(part) {
				i++
			}
			writeQuoted(out, part[i])
		case '[':
			if class, length := classExpression(part[i:]); length > 0 {
				out.WriteString(class)
				i += length - 1
			} else {
				out.WriteString(`\[`)
			}
		default:
			writeQuoted(out, c)
		}
	}
}

// writeQuoted writes a byte that stands for itself. Bytes beyond ASCII are parts of a character and stay as they are.
func writeQuoted(out *strings.Builder, c byte) {
	if c < 0x80 {
		out.WriteString(regexp.QuoteMeta(string(rune(c))))
		return
	}
	out.WriteByte(c)
}

// classExpression turns "[a-z]", "[!a-z]" or "[[:digit:]]" into a class, and says how long it was; 0 when no "]" ends it.
func classExpression(part string) (string, int) {
	var out strings.Builder
	i := 1
	if i < len(part) && (part[i] == '!' || part[i] == '^') {
		out.WriteString(`[^/`)
		i++
	} else {
		out.WriteByte('[')
	}
	for start := i; i < len(part); i++ {
		switch c := part[i]; {
		case c == ']' && i > start:
			out.WriteByte(']')
			return out.String(), i + 1
		case c == '[' && namedClass(part[i:]) != "":
			name := namedClass(part[i:])
			out.WriteString(name)
			i += len(name) - 1
		case c == '-':
			out.WriteByte('-')
		case c == '\\' && i+1 < len(part):
			i++
			writeInClass(&out, part[i])
		default:
			writeInClass(&out, c)
		}
	}
	return "", 0
}

// writeInClass writes a byte that stands for itself in a class.
func writeInClass(out *strings.Builder, c byte) {
	if strings.IndexByte(`\[]^-&~`, c) >= 0 {
		out.WriteByte('\\')
	}
	out.WriteByte(c)
}

// namedClass gives the "[:digit:]" that s begins with, if it does. Go knows the names that Git knows.
func namedClass(s string) string {
	if end := strings.Index(s, ":]"); strings.HasPrefix(s, "[:") && end > 0 {
		return s[:end+2]
	}
	return ""
}
