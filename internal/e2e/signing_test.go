package e2e

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

const (
	orders    = "ichor-operation@prod"
	overrides = "ichor-override@prod"
)

// person is somebody with a key.
type person struct {
	name    string
	private ed25519.PrivateKey
	signer  ssh.Signer
}

func (w *world) person(name string) *person {
	w.t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(w.t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(w.t, err)
	return &person{name: name, private: private, signer: signer}
}

// line is the person's line among the allowed signers.
func (p *person) line(options string) string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s@example.com %s %s", p.name, options, ssh.MarshalAuthorizedKey(p.signer.PublicKey()))), " ") + "\n"
}

// key writes the person's private key to a file, and gives its path.
func (w *world) key(p *person) string {
	w.t.Helper()
	block, err := ssh.MarshalPrivateKey(p.private, p.name)
	require.NoError(w.t, err)
	w.writeFile(p.name+".key", string(pem.EncodeToMemory(block)))
	return w.path(p.name + ".key")
}

func (w *world) sign(p *person, namespace, text string) string {
	w.t.Helper()
	signature, err := operation.Sign([]byte(text), namespace, p.signer)
	require.NoError(w.t, err)
	return string(signature)
}

func (w *world) clusterID() string { return schema.ClusterID(w.bundle.ClusterID()) }

// order is the file of an operation on prod, made a minute ago.
func (w *world) order(name, body string) string {
	return orderOf(name, "prod", w.clusterID(), time.Now().Add(-time.Minute), time.Hour, body)
}

func orderOf(name, cluster, id string, created time.Time, life time.Duration, body string) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata:
  name: %s
spec:
  clusterRef:
    name: %s
    id: "%s"
  createdAt: %s
  expiresAt: %s
