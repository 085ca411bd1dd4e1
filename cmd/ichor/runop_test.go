package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// opBench is a checkout of a fleet with its server, a state that is sealed with its bundle, and a key.
type opBench struct {
	t                                *testing.T
	server                           *gittest.Repository
	fleet, state, identity, key, sig string
	environment                      map[string]string
	store                            statefile.Store
	cluster                          *statefile.Cluster
}

func newOpBench(t *testing.T) *opBench {
	t.Helper()
	dir := t.TempDir()
	b := &opBench{t: t, server: gittest.New(t), fleet: filepath.Join(dir, "fleet"), state: filepath.Join(dir, "state"), identity: filepath.Join(dir, "age.key"),
		key: filepath.Join(dir, "id"), sig: filepath.Join(dir, "allowed_signers"), environment: map[string]string{}}
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(dir, "gitconfig"))
	t.Setenv("HOME", dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gitconfig"), []byte("[user]\n\tname = Ada\n\temail = ada@example.com\n"), 0o600))
	bundle := b.pushFleet()
	b.command("git", "clone", "--quiet", b.server.Dir, b.fleet)
	b.command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "alice@example.com", "-f", b.key)
	public, err := os.ReadFile(b.key + ".pub")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(b.sig, append([]byte(`alice@example.com namespaces="ichor-*@prod" `), public...), 0o600))

	sealer, err := sealerOf(bundle)
	require.NoError(t, err)
	b.store, err = statefile.OpenFolder(b.state, statefile.FolderOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.store.Close() })
	b.cluster, err = statefile.OpenCluster(b.store, statefile.Options{Name: "prod", Sealer: sealer, WriterID: "agent"})
	require.NoError(t, err)
	require.NoError(t, b.cluster.Create(t.Context(), &statefile.State{Cluster: statefile.ClusterIdentity{Name: "prod", ID: schemaID(bundle)},
		Machines: map[string]*statefile.MachineState{"cp-1": {Managed: true, UUID: opUUID("1")}, "w-1": {Managed: true, UUID: opUUID("2")},
			"w-9": {Managed: true, UUID: opUUID("9"), Role: "worker"}}}))
	return b
}

func schemaID(bundle *talos.Bundle) string { return schema.ClusterID(bundle.ClusterID()) }

func opUUID(digit string) string { return "4c4c4544-0039-3510-8052-b4c04f4e373" + digit }

// pushFleet makes the repository of prod: a control plane and a worker, and the sealed bundle.
func (b *opBench) pushFleet() *talos.Bundle {
	b.t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(b.identity, []byte(identity.String()+"\n"), 0o600))
	bundle, err := talos.GenerateBundle("v1.13")
	require.NoError(b.t, err)
	text, err := bundle.Marshal()
	require.NoError(b.t, err)
	recipients, err := sealed.ParseRecipients("recipients.txt", []byte(identity.Recipient().String()+"\n"))
	require.NoError(b.t, err)
	secret, err := sealed.Seal(recipients, text)
	require.NoError(b.t, err)
	machine := func(name, role, digit string) string {
		return "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMachine\nmetadata: {name: " + name + "}\nspec: {clusterRef: {name: prod}, role: " + role +
			", endpoint: " + name + ".example.com, uuid: " + opUUID(digit) + ", approved: true}\n"
	}
	b.server.Commit(gittest.Files{
		"clusters/prod/cluster.yaml": strings.Replace(prodCluster, "0123456789abcdef", `"`+schemaID(bundle)+`"`, 1),
		"clusters/prod/secrets.age":  string(secret),
		"clusters/prod/cp-1.yaml":    machine("cp-1", "controlplane", "1"),
		"clusters/prod/w-1.yaml":     machine("w-1", "worker", "2"),
	})
	return bundle
}

func (b *opBench) command(name string, arguments ...string) {
	b.t.Helper()
	out, err := exec.Command(name, arguments...).CombinedOutput()
	require.NoError(b.t, err, "%s: %s", name, out)
}

// run runs one command line in the checkout.
func (b *opBench) run(args ...string) (code int, out, errText string) {
	b.t.Helper()
	return b.runFor(b.t.Context(), hurried{}, io.Discard, args...)
}

