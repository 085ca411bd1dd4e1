package sealed

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
)

// Limits of what is read: no sealed file of a fleet repository comes near them.
const (
	maxPlaintext = 16 << 20
	maxIdentity  = 1 << 20
)

// ErrNoIdentity is returned when sealed data is met and no identity was given.
var ErrNoIdentity = errors.New("no age identity was given (--age-identity FILE)")

// ErrOtherRecipients is returned when none of the identities opens sealed data.
var ErrOtherRecipients = errors.New("it is sealed to other recipients; give the identity of one of them, or have one of them seal it anew with yours in recipients.txt")

const intro = "age-encryption.org/"

// IsSealed says whether data is an age file, binary or armored.
func IsSealed(data []byte) bool {
	trimmed := bytes.TrimLeft(data, " \t\r\n")
	return bytes.HasPrefix(data, []byte(intro)) || bytes.HasPrefix(trimmed, []byte(armor.Header))
}

// Identities are the keys that open sealed files, and the memory of what was in them. A nil *Identities opens plain data
// only. Safe for use by many goroutines.
type Identities struct {
	identities []age.Identity

	mu     sync.Mutex
	known  map[string]struct{}
	values []string // in the order in which they were seen
}

// LoadIdentities reads age identities from files: age-keygen's format (several keys a file) or an SSH private key.
func LoadIdentities(files ...string) (*Identities, error) {
	all := &Identities{}
	for _, file := range files {
		data, err := readBounded(file, maxIdentity)
		if err != nil {
			return nil, fmt.Errorf("reading the age identity: %w", err)
		}
		found, err := parseIdentities(file, data)
		if err != nil {
			return nil, err
		}
		all.identities = append(all.identities, found...)
	}
	return all, nil
}

// ParseIdentities reads age identities from data; name stands in errors for where it came from.
func ParseIdentities(name string, data []byte) (*Identities, error) {
	found, err := parseIdentities(name, data)
	if err != nil {
		return nil, err
	}
	return &Identities{identities: found}, nil
}

func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes, which no key is", file, limit)
	}
	return data, nil
}

// parseIdentities never puts the parser's own words into an error where they could quote a key.
func parseIdentities(name string, data []byte) ([]age.Identity, error) {
	if IsSealed(data) {
		return nil, fmt.Errorf("%s is protected by a passphrase, which can't be asked for here; give an identity that isn't (age -d %s > FILE)", name, name)
	}
	if bytes.Contains(data, []byte("-----BEGIN")) {
		identity, err := agessh.ParseIdentity(data)
		if err == nil {
			return []age.Identity{identity}, nil
		}
		if strings.Contains(err.Error(), "passphrase") {
			return nil, fmt.Errorf("%s is an SSH key protected by a passphrase, which can't be asked for here; give one that isn't, or an age identity", name)
		}
		return nil, fmt.Errorf("%s is not an SSH private key that age understands (ed25519 or RSA)", name)
	}
	var identities []age.Identity
	lines := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parsed, err := age.ParseIdentities(strings.NewReader(line))
		if err != nil {
			return nil, fmt.Errorf("%s: line %d is not an age identity (AGE-SECRET-KEY-1...)", name, number)
		}
		identities = append(identities, parsed...)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s is not a file of age identities: a line is too long", name)
	}
	if len(identities) == 0 {
		return nil, fmt.Errorf("%s holds no age identity (AGE-SECRET-KEY-1... or an SSH private key)", name)
	}
	return identities, nil
}

// Len is how many identities there are.
func (i *Identities) Len() int {
	if i == nil {
		return 0
	}
	return len(i.identities)
}

// Open gives the plaintext of sealed data, and plain data as it is. The second result says whether it was sealed.
// Values of what was sealed are remembered (Values).
func (i *Identities) Open(name string, data []byte) (plain []byte, wasSealed bool, err error) {
	if !IsSealed(data) {
		return data, false, nil
	}
	if i.Len() == 0 {
		return nil, true, fmt.Errorf("%s can't be opened: %w", name, ErrNoIdentity)
	}
	plain, err = i.decrypt(data)
	if err != nil {
		return nil, true, fmt.Errorf("%s can't be opened by the %s given: %w", name, count(i.Len()), err)
	}
	i.remember(plain)
	return plain, true, nil
}

func count(identities int) string {
	if identities == 1 {
		return "1 identity"
	}
	return fmt.Sprintf("%d identities", identities)
}

func (i *Identities) decrypt(data []byte) ([]byte, error) {
	var source io.Reader = bytes.NewReader(data)
	if !bytes.HasPrefix(data, []byte(intro)) {
		source = armor.NewReader(source)
	}
	opened, err := age.Decrypt(source, i.identities...)
	if err != nil {
		var noMatch *age.NoIdentityMatchError
		if errors.As(err, &noMatch) {
			return nil, ErrOtherRecipients
		}
		return nil, errors.New("it is damaged or no age file")
	}
	plain, err := io.ReadAll(io.LimitReader(opened, maxPlaintext+1))
	if err != nil {
		return nil, errors.New("it is damaged: it doesn't open to its end")
	}
	if len(plain) > maxPlaintext {
		return nil, fmt.Errorf("it opens to more than %d MiB", maxPlaintext>>20)
	}
	return plain, nil
}

func (i *Identities) remember(plain []byte) {
	found := Scalars(plain)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.known == nil {
		i.known = map[string]struct{}{}
	}
	for _, value := range found {
		if _, is := i.known[value]; !is {
			i.known[value] = struct{}{}
			i.values = append(i.values, value)
		}
	}
}

// Values gives every value that was seen inside a sealed file so far, sorted. They are secrets: for scrubbers only.
func (i *Identities) Values() []string {
	if i == nil {
		return nil
	}
	values := slices.Clone(i.ValuesAfter(0))
	slices.Sort(values)
	return values
}

// ValuesAfter gives the values that were seen after the first n, in the order in which they were seen: for who asks again and again.
// Nobody may change them.
func (i *Identities) ValuesAfter(n int) []string {
	if i == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clip(i.values[min(n, len(i.values)):])
}
