package talos

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/textdiff"

	"ichor.maesh.dev/internal/printable"
)

// Diff shows how an active config differs from the wanted one, as a unified diff of their canonical texts. It is empty when
// they are equal. Hidden are: what the machinery itself redacts; every value of a sealed patch, in both configs; private
// keys and passwords in URLs; and, of the active config, what stands in places that often hold secrets (file contents,
// environment, inline manifests, headers) unless the wanted config says the same in the clear. A hidden value shows as a
// number, so that a changed one is seen to have changed.
func Diff(active config.Provider, wanted *Rendered) (string, error) {
	if wanted == nil || wanted.Config == nil {
		return "", errors.New("there is no wanted config to compare with")
	}
	mask := newMasker(&wanted.hidden)
	// The wanted config goes first: what it says in the clear stands in Git and needs no hiding in the active one.
	after, err := mask.text(wanted.Config, false)
	if err != nil {
		return "", err
	}
	before := ""
	if active != nil {
		if before, err = mask.text(active, true); err != nil {
			return "", err
		}
	}
	text, err := textdiff.DiffWithCustomPaths(before, after, "active", "wanted")
	if err != nil {
		return "", errors.New("the configs can't be compared")
	}
	return printable.Lines(text), nil
}

// DiffSince is Diff for a machine whose config was rendered before: what came from a sealed patch of that one is hidden too.
func DiffSince(active config.Provider, wanted, before *Rendered) (string, error) {
	if wanted == nil || before == nil {
		return Diff(active, wanted)
	}
	both := *wanted
	both.hidden = before.hidden.with(wanted.hidden)
	return Diff(active, &both)
}

// redactedMark is what the machinery puts in the place of a secret; no config holds it by chance.
const redactedMark = "ichor-redacted-6f0a1c"

var redactedMark64 = base64.StdEncoding.EncodeToString([]byte(redactedMark))

// masker hides values and numbers them, equal values alike.
type masker struct {
	hidden  *hiddenPaths
	numbers map[string]int
	// clear are the values that the wanted config shows, by place.
	clear map[string]bool
}

func newMasker(hidden *hiddenPaths) *masker {
	return &masker{hidden: hidden, numbers: map[string]int{}, clear: map[string]bool{}}
}

func (m *masker) text(provider config.Provider, isActive bool) (string, error) {
	plain, err := ordered(provider)
	if err != nil {
		return "", err
	}
	real, err := documentsOf(plain)
	if err != nil {
		return "", err
	}
	redacted, err := documentsOf(plain.RedactSecrets(redactedMark))
	if err != nil {
		return "", err
	}
	if len(real) != len(redacted) {
		return "", errors.New("the config can't be redacted, so it isn't shown")
	}
	var out bytes.Buffer
	for n, document := range real {
		root, shadow := content(document), content(redacted[n])
		if root == nil {
			continue
		}
		m.walk(root, shadow, yamlID(root), isActive)
		text, err := yaml.Marshal(document)
		if err != nil {
			return "", errors.New("the config can't be encoded")
		}
		if out.Len() > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	return out.String(), nil
}

func documentsOf(provider config.Provider) ([]*yaml.Node, error) {
	text, err := provider.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, errors.New("the config can't be encoded")
	}
	var documents []*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		document := &yaml.Node{}
		err := decoder.Decode(document)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, errors.New("the config can't be read back")
		}
		documents = append(documents, document)
	}
}

// walk hides values of node in place. shadow is the same node as the machinery redacted it.
func (m *masker) walk(node, shadow *yaml.Node, path string, isActive bool) {
	if shadow == nil || shadow.Kind != node.Kind || len(shadow.Content) != len(node.Content) {
		m.hide(node) // the machinery changed its shape, so it held a secret
		return
	}
	switch node.Kind {
	case yaml.MappingNode:
		for n := 0; n+1 < len(node.Content); n += 2 {
			key := node.Content[n].Value
			if path == yamlID(node) && isIdentity(key) && path != "" {
				continue
			}
			m.walk(node.Content[n+1], shadow.Content[n+1], join(path, key), isActive)
		}
	case yaml.SequenceNode:
		for n := range node.Content {
			m.walk(node.Content[n], shadow.Content[n], join(path, anyItem), isActive)
		}
	case yaml.ScalarNode:
		m.scalar(node, shadow, path, isActive)
	default:
		m.hide(node)
	}
}

// isIdentity says whether a top-level field names the document.
func isIdentity(key string) bool { return key == "apiVersion" || key == "kind" || key == "name" }

func (m *masker) scalar(node, shadow *yaml.Node, path string, isActive bool) {
	place := join(path, node.Value)
	switch {
	case shadow.Value != node.Value, shadow.Value == redactedMark, shadow.Value == redactedMark64:
		m.hide(node)
	case m.hidden.covers(path, node.Value), holdsKey(node.Value):
		m.hide(node)
	case isActive && oftenSecret(path) && !m.clear[place]:
		m.hide(node)
	default:
		if !isActive {
			m.clear[place] = true
		}
		node.Value = userinfo.ReplaceAllString(node.Value, "${1}(hidden)@")
	}
}

// hide puts a number in the place of a value.
func (m *masker) hide(node *yaml.Node) {
	key := node.Value
	if node.Kind != yaml.ScalarNode {
		text, _ := yaml.Marshal(node)
		key = string(text)
	}
	number, known := m.numbers[key]
	if !known {
		number = len(m.numbers) + 1
		m.numbers[key] = number
	}
	*node = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: fmt.Sprintf("(hidden %d)", number)}
}

// userinfo finds user name and password of a URL.
var userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s"'@]+@`)

// holdsKey says whether a value holds a private key or an age identity, as it is or in base64.
func holdsKey(value string) bool {
	if isKey(value) {
		return true
	}
	if len(value) < 32 {
		return false
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
	return err == nil && isKey(string(decoded))
}

func isKey(value string) bool {
	return strings.Contains(value, "PRIVATE KEY-----") || strings.Contains(strings.ToUpper(value), "AGE-SECRET-KEY-1")
}

// secretPlaces are fields that often hold secrets and that the machinery does not redact.
var secretPlaces = [][]string{
	{"", "machine", "files", anyItem, "content"},
	{"", "machine", "env"},
	{"", "machine", "pods"},
	{"", "machine", "kubelet", "credentialProviderConfig"},
	{"", "machine", "network"},
	{"", "machine", "registries", "config"},
	{"", "cluster", "inlineManifests", anyItem, "contents"},
	{"", "cluster", "extraManifestHeaders"},
	{"", "cluster", "apiServer", "env"},
	{"", "cluster", "controllerManager", "env"},
	{"", "cluster", "scheduler", "env"},
	{"", "cluster", "apiServer", "authorizationConfig"},
}

var secretKinds = []string{"ExtensionServiceConfig/", "EnvironmentConfig", "RegistryAuthConfig/", "WireguardConfig/", "SideroLinkConfig"}

func oftenSecret(path string) bool {
	for _, kind := range secretKinds {
		if strings.HasPrefix(path, kind) {
			return true
		}
	}
	for _, place := range secretPlaces {
		prefix := strings.Join(place, pathSeparator)
		if path == prefix || strings.HasPrefix(path, prefix+pathSeparator) {
			return true
		}
	}
	return false
}