// runFor is run with a clock, and an end; what is printed is also written to a watcher as it comes.
func (b *opBench) runFor(ctx context.Context, clk clock.WithTickerAndDelayedExecution, watch io.Writer, args ...string) (code int, out, errText string) {
	b.t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{terminal: &terminal{in: strings.NewReader(""), out: io.MultiWriter(&stdout, watch), err: &stderr}, clock: clk,
		getenv: func(name string) string { return b.environment[name] }}
	code = a.execute(ctx, append(args, "--repo", b.fleet))
	return code, stdout.String(), stderr.String()
}

func (b *opBench) withState(args ...string) []string {
	return append(args, "--state", "file://"+b.state, "--age-identity", b.identity)
}

// change changes the state as an agent does, with events.
func (b *opBench) change(change func(*statefile.State), events ...statefile.Event) {
	b.t.Helper()
	require.NoError(b.t, b.cluster.Swap(b.t.Context(), func(s *statefile.State) error { change(s); return nil }, events...))
}

// accepted puts an operation into the state as an agent that took it in.
func (b *opBench) accepted(name string, change ...func(*statefile.OperationState)) *statefile.OperationState {
	b.t.Helper()
	at := time.Now().UTC().Truncate(time.Second)
	op := &statefile.OperationState{Name: name, Digest: strings.Repeat("ab", 32), Kind: "node", Action: "reboot", Target: "w-1", Source: "git",
		File: "operations/" + name + ".yaml", Signer: "alice@example.com (SHA256:x, line 1 of the allowed signers)", Phase: statefile.OperationPaused, Pause: 2,
		Step: "evacuate", Steps: []statefile.OperationStep{{Name: "evacuate", At: at}}, FailureReason: "shop/cart can't be evicted: \x1b[31mthe budget allows 0 disruptions",
		FirstSeen: at, AcceptedAt: at, ExpiresAt: at.Add(time.Hour)}
	for _, c := range change {
		c(op)
	}
	b.change(func(s *statefile.State) { s.Operations = append(s.Operations, op) },
		statefile.Event{Action: "OperationAccepted", Operation: op.Digest, Message: "git " + op.File},
		statefile.Event{Action: "Intent", Machine: "w-1", Operation: op.Digest, Details: map[string]string{"call": "reboot", "attempt": "1"}},
		statefile.Event{Action: "OperationAccepted", Operation: strings.Repeat("cd", 32), Message: "another's"})
	return op
}

func TestAPausedOperationIsShownWithWhatToTypeNextAndThatWorks(t *testing.T) {
	b := newOpBench(t)
	op := b.accepted("20261130-reboot-w-1")
	code, out, errText := b.run(b.withState("op", "list")...)
	require.Zero(t, code, errText)
	require.Regexp(t, `(?m)^prod +20261130-reboot-w-1 +node/reboot +w-1 +Paused +evacuate +`, out)
	code, out, errText = b.run(b.withState("op", "show", op.Name)...)
	require.Zero(t, code, errText)
	require.NotContains(t, out, "\x1b")
	for _, want := range []string{"stands:   Paused (evacuate): shop/cart can't be evicted", "signer:   alice@example.com", "pauses:   2", "OperationAccepted git operations/",
		"Intent w-1 reboot", "ichor run-op resume 20261130-reboot-w-1 --cluster prod --digest " + op.Digest + " --pause 2", "ichor run-op cancel "} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, "another's")
	code, out, errText = b.run(b.withState("op", "show", op.Name, "-o", "json")...)
	require.Zero(t, code, errText)
	var detail struct {
		Name, Phase string
		Pause       int
		Next        []string
		Steps       []struct{ Name string }
		Events      []struct{ Action string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &detail))
	require.Equal(t, "Paused", detail.Phase)
	require.Len(t, detail.Next, 2)
	require.Len(t, detail.Steps, 1)
	require.Len(t, detail.Events, 2)
	_, out, _ = b.run(b.withState("op", "show", op.Name, "-o", "yaml")...)
	require.Contains(t, out, "phase: Paused\n")

	// A reboot of another machine waits for it; the resume that was shown is signed and pushed as it stands.
	code, out, _ = b.run(b.withState("run-op", "node", "reboot", "cp-1", "--dry-run")...)
	require.Equal(t, exitNo, code)
	require.Contains(t, out, "the operation 20261130-reboot-w-1 is paused")
	code, out, errText = b.run(append(strings.Fields(detail.Next[0])[1:], "--key", b.key, "--yes", "--allowed-signers", b.sig)...)
	require.Zero(t, code, errText)
	require.Contains(t, out, "pushed ")
	file := b.server.Git("ls-tree", "--name-only", "main", "operations/")
	file, _, _ = strings.Cut(file, "\n")
	read, refusal := operation.Read(file, []byte(b.server.Git("show", "main:"+file)+"\n"))
	require.Nil(t, refusal)
	require.Equal(t, 2, read.Spec.Resume.Pause)
	require.Equal(t, op.Digest, read.Spec.Resume.Digest)
	// With the state nothing needs to be typed.
	code, _, errText = b.run(b.withState("run-op", "resume", op.Name, "--key", b.key, "--yes")...)
	require.Zero(t, code, errText)
	code, out, _ = b.run(b.withState("run-op", "resume", op.Name, "--pause", "1", "--dry-run")...)
	require.Equal(t, exitNo, code)
	require.Contains(t, out, "is at its pause number 2, and this resume is for number 1")
}

