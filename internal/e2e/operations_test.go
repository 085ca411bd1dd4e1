package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/statefile"
)

// signers are those whom the agent of these tests knows, and those it does not.
type signers struct {
	// alice may sign everything on prod, bob only operations, carol may sign commits, eve could until yesterday, and of mallory nobody
	// has heard.
	alice, bob, carol, eve, mallory *person
}

func (w *world) meet() *signers {
	s := &signers{w.person("alice"), w.person("bob"), w.person("carol"), w.person("eve"), w.person("mallory")}
	w.allow(s.alice.line(`namespaces="ichor-operation@prod,ichor-override@prod"`), s.bob.line(`namespaces="ichor-operation@prod"`), s.carol.line(""),
		s.eve.line(fmt.Sprintf(`namespaces="ichor-*@prod",valid-before="%s"`, time.Now().Add(-24*time.Hour).UTC().Format("20060102150405Z"))))
	return s
}

// attack is a file that must not be carried out.
type attack struct {
	// what it is, as a sentence. name is the operation's.
	what, name string
	// files are what is pushed, besides what is given by text and signature.
	text, signature string
	files           gittest.Files
	// refused is the reason that stands in the state; empty: the file is nobody's operation, and nothing is remembered of it.
	refused string
}

// attacks are files of people who want a machine rebooted that is not theirs. yesterday is an operation that was carried out.
func (w *world) attacks(s *signers, yesterday string) []attack {
	old := func(name, body string) string {
		return orderOf(name, "prod", w.clusterID(), time.Now().Add(-48*time.Hour), 24*time.Hour, body)
	}
	plain := func(what, refused, name string, by *person, namespace string) attack {
		text := w.order(name, w.reboot("w-1"))
		return attack{what: what, name: name, text: text, signature: w.sign(by, namespace, text), refused: refused}
	}
	list := []attack{
		plain("a stranger with push access signs with a key of his own", "KeyUnknown", "strangers-key", s.mallory, orders),
		plain("an old signer's right has ended", "KeyExpired", "old-signer", s.eve, orders),
		plain("a signature under the namespace of Git is no order", "NamespaceWrong", "namespace-git", s.alice, "git"),
		plain("a key for commits signs under the namespace of operations", "NamespacesMissing", "commit-key", s.carol, orders),
		plain("a signature is for another cluster's namespace", "NamespaceWrong", "namespace-staging", s.alice, "ichor-operation@staging"),
		plain("who may sign operations alone signs under the override namespace", "NamespaceNotAllowed", "too-much", s.bob, overrides),
	}
	add := func(what, refused, name, text, signature string) {
		list = append(list, attack{what: what, name: name, text: text, signature: signature, refused: refused})
	}
	text := w.order("no-signature", w.reboot("w-1"))
	add("a stranger with push access and no key", "SignatureMissing", "no-signature", text, "")
	text = w.order("edited", w.reboot("w-1"))
	add("a file is edited after it was signed", "SignatureWrong", "edited", strings.ReplaceAll(text, "w-1", "w-2"), w.sign(s.alice, orders, text))
	text = w.order("edited-space", w.reboot("w-1"))
	add("a blank line is put at the end of a signed file", "SignatureWrong", "edited-space", text+"\n", w.sign(s.alice, orders, text))
	one, two := w.order("swapped-1", w.reboot("w-1")), w.order("swapped-2", w.reboot("w-2"))
	add("the signatures of two operations change places (one)", "SignatureWrong", "swapped-1", one, w.sign(s.alice, orders, two))
	add("the signatures of two operations change places (two)", "SignatureWrong", "swapped-2", two, w.sign(s.alice, orders, one))
	text = orderOf("other-cluster", "staging", "0123456789abcdef", time.Now(), time.Hour, w.reboot("w-1"))
	add("a file is for another cluster", "ClusterUnknown", "other-cluster", text, w.sign(s.alice, "ichor-operation@staging", text))
	text = orderOf("other-id", "prod", "0123456789abcdef", time.Now(), time.Hour, w.reboot("w-1"))
	add("a file is for another cluster of the same name", "ClusterDiffers", "other-id", text, w.sign(s.alice, orders, text))
	text = orderOf("former-name", "former", w.clusterID(), time.Now(), time.Hour, w.reboot("w-1"))
	add("a file is for a cluster that was renamed in Git", "ClusterUnknown", "former-name", text, w.sign(s.alice, "ichor-operation@former", text))
	text = w.order("other-machine", nodeAction("w-1", "4c4c4544-0039-3510-8052-b4c04f4e3732", "reboot"))
	add("a machine was made anew under the name that was signed", "TargetDiffers", "other-machine", text, w.sign(s.alice, orders, text))
	text = w.order("twisted", nodeAction("w-1", w.uuid("w-2"), "reboot"))
	add("the UUID is another machine's", "TargetDiffers", "twisted", text, w.sign(s.alice, orders, text))
	text = w.order("wipe", nodeAction("w-1", w.uuid("w-1"), "remove")+"    confirm: w-1\n")
	add("what wipes is signed as what doesn't", "NamespaceWrong", "wipe", text, w.sign(s.alice, orders, text))
	text = w.order("wipe-2", nodeAction("w-1", w.uuid("w-1"), "remove")+"    confirm: w-1\n")
	add("who may not wipe signs what wipes", "NamespaceNotAllowed", "wipe-2", text, w.sign(s.bob, overrides, text))
	text = old("yesterday-again", w.reboot("w-1"))
	add("a file whose time is over", "Expired", "yesterday-again", text, w.sign(s.alice, orders, text))
	text = orderOf("ahead", "prod", w.clusterID(), time.Now().Add(time.Hour), time.Hour, w.reboot("w-1"))
	add("a file from the future", "CreatedAhead", "ahead", text, w.sign(s.alice, orders, text))
	text = w.order("large", "  reason: "+strings.Repeat("a", 1<<19)+"\n"+w.reboot("w-1"))
	add("a file of half a megabyte", "Malformed", "large", text, w.sign(s.alice, orders, text))
	text = w.order("huge", "  reason: "+strings.Repeat("a", 1<<20)+"\n"+w.reboot("w-1"))
	add("a file of more than a megabyte, which nobody reads", "", "huge", text, w.sign(s.alice, orders, text))
	text = w.order("two-documents", w.reboot("w-1")) + "---\n" + w.order("two-documents", w.reboot("w-2"))
	add("a second document hides in a file", "Malformed", "two-documents", text, w.sign(s.alice, orders, text))
	text = w.order("first", w.reboot("w-2"))
	add("another operation takes the name of one that was carried out", "NameUsed", "first", text, w.sign(s.alice, orders, text))
	return append(list, w.attacksByName(s, yesterday)...)
}