%s`, name, cluster, id, created.UTC().Format(time.RFC3339), created.Add(life).UTC().Format(time.RFC3339), body)
}

func (w *world) uuid(machine string) string { return w.farm.Node(machine).UUID() }

// reboot is the body of an operation that reboots a machine.
func (w *world) reboot(machine string) string { return nodeAction(machine, w.uuid(machine), "reboot") }

func nodeAction(machine, uuid, action string) string {
	return fmt.Sprintf("  kind: node\n  node:\n    machineRef:\n      name: %s\n      uuid: %s\n    action: %s\n", machine, uuid, action)
}

// about is the body of a resume or cancel.
func about(kind, name, text, more string) string {
	return fmt.Sprintf("  kind: %s\n  %s:\n    operation: %s\n    digest: %s\n%s", kind, kind, name, operation.Digest([]byte(text)), more)
}

func orderFile(name string) string { return "operations/" + name + ".yaml" }

// submit puts an operation with its signature among the files; push makes it known. It gives the operation's text.
func (w *world) submit(p *person, namespace, name, body string) string {
	w.t.Helper()
	text := w.order(name, body)
	w.files[orderFile(name)] = text
	w.files[orderFile(name)+operation.SignatureSuffix] = w.sign(p, namespace, text)
	return text
}

// withdraw takes operations and their signatures out of the repository; push makes it known.
func (w *world) withdraw(files ...string) {
	for _, file := range files {
		for _, name := range []string{file, file + operation.SignatureSuffix} {
			if _, is := w.files[name]; is {
				w.files[name] = nil
			}
		}
	}
}

// remembered finds what the state remembers of an operation by its name and its bytes; an empty text is any.
func remembered(s *statefile.State, name, text string) *statefile.OperationState {
	for _, op := range s.Operations {
		if op.Name == name && (text == "" || op.Digest == operation.Digest([]byte(text))) {
			return op
		}
	}
	return nil
}

// inPhase is nil when an operation is in a phase.
func inPhase(name, text string, phase statefile.OperationPhase) func(*statefile.State) error {
	return func(s *statefile.State) error {
		op := remembered(s, name, text)
		switch {
		case op == nil:
			return fmt.Errorf("the state has no operation %s; commit %.12s was seen", name, s.Revision.Observed)
		case op.Phase != phase:
			return fmt.Errorf("%s is %s at %q: %s", name, op.Phase, op.Step, op.Message)
		}
		return nil
	}
}

// refusedFor is nil when an operation is refused for a reason.
func refusedFor(name, text, reason string) func(*statefile.State) error {
	return func(s *statefile.State) error {
		if err := inPhase(name, text, statefile.OperationRefused)(s); err != nil {
			return err
		}
		if op := remembered(s, name, text); op.Refusal != reason || op.Message == "" {
			return fmt.Errorf("%s is refused for %s: %s", name, op.Refusal, op.Message)
		}
		return nil
	}
}

// seen is nil once a pass has looked at the operations of a commit, whether it is acted on or not.
func seen(commit string) func(*statefile.State) error {
	return func(s *statefile.State) error {
		if s.Revision.Observed != commit {
			return fmt.Errorf("commit %.12s was seen and not %.12s", s.Revision.Observed, commit)
		}
		return nil
	}
}

// disruptions counts the calls that machines took and that take something from somebody: all but configs and the bootstrap.
func (w *world) disruptions() map[string]int {
	counts := map[string]int{}
	for _, node := range w.farm.Nodes() {
		for _, entry := range acceptedCalls(node) {
			if method := path.Base(entry.Method); method != "ApplyConfiguration" && method != "Bootstrap" {
				counts[method+" "+node.Name()]++
			}
		}
	}
	return counts
}

// audit verifies the audit with the program, and gives its events.
func (w *world) audit() []statefile.Event {
	w.t.Helper()
	got := w.ichor(append([]string{"audit", "verify", "prod", "--events", "-o", "json", "--fleet", w.checkout(), "--age-identity", w.path("age.key")},
		w.stateArguments()...)...)
	require.Zero(w.t, got.code, "%s%s", got.out, got.err)
	var answer struct {
		Clusters []struct {
			Seal     string            `json:"seal"`
			Problems []string          `json:"problems"`
			Log      []statefile.Event `json:"log"`
		} `json:"clusters"`
	}
	require.NoError(w.t, json.Unmarshal([]byte(got.out), &answer))
	require.Len(w.t, answer.Clusters, 1)
	assert.Equal(w.t, "checked", answer.Clusters[0].Seal)
	assert.Empty(w.t, answer.Clusters[0].Problems)
	return answer.Clusters[0].Log
}

// told counts the events of an operation by what they are about.
func told(events []statefile.Event, text string) map[string]int {
	counts := map[string]int{}
	for _, event := range events {
		if event.Operation == operation.Digest([]byte(text)) {
			counts[event.Action]++
		}
	}
	return counts
}

// recordOf reads the state's object past the agent: its bytes, and its record.
func (w *world) recordOf(ctx context.Context, store statefile.Store) ([]byte, *statefile.Record, *statefile.State) {
	w.t.Helper()
	data := w.object(ctx, store, stateKey)
	record, err := statefile.DecodeRecord(w.sealer(), stateKey, data)
	require.NoError(w.t, err)
	var state statefile.State
	require.NoError(w.t, json.Unmarshal(record.Content, &state))
	return data, record, &state
}

const stateKey = "prod/state.json"

func (w *world) sealer() *statefile.Sealer {
	w.t.Helper()
	material := w.bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	require.NoError(w.t, err)
	return sealer
}

// putState puts bytes in the place of the state, as whoever may write the bucket can.
func (w *world) putState(ctx context.Context, store statefile.Store, data []byte) {
	w.t.Helper()
	_, err := store.Put(ctx, stateKey, data, statefile.If{})
	require.NoError(w.t, err)
}

// allow writes the file of allowed signers.
func (w *world) allow(lines ...string) { w.writeFile("allowed_signers", strings.Join(lines, "")) }

// signing are the flags of an agent that knows who may sign.
func (w *world) signing() []string { return []string{"--allowed-signers", w.path("allowed_signers")} }

// clone makes a checkout of the repository as Git has it.
func (w *world) clone(name string) string {
	w.t.Helper()
	w.repo.Git("clone", "--quiet", w.repo.Dir, w.path(name))
	_, err := os.Stat(w.path(name, ".git"))
	require.NoError(w.t, err)
	return w.path(name)
}