func TestAMachineThatGitForgotIsRemovedByWhatTheStateRemembers(t *testing.T) {
	b := newOpBench(t)
	code, _, errText := b.run("run-op", "node", "remove", "w-9", "--dry-run")
	require.Equal(t, exitCannot, code)
	require.Contains(t, errText, "give --state URL, which remembers it, or --uuid")
	code, out, errText := b.run(b.withState("run-op", "node", "remove", "w-9", "--confirm", "w-9", "--key", b.key)...)
	require.Zero(t, code, errText)
	require.Contains(t, out, "w-9 is no longer in Git")
	require.Contains(t, b.server.Git("show", "main:operations/"+time.Now().UTC().Format("20060102")+"-remove-w-9.yaml"), opUUID("9"))
}

// hurried is the system's clock, whose tickers don't keep a test waiting.
type hurried struct{ clock.RealClock }

func (hurried) NewTicker(time.Duration) clock.Ticker {
	return clock.RealClock{}.NewTicker(20 * time.Millisecond)
}

// cueWriter calls a function once something was printed.
type cueWriter struct {
	mu   sync.Mutex
	text string
	cues map[string]func()
}

func (w *cueWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.text += string(p)
	var due []func()
	for cue, do := range w.cues {
		if strings.Contains(w.text, cue) {
			due = append(due, do)
			delete(w.cues, cue)
		}
	}
	w.mu.Unlock()
	for _, do := range due {
		do()
	}
	return len(p), nil
}

func TestFollowingEndsWithTheOperationsOwnAnswer(t *testing.T) {
	for phase, want := range map[statefile.OperationPhase]int{statefile.OperationCompleted: exitOK, statefile.OperationPaused: exitNo, statefile.OperationRefused: exitNo,
		statefile.OperationCancelled: exitNo, statefile.OperationShutDown: exitOK} {
		t.Run(string(phase), func(t *testing.T) {
			b := newOpBench(t)
			turn := func(change func(*statefile.OperationState)) func() {
				return func() { b.change(func(s *statefile.State) { change(s.Operations[0]) }) }
			}
			watch := &cueWriter{cues: map[string]func(){
				"pushed ": func() {
					name := time.Now().UTC().Format("20060102") + "-reboot-w-1"
					data := b.server.Git("show", "main:operations/"+name+".yaml") + "\n"
					b.accepted(name, func(op *statefile.OperationState) {
						op.Digest, op.Phase, op.Message, op.FailureReason, op.Pause = operation.Digest([]byte(data)), statefile.OperationRunning, "2 pods are left", "", 0
					})
				},
				"2 pods are left": turn(func(op *statefile.OperationState) {
					op.Step, op.Message = "reboot", "it goes down"
					op.Steps = append(op.Steps, statefile.OperationStep{Name: "reboot", At: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)})
				}),
				"it goes down": turn(func(op *statefile.OperationState) { op.Phase, op.Message, op.Pause = phase, "that is all", 1 }),
			}}
			code, out, errText := b.runFor(t.Context(), hurried{}, watch, b.withState("run-op", "node", "reboot", "w-1", "--key", b.key, "--yes", "--follow")...)
			require.Equal(t, want, code, errText)
			require.Contains(t, out, "Running (evacuate): 2 pods are left\n")
			require.Contains(t, out, "2026-11-30T10:00:00Z  Running (reboot): it goes down\n")
			require.Contains(t, out, string(phase))
			require.Equal(t, phase == statefile.OperationPaused, strings.Contains(errText, "ichor run-op resume "), errText)
		})
	}
}