// attacksByName are those in which the operation is sound and the file's name or kind is not.
func (w *world) attacksByName(s *signers, yesterday string) []attack {
	copied := w.sign(s.alice, orders, yesterday)
	escaped := w.order("escaped", w.reboot("w-1"))
	linked, besides := w.order("linked", w.reboot("w-1")), w.order("besides", w.reboot("w-1"))
	return []attack{
		{what: "yesterday's file under a new name", name: "copied", refused: "FileNameDiffers", files: gittest.Files{
			orderFile("copied"): yesterday, orderFile("copied") + ".sig": copied}, text: yesterday},
		{what: "yesterday's file in another folder", files: gittest.Files{"clusters/prod/first.yaml": yesterday, "clusters/prod/first.yaml.sig": copied}},
		{what: "a file whose name clears the terminal", name: "scaped", refused: "FileNameDiffers", text: escaped, files: gittest.Files{
			"operations/\x1b[2J\x1be" + "scaped.yaml": escaped, "operations/\x1b[2J\x1be" + "scaped.yaml.sig": w.sign(s.alice, orders, escaped)}},
		{what: "a file that is a link to an operation outside", files: gittest.Files{
			orderFile("linked"): gittest.Link("../../outside/linked.yaml"), orderFile("linked") + ".sig": w.sign(s.alice, orders, linked)}, text: linked},
		{what: "a signature that is a link", name: "besides", refused: "SignatureMissing", text: besides, files: gittest.Files{
			orderFile("besides"): besides, orderFile("besides") + ".sig": gittest.Link("signature"), "operations/signature": w.sign(s.alice, orders, besides)}},
	}
}

