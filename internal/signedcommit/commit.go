package signedcommit

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// maxObject bounds a commit object that is read, maxSignature the signature in it, in bytes.
const (
	maxObject    = 16 << 20
	maxSignature = 64 << 10
)

// Format is the kind of a signature.
type Format string

// The formats of signatures. X509 is known and not read.
const (
	None    Format = ""
	SSH     Format = "ssh"
	OpenPGP Format = "openpgp"
	X509    Format = "x509"
)

// Commit is a commit object taken apart.
type Commit struct {
	// Tree and Parents are what the commit says of itself, as 40 hex digits.
	Tree    string
	Parents []string
	// Payload are the bytes that were signed: the object without its signature. They share no memory with the object.
	Payload []byte
	// Signature is the armoured signature, Format its kind; both are empty in a commit that isn't signed.
	Signature []byte
	Format    Format
}

// Parse takes a commit object apart. An error says in a sentence why it isn't one that can be judged.
func Parse(object []byte) (Commit, error) {
	if len(object) > maxObject {
		return Commit{}, fmt.Errorf("it has %d bytes, and may have %d", len(object), maxObject)
	}
	if bytes.IndexByte(object, 0) >= 0 {
		return Commit{}, errors.New("it holds a zero byte, behind which some programs read nothing")
	}
	head, _, found := bytes.Cut(object, []byte("\n\n"))
	if !found { // a commit without a message ends with its last header
		head = bytes.TrimSuffix(object, []byte("\n"))
	}
	p := parser{}
	for _, line := range strings.Split(string(head), "\n") {
		if err := p.line(line); err != nil {
			return Commit{}, err
		}
	}
	if p.stage < stageExtra {
		return Commit{}, fmt.Errorf("its headers end before its %s", p.stage.missing())
	}
	p.payload.Write(object[len(head):])
	return p.commit()
}

// stage is which header comes next.
type stage int

const (
	stageTree stage = iota
	stageParents
	stageCommitter
	stageExtra
)

func (s stage) missing() string {
	return [...]string{"tree", "author", "committer"}[s]
}

// parser reads the headers of a commit, in the one order in which Git writes them.
type parser struct {
	stage     stage
	read      Commit
	payload   bytes.Buffer
	signature []string
	// signed says that a signature was read, inside that the lines that follow go on with it; further that a header behind the committer
	// was read, which may have several lines.
	signed, inside, further bool
}

const signatureHeader = "gpgsig"

func (p *parser) line(line string) error {
	for _, c := range []byte(line) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return fmt.Errorf("a header holds a control character (byte 0x%02x)", c)
		}
	}
	if more, ok := strings.CutPrefix(line, " "); ok {
		if !p.further {
			return errors.New("a header begins with a blank where none goes on")
		}
		if p.inside {
			p.signature = append(p.signature, more)
			return nil
		}
		p.keep(line)
		return nil
	}
	p.inside = false
	name, value, found := strings.Cut(line, " ")
	if !found || name == "" {
		return fmt.Errorf("a header has no value")
	}
	return p.header(line, name, value)
}

func (p *parser) header(line, name, value string) error {
	switch {
	case p.stage == stageTree && name == "tree" && isHash(value):
		p.stage, p.read.Tree = stageParents, value
	case p.stage == stageParents && name == "parent" && isHash(value):
		p.read.Parents = append(p.read.Parents, value)
	case p.stage == stageParents && name == "author":
		p.stage = stageCommitter
	case p.stage == stageCommitter && name == "committer":
		p.stage = stageExtra
	case p.stage < stageExtra:
		return fmt.Errorf("its headers are not those of a commit, in their order: %q stands before its %s", clip(name), p.stage.missing())
	case name == "tree" || name == "parent" || name == "author" || name == "committer":
		return fmt.Errorf("it has a second %s among its further headers", name)
	}
	p.further = p.stage == stageExtra && name != "committer"
	switch {
	case name == signatureHeader && p.signed:
		return errors.New("it has two signatures, so one of them covers other bytes than the other")
	case name == signatureHeader:
		p.signed, p.inside = true, true
		p.signature = append(p.signature, value)
		return nil
	case strings.HasPrefix(name, signatureHeader): // gpgsig-sha256: Git leaves it out of what is signed
		return fmt.Errorf("it has a header %s, which no signature covers", clip(name))
	}
	p.keep(line)
	return nil
}

func (p *parser) keep(line string) {
	if p.payload.Len() > 0 {
		p.payload.WriteByte('\n')
	}
	p.payload.WriteString(line)
}

// commit gives what was read.
func (p *parser) commit() (Commit, error) {
	c := p.read
	c.Payload = p.payload.Bytes()
	if !p.signed {
		return c, nil
	}
	text := strings.TrimRight(strings.Join(p.signature, "\n"), "\n") + "\n"
	if len(text) > maxSignature {
		return Commit{}, fmt.Errorf("its signature has %d bytes, and may have %d", len(text), maxSignature)
	}
	c.Signature = []byte(text)
	for begin, format := range map[string]Format{
		"-----BEGIN SSH SIGNATURE-----\n":  SSH,
		"-----BEGIN PGP SIGNATURE-----\n":  OpenPGP,
		"-----BEGIN PGP MESSAGE-----\n":    OpenPGP,
		"-----BEGIN SIGNED MESSAGE-----\n": X509,
	} {
		if strings.HasPrefix(text, begin) {
			c.Format = format
		}
	}
	if c.Format == None {
		return Commit{}, errors.New("its signature is of no kind that Git knows")
	}
	return c, nil
}

func clip(text string) string { return text[:min(len(text), 40)] }

// isHash tells whether text is a full SHA-1 in lower-case hex.
func isHash(text string) bool {
	return len(text) == 40 && strings.Trim(text, "0123456789abcdef") == ""
}

// WithSignature gives the object of a commit that isn't signed with a signature in it, which is over object.
func WithSignature(object, signature []byte) []byte {
	header := "\n" + signatureHeader + " " + strings.ReplaceAll(strings.TrimRight(string(signature), "\n"), "\n", "\n ") + "\n\n"
	return bytes.Replace(object, []byte("\n\n"), []byte(header), 1)
}
