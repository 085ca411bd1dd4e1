package cleartext

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// shape is how a kind of secret looks: a secret stands where a needle does (in lower case) and secret says so, which gets
// the text and where the needle begins and ends in it.
type shape struct {
	needles  []string
	inBinary bool
	secret   func(t *text, begin, end int) (What, bool)
}

var shapes = []shape{
	{[]string{"private key-----", "private key block-----"}, true, pemKey},
	{[]string{"putty-user-key-file-"}, true, puttyKey},
	{[]string{"age-secret-key-", "age-plugin-"}, true, ageIdentity},
	{[]string{"secretaccesskey", "secret_access_key", "secret-access-key"}, false, s3Credentials},
	{[]string{"secretkey", "secret_key", "secret-key"}, false, minioKey},
	{[]string{"secretboxencryptionsecret", "aescbcencryptionsecret"}, false, encryptionSecret},
	{[]string{"bootstraptoken", "token"}, false, token},
	{[]string{"secret"}, false, clusterSecret},
	{[]string{"privatekey", "presharedkey"}, false, wireguardKey},
	{[]string{"passphrase"}, false, diskPassphrase},
	{[]string{"password"}, false, password},
}

// window is how far behind a needle its value may stand.
const window = 1024

var (
	pemBegin = regexp.MustCompile(`-----BEGIN ([A-Z0-9 ]*)$`)
	// pemBody is the first line of a key behind its head: line breaks may be real or escaped, and header lines come first.
	pemBody = regexp.MustCompile(`^(?:\s|\\[nrt]|["'+,|>#*]|[A-Za-z-]+: [^\n\\]*(?:\n|\\n))*[A-Za-z0-9+/]{32}`)
	ageKey  = regexp.MustCompile(`^(?i:AGE-SECRET-KEY-(?:[A-Z0-9]+-)?1|AGE-PLUGIN-[A-Z0-9+._-]{1,64}?-1)([AC-HJ-NP-Zac-hj-np-z02-9]+)`)

	key32     = regexp.MustCompile(`^[A-Za-z0-9+/]{43}=$`)
	keyBase64 = regexp.MustCompile(`^[A-Za-z0-9+/]{22,}={0,2}$`)
	keyPlain  = regexp.MustCompile(`^[A-Za-z0-9/+=_-]{8,256}$`)
	onlyWords = regexp.MustCompile(`^[a-z_-]+$`)
	bearer    = regexp.MustCompile(`^[A-Za-z0-9._~+/=:-]{16,}$`)
)

// published are values that Talos's and Kubernetes's own documentation shows.
var published = []string{
	"328hom.uqjzh6jnn2eie9oi", "wlzjyw.bei2zfylhs2by0wd", "abcdef.0123456789abcdef", "z01mye6j16bspJYtTB/5SFX8j7Ph4JXxM2Xuu4vsBPM=",
}

// placeholders are parts of values that stand for a secret and are none.
var placeholders = []string{
	"example", "changeme", "change-me", "change_me", "placeholder", "redacted", "replace", "xxxx", "your-", "your_", "insert-", "insert_",
	"secretaccesskey", "secret_access_key", "secret-access-key", "dummy",
}

// value gives what is assigned to the key that ends at end, as YAML, JSON, INI files, shells and containers' environments do.
func (t *text) value(end int) (string, bool) {
	rest := scanner(t.data[end:min(len(t.data), end+window)])
	rest.quote()
	rest.space("\r\n\t ")
	if !rest.one(":=") {
		rest.one(",")
		rest.space("\r\n\t ")
		rest.quote()
		if !rest.word("value") {
			return "", false
		}
		rest.quote()
		rest.space("\t ")
		if !rest.one(":=") {
			return "", false
		}
	}
	rest.space("\t ")
	if rest.one("|>") {
		rest.one("+-")
	}
	rest.space("\r\n\t ")
	rest.quote()
	length := bytes.IndexAny(rest, "\"',}]#\\ \t\r\n")
	if length < 0 {
		length = len(rest)
	}
	value := string(rest[:length])
	if value == "" || slices.Contains(published, value) || isPlaceholder(value) {
		return "", false
	}
	return value, true
}

// scanner is what is left of a text that is read from its beginning.
type scanner []byte

func (s *scanner) space(set string) {
	for len(*s) > 0 && strings.IndexByte(set, (*s)[0]) >= 0 {
		*s = (*s)[1:]
	}
}

// one takes a byte of the set, if one is next.
func (s *scanner) one(set string) bool {
	if len(*s) == 0 || strings.IndexByte(set, (*s)[0]) < 0 {
		return false
	}
	*s = (*s)[1:]
	return true
}

func (s *scanner) quote() { s.one("\"'") }

func (s *scanner) word(word string) bool {
	if !bytes.HasPrefix(*s, []byte(word)) {
		return false
	}
	*s = (*s)[len(word):]
	return true
}

func isPlaceholder(value string) bool {
	lower := strings.ToLower(value)
	return slices.ContainsFunc(placeholders, func(part string) bool { return strings.Contains(lower, part) }) ||
		strings.Count(value, value[:1]) == len(value)
}