func (a attack) pushed() gittest.Files {
	files := maps.Clone(a.files)
	if files == nil {
		files = gittest.Files{orderFile(a.name): a.text}
		if a.signature != "" {
			files[orderFile(a.name)+operation.SignatureSuffix] = a.signature
		}
	}
	return files
}

// TestWhatIsNotSignedForThisIsRefusedAndWhatIsSignedIsDoneOnce goes through attacks on one running cluster, one after the other.
func TestWhatIsNotSignedForThisIsRefusedAndWhatIsSignedIsDoneOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.99.1", 1, 2)
	s := w.meet()
	a := w.startAgent("one", w.signing()...)
	w.awaitState("the cluster Ready", ready)

	yesterday := w.submit(s.alice, overrides, "first", w.reboot("w-1"))
	w.push()
	w.awaitState("an operation signed under the override namespace, which serves for all, done", inPhase("first", yesterday, statefile.OperationCompleted))
	require.Equal(t, map[string]int{"Reboot w-1": 1}, w.disruptions())

	steps := []struct {
		what string
		do   func(*testing.T, *agent)
	}{
		{"each file that nobody signed for this is refused", func(t *testing.T, a *agent) { w.refuseAttacks(t, a, s, yesterday) }},
		{"an operation that was accepted goes on from the state, whatever becomes of its file", func(t *testing.T, a *agent) { w.changeAccepted(t, a, s) }},
		{"what was signed goes on while Git is away, and can be given without it", func(t *testing.T, a *agent) { w.withoutGit(t, a, s) }},
		{"ten thousand files hold up nobody", func(t *testing.T, a *agent) { w.flood(t, a, s) }},
		{"a state that is put back while the agent runs lets nothing run twice", func(t *testing.T, a *agent) { w.putBack(t, a, s) }},
	}
	for _, step := range steps {
		ok := t.Run(step.what, func(t *testing.T) {
			w.t, a.t = t, t
			defer func() { w.t, a.t = w.whole, w.whole }()
			step.do(t, a)
		})
		require.True(t, ok, "what follows rests on it: %s", step.what)
	}
	events := w.audit()
	assert.Equal(t, map[string]int{"OperationAccepted": 1, "OperationStarted": 1, "OperationCompleted": 1, "OperationRefused": 1, "Intent": 1, "Outcome": 1},
		without(told(events, yesterday), "OperationStep", "Resolved"), "what was carried out, and its copy that was not")
	assert.Empty(t, a.saying(0, "panic"))
	assert.NotContains(t, a.log.String(), "\x1b")
	w.noSecrets(a)
}

func without(counts map[string]int, names ...string) map[string]int {
	for _, name := range names {
		delete(counts, name)
	}
	return counts
}

// noSecrets looks for the world's secrets in what an agent said.
func (w *world) noSecrets(a *agent) {
	w.t.Helper()
	for _, canary := range w.canaries() {
		for _, form := range canary.forms() {
			assert.NotContains(w.t, a.log.String(), form, canary.name)
		}
	}
}

