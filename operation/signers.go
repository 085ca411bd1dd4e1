package operation

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/internal/printable"
)

// maxSignersSize bounds the files of allowed and of revoked signers.
const maxSignersSize = 4 << 20

// AllowedSigners says who may sign what. It is read from a file in OpenSSH's format (ssh-keygen(1), ALLOWED SIGNERS), with
// these differences: a line without namespaces= gives no right to operations (to commits it does), a time without Z is UTC, and a line that can't
// be read refuses the whole file.
type AllowedSigners struct {
	lines   []signerLine
	revoked map[string]int // the lines of the revoked keys by their wire form
}

// signerLine is one line of the file.
type signerLine struct {
	number     int
	principals string
	key        ssh.PublicKey
	options
}

// ParseAllowedSigners reads a file of allowed signers. name stands in errors.
func ParseAllowedSigners(name string, data []byte) (*AllowedSigners, error) {
	signers := &AllowedSigners{}
	err := eachLine(name, data, func(number int, text string) error {
		line, err := parseSigner(text)
		if err != nil {
			return err
		}
		line.number = number
		signers.lines = append(signers.lines, line)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return signers, nil
}

// Revoke takes the right to sign from the keys of a list, one a line, and from certificates of those authorities. It is
// called before the signers are used. name stands in errors.
func (s *AllowedSigners) Revoke(name string, data []byte) error {
	if bytes.HasPrefix(data, []byte("SSHKRL\n\x00")) {
		return fmt.Errorf("%s is a binary revocation list (KRL), which is not read; list the revoked public keys in a text file, one a line", name)
	}
	if s.revoked == nil {
		s.revoked = map[string]int{}
	}
	return eachLine(name, data, func(number int, text string) error {
		key, err := parseKey(text)
		if err == nil {
			s.revoked[string(key.Marshal())] = number
		}
		return err
	})
}

// eachLine visits the lines that aren't empty or comments.
func eachLine(name string, data []byte, visit func(number int, text string) error) error {
	if len(data) > maxSignersSize {
		return fmt.Errorf("%s has %d bytes, and may have %d", name, len(data), maxSignersSize)
	}
	for i, text := range strings.Split(string(data), "\n") {
		text = strings.TrimLeft(strings.TrimSuffix(text, "\r"), " \t")
		if text == "" || text[0] == '#' {
			continue
		}
		for _, c := range []byte(text) {
			if c < ' ' && c != '\t' || c == 0x7f {
				return fmt.Errorf("%s:%d: the line holds a control character (byte 0x%02x); leave it out", name, i+1, c)
			}
		}
		if err := visit(i+1, text); err != nil {
			return fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
	}
	return nil
}

// parseSigner reads a line: principals, options if there are any, the key, a comment.
func parseSigner(text string) (signerLine, error) {
	line := signerLine{}
	principals, rest, err := cutPrincipals(text)
	if err != nil {
		return line, err
	}
	line.principals = principals
	rest = strings.TrimLeft(rest, " \t")
	if first := firstField(rest); !looksLikeKeyType(first) && rest != "" {
		var text string
		if text, rest, err = cutOptions(rest); err != nil {
			return line, err
		}
		if line.options, err = parseOptions(text); err != nil {
			return line, err
		}
	}
	line.key, err = parseKey(rest)
	return line, err
}

// cutPrincipals takes the principals from the beginning of a line. They may stand in quotes.
func cutPrincipals(text string) (principals, rest string, err error) {
	if quoted, ok := strings.CutPrefix(text, `"`); ok {
		if principals, rest, ok = strings.Cut(quoted, `"`); !ok {
			return "", "", errors.New("the principals' quotes are not closed")
		}
		if rest != "" && rest[0] != ' ' && rest[0] != '\t' {
			return "", "", errors.New("a blank is missing behind the principals' quotes")
		}
	} else {
		principals = firstField(text)
		rest = text[len(principals):]
	}
	for _, one := range strings.Split(principals, ",") {
		if one == "" || one == "!" {
			return "", "", errors.New("one of the principals is empty; they are divided by single commas, as in alice@example.com,bob@example.com")
		}
	}
	if strings.ContainsRune(principals, '"') {
		return "", "", errors.New("a quote stands inside the principals; put all of them in quotes, or none")
	}
	return principals, rest, nil
}

func firstField(text string) string {
	if end := strings.IndexAny(text, " \t"); end >= 0 {
		return text[:end]
	}
	return text
}

// looksLikeKeyType tells a key from options, so that a key of an unknown type is called what it is.
func looksLikeKeyType(word string) bool {
	return isKeyType(word) || strings.HasPrefix(word, "ssh-") || strings.HasPrefix(word, "ecdsa-") || strings.HasPrefix(word, "sk-") ||
		strings.Contains(word, "-cert-v0")
}

// parseKey reads a public key as it stands in an authorized_keys file, without options.
func parseKey(text string) (ssh.PublicKey, error) {
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return nil, errors.New("the key is missing; a line is principals, options if any, and a public key as in id_ed25519.pub")
	}
	shown := printable.Text(fields[0])
	switch {
	case strings.Contains(fields[0], "-cert-v0"):
		return nil, fmt.Errorf("%s is a certificate; give the key in its place, or its authority's with the option cert-authority", shown)
	case !isKeyType(fields[0]):
		return nil, fmt.Errorf("%q is no type of key that can sign operations; they are %s", shown, strings.Join(keyTypes(), ", "))
	}
	blob, err := base64.StdEncoding.Strict().DecodeString(fields[1])
	if err != nil {
		return nil, fmt.Errorf("the %s key is not base64; copy the line of the .pub file whole", shown)
	}
	key, err := ssh.ParsePublicKey(blob)
	if err != nil {
		return nil, fmt.Errorf("the %s key can't be read; copy the line of the .pub file whole", shown)
	}
	if key.Type() != fields[0] {
		return nil, fmt.Errorf("the line says %s and its key is of type %s; copy the line of the .pub file whole", shown, printable.Text(key.Type()))
	}
	return key, nil
}

// Right is what one line allows on one cluster.
type Right struct {
	Cluster string
	// Line is the line, Principals its labels, Fingerprint its key's. Authority says that the key is that of an authority, and
	// that the right is its certificates'.
	Line        int
	Principals  string
	Fingerprint string
	Authority   bool
	// Operations and Overrides are what may be signed.
	Operations, Overrides bool
	// From and Until bound the right in time; zero: no bound.
	From, Until time.Time
}

// Rights lists who may sign what on these clusters, in the order of the clusters and the lines. Keys that are revoked or too
// weak are left out, and so is a line that allows nothing.
func (s *AllowedSigners) Rights(clusters ...string) []Right {
	var rights []Right
	for _, cluster := range clusters {
		for _, line := range s.lines {
			right := Right{Cluster: cluster, Line: line.number, Principals: printable.Text(line.principals),
				Fingerprint: ssh.FingerprintSHA256(line.key), Authority: line.authority,
				Operations: line.allows(Namespace(cluster)), Overrides: line.allows(overrideNamespace(cluster)),
				From: line.after, Until: line.before}
			_, revoked := s.revoked[string(line.key.Marshal())]
			if (right.Operations || right.Overrides) && !revoked && strongKey("", line.key) == nil {
				rights = append(rights, right)
			}
		}
	}
	return rights
}

// String says the right in words.
func (r Right) String() string {
	who := fmt.Sprintf("%s (%s, line %d)", r.Principals, r.Fingerprint, r.Line)
	if r.Authority {
		who = fmt.Sprintf("those of %s with a certificate of %s (line %d)", r.Principals, r.Fingerprint, r.Line)
	}
	what := "operations, and overrides (what wipes or rewinds)"
	switch {
	case !r.Overrides:
		what = "operations, and no overrides"
	case !r.Operations:
		what = "operations and overrides, each under the override namespace"
	}
	return fmt.Sprintf("%s may sign %s on %s%s", who, what, r.Cluster, during(r.From, r.Until))
}

// Powerless says, of each line that gives no right on any of these clusters, why it doesn't, in the order of the lines.
func (s *AllowedSigners) Powerless(clusters ...string) []string {
	var lines []string
	for _, line := range s.lines {
		may := false
		for _, cluster := range clusters {
			may = may || line.allows(Namespace(cluster)) || line.allows(overrideNamespace(cluster))
		}
		_, revoked := s.revoked[string(line.key.Marshal())]
		why := ""
		switch refusal := strongKey("its key", line.key); {
		case revoked:
			why = "its key is revoked"
		case refusal != nil:
			why = refusal.Error()
		case !line.hasNamespaces:
			why = `it has no namespaces=, and a key for signing commits must not wipe; namespaces="ichor-operation@<cluster>" would give it one`
		case !may:
			why = fmt.Sprintf("its namespaces=%q match neither ichor-operation@ nor ichor-override@ of these clusters", printable.Text(line.namespaces))
		}
		if why != "" {
			lines = append(lines, fmt.Sprintf("line %d (%s, %s) gives no right: %s", line.number, printable.Text(line.principals), ssh.FingerprintSHA256(line.key), why))
		}
	}
	return lines
}