// isKey says whether a needle is a whole key and not the end or the beginning of another word.
func (t *text) isKey(begin, end int) bool {
	return (begin == 0 || !isWord(t.data[begin-1])) && (end == len(t.data) || !isWord(t.data[end]))
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func pemKey(t *text, begin, end int) (What, bool) {
	head := pemBegin.FindSubmatch(t.data[max(0, begin-64):begin])
	if head == nil || !pemBody.Match(t.data[end:min(len(t.data), end+window)]) {
		return "", false
	}
	if strings.HasPrefix(string(head[1]), "OPENSSH") {
		return SSHKey, true
	}
	return t.around(begin).label(PrivateKey), true
}

func puttyKey(t *text, begin, _ int) (What, bool) {
	return SSHKey, bytes.Contains(t.lower[begin:min(len(t.lower), begin+8*window)], []byte("private-lines:"))
}

func ageIdentity(t *text, begin, _ int) (What, bool) {
	match := ageKey.FindSubmatch(t.data[begin:min(len(t.data), begin+8*window)])
	if match == nil {
		return "", false
	}
	shortest := 50
	if bytes.HasPrefix(t.lower[begin:], []byte("age-plugin-")) {
		shortest = 16 // what a plugin needs may be a mere name
	}
	body := string(match[1])
	return AgeIdentity, len(body) >= shortest && strings.Count(body, body[:1]) < len(body)/2
}

func s3Credentials(t *text, begin, end int) (What, bool) {
	if end < len(t.data) && isWord(t.data[end]) {
		return "", false
	}
	value, ok := t.value(end)
	if !ok || !keyPlain.MatchString(value) {
		return "", false
	}
	// A short word of letters is a sentence about the field, unless it stands where a key ID stands too.
	if onlyWords.MatchString(value) && len(value) < 20 && !t.around(begin).accessKey {
		return "", false
	}
	return S3Credentials, true
}

// minioKey finds S3 credentials under the names that MinIO's and other tools use, which mean other things elsewhere: the key
// must look like one, and stand beside the name of who uses it.
func minioKey(t *text, begin, end int) (What, bool) {
	if !t.isKey(begin, end) {
		return "", false
	}
	value, ok := t.value(end)
	looksMade := ok && len(value) >= 16 && keyPlain.MatchString(value) && strings.ContainsAny(value, "0123456789") &&
		value != strings.ToLower(value) && value != strings.ToUpper(value)
	return S3Credentials, looksMade && t.around(begin).accessKey
}

func encryptionSecret(t *text, begin, end int) (What, bool) {
	value, ok := t.value(end)
	if !ok || !keyBase64.MatchString(value) {
		return "", false
	}
	if t.around(begin).bundle {
		return Bundle, true
	}
	return MachineConfig, true
}

// isTalosToken says whether a value has the form of the tokens that Talos and kubeadm make.
func isTalosToken(value string) bool {
	const length, dot = 23, 6
	if len(value) != length {
		return false
	}
	for n := range length {
		c := value[n]
		if n == dot && c != '.' || n != dot && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func token(t *text, begin, end int) (What, bool) {
	if !t.isKey(begin, end) {
		return "", false
	}
	value, ok := t.value(end)
	if !ok {
		return "", false
	}
	d := t.around(begin)
	switch {
	case isTalosToken(value) && d.bundle:
		return Bundle, true
	case isTalosToken(value) && d.machineConfig:
		return MachineConfig, true
	case bearer.MatchString(value) && d.kubeconfig:
		return Kubeconfig, true
	}
	return "", false
}

func clusterSecret(t *text, begin, end int) (What, bool) {
	if !t.isKey(begin, end) {
		return "", false
	}
	value, ok := t.value(end)
	if !ok || !key32.MatchString(value) {
		return "", false
	}
	switch d := t.around(begin); {
	case d.bundle:
		return Bundle, true
	case d.machineConfig:
		return MachineConfig, true
	}
	return "", false
}

func wireguardKey(t *text, begin, end int) (What, bool) {
	value, ok := t.value(end)
	return MachineConfig, ok && t.isKey(begin, end) && key32.MatchString(value)
}

func diskPassphrase(t *text, begin, end int) (What, bool) {
	if !t.isKey(begin, end) || !bytes.Contains(t.lower[max(0, begin-200):begin], []byte("static")) {
		return "", false
	}
	value, ok := t.value(end)
	return MachineConfig, ok && keyPlain.MatchString(value)
}

// password finds that of a user of a kubeconfig, and that of an image registry in a machine config.
func password(t *text, begin, end int) (What, bool) {
	if !t.isKey(begin, end) {
		return "", false
	}
	value, ok := t.value(end)
	switch d := t.around(begin); {
	case !ok:
		return "", false
	case d.kubeconfig:
		return Kubeconfig, true
	case d.registries:
		return MachineConfig, keyPlain.MatchString(value)
	}
	return "", false
}