func (w *world) refuseAttacks(t *testing.T, a *agent, s *signers, yesterday string) {
	before := w.changes()
	list := w.attacks(s, yesterday)
	kept := maps.Clone(w.files)
	for _, one := range list {
		maps.Copy(w.files, one.pushed())
	}
	commit := w.push()
	w.awaitState("the attacks seen", seen(commit))
	w.awaitState("the revision refused for what can't be read", refused("operations/huge.yaml"))
	var state *statefile.State
	for _, one := range list {
		if one.refused != "" {
			state = w.awaitState(one.what, refusedFor(one.name, one.text, one.refused))
		}
	}
	w.passes(a, 5)
	events := w.audit()
	state = w.awaitState("the state as it is now", func(*statefile.State) error { return nil })
	for _, one := range list {
		t.Run(one.what, func(t *testing.T) {
			switch {
			case one.refused != "":
				assert.NoError(t, refusedFor(one.name, one.text, one.refused)(state))
				assert.Equal(t, 1, told(events, one.text)["OperationRefused"], "%+v", told(events, one.text))
			case one.text != "":
				assert.Empty(t, told(events, one.text))
			}
		})
	}
	assert.Len(t, state.Operations, 1+len(slices.DeleteFunc(slices.Clone(list), func(a attack) bool { return a.refused == "" })), "each once, and nothing else")
	assert.Equal(t, before, w.changes(), "calls that machines took")
	for file := range w.files {
		if _, was := kept[file]; !was {
			w.files[file] = nil
		}
	}
	w.files[orderFile("first")], w.files[orderFile("first")+".sig"] = kept[orderFile("first")], kept[orderFile("first")+".sig"]
	commit = w.push()
	w.awaitState("the fleet without the attacks", readyAt(commit))
}

// changeAccepted changes the file of an operation that waits, since its machine is paused.
func (w *world) changeAccepted(t *testing.T, a *agent, s *signers) {
	before := w.changes()
	const line = "metadata: {name: w-2}"
	w.change(machineFile("w-2"), line, `metadata: {name: w-2, annotations: {ichor.maesh.dev/paused: "a disk is changed"}}`)
	waits := w.submit(s.alice, orders, "waits", w.reboot("w-2"))
	withdrawn := w.submit(s.alice, orders, "withdrawn", w.reboot("w-2"))
	cancelled := w.submit(s.alice, orders, "cancelled", w.reboot("w-2"))
	w.push()
	for name, text := range map[string]string{"waits": waits, "withdrawn": withdrawn, "cancelled": cancelled} {
		w.awaitState(name+" accepted", inPhase(name, text, statefile.OperationPending))
	}
	edited := strings.ReplaceAll(waits, "w-2", "w-1")
	edited = strings.ReplaceAll(edited, w.uuid("w-2"), w.uuid("w-1"))
	w.files[orderFile("waits")] = edited
	w.withdraw(orderFile("withdrawn"))
	w.submit(s.alice, orders, "cancel", about("cancel", "cancelled", cancelled, ""))
	w.push()
	w.awaitState("the edited file refused", refusedFor("waits", edited, "SignatureWrong"))
	w.awaitState("what lost its file cancelled", inPhase("withdrawn", withdrawn, statefile.OperationCancelled))
	w.awaitState("what was cancelled cancelled", inPhase("cancelled", cancelled, statefile.OperationCancelled))
	w.awaitState("the cancel done", inPhase("cancel", "", statefile.OperationCompleted))

	w.files[orderFile("waits")+".sig"] = w.sign(s.alice, orders, edited)
	w.push()
	w.awaitState("the edited and signed file refused", refusedFor("waits", edited, "BytesChanged"))
	w.awaitState("the operation as it was accepted", inPhase("waits", waits, statefile.OperationPending))
	assert.Equal(t, before, w.changes(), "calls that machines took")

	w.files[orderFile("waits")], w.files[orderFile("waits")+".sig"] = waits, "what came instead of a signature"
	w.change(machineFile("w-2"), `metadata: {name: w-2, annotations: {ichor.maesh.dev/paused: "a disk is changed"}}`, line)
	w.push()
	w.awaitState("the operation as it was signed done", inPhase("waits", waits, statefile.OperationCompleted))
	assert.Equal(t, map[string]int{"Reboot w-1": 1, "Reboot w-2": 1}, w.disruptions())
	w.withdraw(orderFile("waits"), orderFile("cancelled"), orderFile("cancel"))
	w.awaitState("the fleet without them", readyAt(w.push()))
	w.passes(a, 3)
}