func TestWhoStopsFollowingDoesNotStopTheOperation(t *testing.T) {
	b := newOpBench(t)
	op := b.accepted("20261130-reboot-w-1", func(op *statefile.OperationState) {
		op.Phase, op.Message = statefile.OperationRunning, "2 pods are left"
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	code, out, errText := b.runFor(ctx, hurried{}, &cueWriter{cues: map[string]func(){"evacuate): shop/cart": cancel}}, b.withState("op", "show", op.Name, "--follow")...)
	require.Equal(t, exitCannot, code)
	require.Contains(t, out, "Running (evacuate)")
	require.Contains(t, errText, "following 20261130-reboot-w-1 was stopped; the operation goes on")
}

func TestAnAgentsOwnAnswerIsFollowedWhereTheStateCannotBeRead(t *testing.T) {
	b := newOpBench(t)
	phases := []string{"Running", "Completed"}
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t0ken" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		require.Equal(t, "/api/v1/clusters/prod", r.URL.Path)
		name := time.Now().UTC().Format("20060102") + "-reboot-w-1"
		digest := operation.Digest([]byte(b.server.Git("show", "main:operations/"+name+".yaml") + "\n"))
		_ = json.NewEncoder(w).Encode(reconcile.ClusterStatus{Name: "prod", Operations: []reconcile.OperationStatus{{Name: name, Digest: digest, Phase: phases[0]}}})
		phases = phases[1:]
	}))
	defer served.Close()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("t0ken\n"), 0o600))
	code, out, errText := b.run("run-op", "node", "reboot", "w-1", "--key", b.key, "--yes", "--follow", "--agent", served.URL, "--agent-token-file", token)
	require.Zero(t, code, errText)
	require.Contains(t, out, "Running\n")
	require.Contains(t, out, "Completed\n")
}

func TestTheSSHAgentSigns(t *testing.T) {
	b := newOpBench(t)
	text, err := os.ReadFile(b.key)
	require.NoError(t, err)
	private, err := ssh.ParseRawPrivateKey(text)
	require.NoError(t, err)
	keyring := agent.NewKeyring()
	require.NoError(t, keyring.Add(agent.AddedKey{PrivateKey: private}))
	socket := filepath.Join(t.TempDir(), "agent")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = agent.ServeAgent(keyring, conn) }()
		}
	}()
	b.environment["SSH_AUTH_SOCK"] = socket
	code, out, errText := b.run("run-op", "node", "reboot", "w-1", "--yes", "--allowed-signers", b.sig)
	require.Zero(t, code, errText)
	require.Contains(t, out, "signed for ichor-operation@prod by alice@example.com")
	file := "operations/" + time.Now().UTC().Format("20060102") + "-reboot-w-1.yaml"
	signature := filepath.Join(t.TempDir(), "sig")
	require.NoError(t, os.WriteFile(signature, []byte(b.server.Git("show", "main:"+file+".sig")+"\n"), 0o600))
	verify := exec.Command("ssh-keygen", "-Y", "verify", "-f", b.sig, "-I", "alice@example.com", "-n", "ichor-operation@prod", "-s", signature)
	verify.Stdin = strings.NewReader(b.server.Git("show", "main:"+file) + "\n")
	verified, err := verify.CombinedOutput()
	require.NoError(t, err, string(verified))

	// An agent without keys signs nothing, and nothing is pushed.
	require.NoError(t, keyring.RemoveAll())
	before := b.server.Tip("main")
	code, _, errText = b.run("run-op", "node", "reboot", "w-1", "--yes")
	require.Equal(t, exitCannot, code)
	require.Contains(t, errText, "the SSH agent holds no key")
	require.Equal(t, before, b.server.Tip("main"))
}

func TestAnUnreadableStateIsNoEmptyOne(t *testing.T) {
	b := newOpBench(t)
	require.NoError(t, os.WriteFile(filepath.Join(b.state, "prod", "state.json"), []byte("{}"), 0o600))
	code, _, errText := b.run(b.withState("run-op", "node", "reboot", "w-1", "--key", b.key, "--yes")...)
	require.Equal(t, exitCannot, code)
	require.Contains(t, errText, "leave --state out and go on without knowing")
	require.NotContains(t, b.server.Git("ls-tree", "-r", "--name-only", "main"), "operations/")
}
