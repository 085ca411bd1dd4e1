package operation

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/internal/printable"
)

// options are the options of a line of allowed signers.
type options struct {
	authority bool
	// namespaces are patterns; hasNamespaces tells an empty list from none.
	namespaces    string
	hasNamespaces bool
	after, before time.Time
}

// allows says whether the line gives a right to a namespace.
func (o options) allows(namespace string) bool {
	return o.hasNamespaces && matchesList(namespace, o.namespaces)
}

// cutOptions takes the options from the beginning of a text: they end at the first blank outside of quotes.
func cutOptions(text string) (opts, rest string, err error) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\' && i+1 < len(text) && text[i+1] == '"':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ' ' || c == '\t'):
			return text[:i], text[i:], nil
		}
	}
	if quoted {
		return "", "", errors.New("the quotes of an option are not closed")
	}
	return text, "", nil
}

// parseOptions reads options divided by commas. Their names may be written in capitals, as OpenSSH has it.
func parseOptions(text string) (options, error) {
	var o options
	seen := map[string]bool{}
	for rest := text; ; {
		end := strings.IndexAny(rest, `=,`)
		if end < 0 {
			end = len(rest)
		}
		name := strings.ToLower(rest[:end])
		rest = rest[end:]
		if seen[name] {
			return o, fmt.Errorf("the option %s is given twice", printable.Text(name))
		}
		seen[name] = true
		value := ""
		if name != "cert-authority" && strings.HasPrefix(rest, "=") {
			var err error
			if value, rest, err = cutValue(name, rest[1:]); err != nil {
				return o, err
			}
		}
		if err := o.set(name, value); err != nil {
			return o, err
		}
		if rest == "" {
			break
		}
		if rest[0] != ',' || len(rest) == 1 {
			return o, fmt.Errorf("something is wrong behind the option %s; options are divided by single commas, without blanks", printable.Text(name))
		}
		rest = rest[1:]
	}
	if !o.after.IsZero() && !o.before.IsZero() && !o.before.After(o.after) {
		return o, errors.New("valid-before is not after valid-after, so the line never holds")
	}
	return o, nil
}

// cutValue takes a value in quotes from the beginning of a text.
func cutValue(name, text string) (value, rest string, err error) {
	text, ok := strings.CutPrefix(text, `"`)
	if !ok {
		return "", "", fmt.Errorf(`the value of %s must stand in quotes, as in %s="..."`, printable.Text(name), printable.Text(name))
	}
	var read strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && text[i+1] == '"':
			read.WriteByte('"')
			i++
		case text[i] == '"':
			return read.String(), text[i+1:], nil
		default:
			read.WriteByte(text[i])
		}
	}
	return "", "", fmt.Errorf("the quotes of the option %s are not closed", printable.Text(name))
}

func (o *options) set(name, value string) (err error) {
	switch name {
	case "cert-authority":
		o.authority = true
	case "namespaces":
		if strings.ContainsAny(value, " \t") {
			return fmt.Errorf("the namespaces %q hold a blank; they are divided by single commas, without blanks", printable.Text(value))
		}
		o.namespaces, o.hasNamespaces = value, true
	case "valid-after":
		o.after, err = parseTime(value)
	case "valid-before":
		o.before, err = parseTime(value)
	default:
		return fmt.Errorf("%q is no option of allowed signers; they are cert-authority, namespaces=, valid-after= and valid-before=", printable.Text(name))
	}
	if err != nil {
		return fmt.Errorf("%s is %q, and must be a time as in 20261129, 202611291000 or 20261129100000, in UTC (with a Z, so that OpenSSH takes it for UTC too)",
			name, printable.Text(value))
	}
	return nil
}

// parseTime reads a time as OpenSSH writes it. Without a zone it is UTC here; OpenSSH takes it for the time of its machine.
func parseTime(text string) (time.Time, error) {
	digits := text
	if cut := len(text) - 1; cut > 0 && strings.EqualFold(text[cut:], "Z") {
		digits = text[:cut]
	} else if cut := len(text) - 3; cut > 0 && strings.EqualFold(text[cut:], "UTC") {
		digits = text[:cut]
	}
	if strings.Trim(digits, "0123456789") != "" {
		return time.Time{}, errors.New("it isn't digits")
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(digits) == len(layout) {
			return time.ParseInLocation(layout, digits, time.UTC)
		}
	}
	return time.Time{}, errors.New("it has the wrong length")
}