// flood pushes more operation files than any queue holds, and a good one among them.
func (w *world) flood(t *testing.T, a *agent, s *signers) {
	const many = 10_000
	before := w.disruptions()
	kept := maps.Clone(w.files)
	text := w.order("flood", w.reboot("w-1"))
	signature := w.sign(s.mallory, orders, text)
	for n := range many {
		name := fmt.Sprintf("flood-%05d", n)
		w.files[orderFile(name)] = strings.Replace(text, "name: flood", "name: "+name, 1)
		w.files[orderFile(name)+".sig"] = signature
	}
	good := w.submit(s.alice, orders, "zealous", w.reboot("w-1"))
	began := time.Now()
	w.push()
	w.awaitState("the good one done", inPhase("zealous", good, statefile.OperationCompleted))
	state := w.awaitState("the flood counted", func(s *statefile.State) error {
		if s.RefusedMore < many-200 {
			return fmt.Errorf("%d are refused and not named, and %d are remembered", s.RefusedMore, len(s.Operations))
		}
		return nil
	})
	t.Logf("done %s after the push", time.Since(began))
	assert.Less(t, len(state.Operations), 150)
	before["Reboot w-1"]++
	assert.Equal(t, before, w.disruptions())
	for file := range w.files {
		if _, was := kept[file]; !was {
			w.files[file] = nil
		}
	}
	commit := w.push()
	w.awaitState("the fleet without the flood", readyAt(commit))
	w.files = kept
	data, _, _ := w.recordOf(context.Background(), w.store())
	assert.Less(t, len(data), 1<<20, "bytes of the state")
}

// withoutGit takes Git away when an operation is accepted, and gives the next one through the inbox.
func (w *world) withoutGit(t *testing.T, a *agent, s *signers) {
	before := w.disruptions()
	checkout := w.clone("alices")
	away := w.submit(s.alice, orders, "away", w.reboot("w-1"))
	w.push()
	w.awaitState("the operation accepted", func(s *statefile.State) error {
		if op := remembered(s, "away", away); op == nil || op.AcceptedAt.IsZero() {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	w.git.Stop()
	w.awaitState("Git away", gitProblem("the connection was refused"))
	w.awaitState("the operation done", inPhase("away", away, statefile.OperationCompleted))
	before["Reboot w-1"]++
	assert.Equal(t, before, w.disruptions())

	got := w.ichor(append([]string{"run-op", "node", "reboot", "w-2", "--via-state", "--repo", checkout, "--key", w.key(s.alice), "--yes",
		"--allowed-signers", w.path("allowed_signers")}, w.stateArguments()...)...)
	require.Zero(t, got.code, "%s%s", got.out, got.err)
	state := w.awaitState("the operation of the inbox done", func(s *statefile.State) error {
		for _, op := range s.Operations {
			if op.Source == "inbox" {
				return inPhase(op.Name, "", statefile.OperationCompleted)(s)
			}
		}
		return fmt.Errorf("the state has no operation of the inbox")
	})
	before["Reboot w-2"]++
	assert.Equal(t, before, w.disruptions())
	assert.NotEmpty(t, state.Revision.Problem, "Git is still away")

	store, ctx := w.store(), context.Background()
	forged := w.order("forged", w.reboot("w-2"))
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "forged", []byte(forged), []byte(w.sign(s.mallory, orders, forged))))
	w.awaitState("a stranger's operation of the inbox refused", refusedFor("forged", forged, "KeyUnknown"))
	assert.Equal(t, before, w.disruptions())
	w.git.Start()
	w.awaitState("Git back", func(s *statefile.State) error {
		if s.Revision.Problem != "" {
			return fmt.Errorf("%s", s.Revision.Problem)
		}
		return ready(s)
	})
}
