package sealed

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
)

// Recipient is one to whom a file is sealed, and the line that names it.
type Recipient struct {
	age.Recipient
	Text string
}

// ParseRecipients reads recipients.txt: one age or SSH public key a line; empty lines and lines that begin with # are
// comments. name stands in errors for the file.
func ParseRecipients(name string, data []byte) ([]Recipient, error) {
	var recipients []Recipient
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxIdentity)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		recipient, err := parseRecipient(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
		recipients = append(recipients, Recipient{Recipient: recipient, Text: line})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(recipients) == 0 {
		return nil, fmt.Errorf("%s names no recipient; put one age public key (age1...) a line into it", name)
	}
	return recipients, nil
}

// parseRecipient doesn't quote the line: someone may have pasted the private half.
func parseRecipient(line string) (age.Recipient, error) {
	switch {
	case strings.HasPrefix(strings.ToUpper(line), "AGE-SECRET-KEY-"):
		return nil, errors.New("this is a secret key; recipients are public keys (age-keygen -y prints yours), and this one must be replaced now")
	case strings.HasPrefix(line, "ssh-"):
		recipient, err := agessh.ParseRecipient(line)
		if err != nil {
			return nil, errors.New("not an SSH public key that age can seal to (ssh-ed25519 or ssh-rsa)")
		}
		return recipient, nil
	}
	recipients, err := age.ParseRecipients(strings.NewReader(line))
	if err != nil || len(recipients) != 1 {
		return nil, errors.New("not an age recipient; want age1... or an SSH public key")
	}
	return recipients[0], nil
}

// Seal gives data sealed to recipients as an armored age file.
func Seal(recipients []Recipient, data []byte) ([]byte, error) {
	if len(recipients) == 0 {
		return nil, errors.New("sealing needs at least one recipient")
	}
	to := make([]age.Recipient, len(recipients))
	for n, recipient := range recipients {
		to[n] = recipient.Recipient
	}
	var out bytes.Buffer
	armored := armor.NewWriter(&out)
	sealing, err := age.Encrypt(armored, to...)
	if err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	if _, err := io.Copy(sealing, bytes.NewReader(data)); err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	if err := sealing.Close(); err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	if err := armored.Close(); err != nil {
		return nil, fmt.Errorf("sealing: %w", err)
	}
	return out.Bytes(), nil
}

// CountRecipients says to how many recipients data is sealed. To whom, a sealed file doesn't say.
func CountRecipients(data []byte) (int, error) {
	counted := &counter{}
	_, err := (&Identities{identities: []age.Identity{counted}}).decrypt(data)
	if errors.Is(err, ErrOtherRecipients) {
		return counted.recipients, nil
	}
	return 0, err
}

// counter is an identity that opens nothing, and sees what it is shown.
type counter struct{ recipients int }

func (c *counter) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	for _, stanza := range stanzas {
		if !strings.HasSuffix(stanza.Type, "-grease") { // some programs add one that stands for nobody
			c.recipients++
		}
	}
	return nil, age.ErrIncorrectIdentity
}
