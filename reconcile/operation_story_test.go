package reconcile

import (
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// storyOperations are the operation files of a transcript, who may sign, and the store's audit/once objects.
type storyOperations struct {
	s       *story
	lines   []string
	revoked []string
	files   map[string]Submitted
	commit  int
	once    map[string]string // by digest, the nonce
	skew    time.Duration
	existing,
	judged map[string]bool
	begun,
	taken map[string]string
	// flagless: the agent was started without allowed signers; stale: why the repository can't be read.
	flagless bool
	stale    string
	// own is the Node that the agent runs on.
	own string
	// said is what was printed last.
	said map[string]bool
}

func (s *story) ops() *storyOperations {
	if s.drive.operations == nil {
		s.drive.operations = &storyOperations{s: s, files: map[string]Submitted{}, once: map[string]string{}, existing: map[string]bool{},
			judged: map[string]bool{}, begun: map[string]string{}, taken: map[string]string{}}
	}
	return s.drive.operations
}

// forget is the end of a process: what it knew beside the state is gone.
func (o *storyOperations) forget() {
	if o != nil {
		o.judged, o.begun, o.taken = map[string]bool{}, map[string]string{}, map[string]string{}
	}
}

func (o *storyOperations) input(d *drive) *Operations {
	if o == nil {
		return nil
	}
	in := &Operations{Commit: fmt.Sprintf("o%d", o.commit), Stale: o.stale, Nonce: fmt.Sprintf("nonce-%d-%d", o.commit, len(d.log)), Skew: o.skew,
		RunExisting: o.existing, Begun: o.begun, Taken: o.taken, Judged: o.judged, Gone: map[string]bool{}}
	if o.flagless {
		in.Problem = "nobody said who may sign"
	} else {
		signers, err := operation.ParseAllowedSigners("allowed_signers", []byte(strings.Join(o.lines, "\n")))
		require.NoError(o.s.t, err)
		require.NoError(o.s.t, signers.Revoke("revoked", []byte(strings.Join(o.revoked, "\n"))))
		in.Signers = signers
	}
	for _, name := range slices.Sorted(maps.Keys(o.files)) {
		in.Files = append(in.Files, o.files[name])
	}
	for _, op := range d.state.Operations {
		if _, is := o.files[op.File]; !is {
			in.Gone[placed(op.Source, op.File)] = true
		}
	}
	return in
}

// begin makes the audit/once objects that a plan asks for, and places the snapshots that it asks for.
func (o *storyOperations) begin(plan Plan) bool {
	if o == nil {
		return false
	}
	for _, digest := range plan.Judged {
		o.judged[digest] = true
	}
	for _, order := range plan.Backups {
		require.NoError(o.s.t, order.place(o.s.drive.state))
	}
	for _, b := range plan.Begin {
		if had, is := o.once[b.Digest]; is && had != b.Nonce {
			o.taken[b.Digest] = "it was begun before: an operation runs once; write a new one"
			continue
		}
		o.once[b.Digest] = b.Nonce
		o.begun[b.Digest] = b.Nonce
	}
	return len(plan.Begin) > 0
}

func keyOf(name string) ssh.Signer {
	seed := sha256.Sum256([]byte(name))
	key, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(seed[:]))
	if err != nil {
		panic(err)
	}
	return key
}

// doOperation is one command of a transcript about operations; false for one that isn't.
func (s *story) doOperation(command string, arguments []string, options map[string]string) bool {
	switch command {
	case "signer": // signer alice namespaces=ichor-operation@prod [valid-before=20261130]
		var limits []string
		for _, key := range slices.Sorted(maps.Keys(options)) {
			limits = append(limits, fmt.Sprintf("%s=%q", key, options[key]))
		}
		o := s.ops()
		o.lines = append(o.lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", arguments[0], strings.Join(limits, ","),
			strings.TrimSpace(string(ssh.MarshalAuthorizedKey(keyOf(arguments[0]).PublicKey()))))))
	case "no-signers":
		s.ops().flagless = arguments[0] == "yes"
	case "dismiss": // its line is taken out
		s.ops().lines = slices.DeleteFunc(s.ops().lines, func(line string) bool { return strings.HasPrefix(line, arguments[0]+" ") })
	case "revoke":
		s.ops().revoked = append(s.ops().revoked, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(keyOf(arguments[0]).PublicKey()))))
	case "file":
		s.file(arguments, options)
	case "unfile": // the file is removed
		delete(s.ops().files, s.fileNamed(arguments[0]))
		s.ops().commit++
	case "sign": // sign reboot-1 by=alice: the signature comes later
		name := s.fileNamed(arguments[0])
		f := s.ops().files[name]
		f.Signature = s.signature(string(f.Data), options)
		s.ops().files[name] = f
	case "copy": // copy reboot-1 reboot-2: the same bytes under another name
		f := s.ops().files[s.fileNamed(arguments[0])]
		f.File = "operations/" + arguments[1] + ".yaml"
		s.ops().files[f.File] = f
	case "edit": // edit reboot-1 from=w-1 to=w-2: the file is changed, the signature is not
		name := s.fileNamed(arguments[0])
		f := s.ops().files[name]
		f.Data = []byte(strings.ReplaceAll(string(f.Data), options["from"], options["to"]))
		f.Digest = operation.Digest(f.Data)
		s.ops().files[name] = f
	case "forge": // forge reboot-1 phase=Running from=w-1 to=w-2: somebody who can seal writes into the state
		s.forge(arguments[0], options)
	case "skew":
		s.ops().skew = length(s.t, arguments[0])
	case "repository": // repository stale|read
		s.ops().stale = ""
		if arguments[0] == "stale" {
			s.ops().stale = "the repository can't be read"
		}
	case "run-existing":
		s.ops().existing[arguments[0]] = true
	case "remember-state":
		s.kept = cloneState(s.drive.state)
	case "put-back-state": // and accepted, since it is refused otherwise; by the process that ran meanwhile: put-back-state alive
		s.drive.state = cloneState(s.kept)
		if len(arguments) == 0 {
			s.drive.state.Writer.Epoch += 10
			s.drive.operations.forget()
		}
	case "accept": // a person accepts the state, and with it the time of this machine
		s.drive.state = cloneState(s.drive.state)
		s.drive.state.Latest = stamp(s.drive.model.now)
	case "own-node": // the agent runs on it
		s.ops().own = arguments[0]
	case "clock": // the agent's clock is set
		s.drive.model.now = s.drive.model.now.Add(length(s.t, arguments[0]))
	case "backup": // backup hourly stored etcd-... | failed because: what the keeper of the backups says
		request := s.drive.state.Backups[arguments[0]].Request
		request.Started, request.Done, request.Outcome = s.drive.model.now, s.drive.model.now, strings.Join(arguments[1:], " ")
	case "operations":
		s.showOperations()
	default:
		return false
	}
	return true
}

func (s *story) fileNamed(name string) string { return "operations/" + name + ".yaml" }

// file puts a signed operation into the repository, or into the inbox.
func (s *story) file(arguments []string, options map[string]string) {
	name, body := arguments[0], ""
	switch kind := arguments[1]; kind {
	case "resume", "cancel":
		named := arguments[2]
		digest := options["digest"]
		if digest == "" {
			digest = s.ops().files[s.fileNamed(named)].Digest
		}
		body = fmt.Sprintf("  kind: %s\n  %s:\n    operation: %s\n    digest: %s\n", kind, kind, named, digest)
		if kind == "resume" {
			body += fmt.Sprintf("    pause: %s\n", nameOr(options["pause"], "1"))
		}
	case "etcd-backup":
		body = fmt.Sprintf("  kind: etcd-backup\n  etcdBackup:\n    backupRef:\n      name: %s\n", arguments[2])
	default: // reboot w-1
		uuid := options["uuid"]
		if node := s.drive.model.nodes[arguments[2]]; node != nil && uuid == "" {
			uuid = node.uuid
		}
		body = nodeBody(arguments[2], uuid, kind)
	}
	created, life := s.drive.model.now, time.Hour
	if ahead := options["ahead"]; ahead != "" {
		created = created.Add(length(s.t, ahead))
	}
	if options["life"] != "" {
		life = length(s.t, options["life"])
	}
	text := operationText(name, nameOr(options["id"], "1f3a9c0d2b4e6f78"), created, life, body)
	if cluster := options["cluster"]; cluster != "" {
		text = strings.Replace(text, "    name: prod\n", "    name: "+cluster+"\n", 1)
	}
	f := Submitted{Source: nameOr(options["source"], sourceGit), File: s.fileNamed(nameOr(options["as"], name)), Data: []byte(text),
		Digest: operation.Digest([]byte(text)), ExpiresAt: created.Add(life)}
	if arguments[1] == "resume" || arguments[1] == "cancel" {
		f.Kind = schema.OperationKind(arguments[1])
	}
	f.Signature = s.signature(text, options)
	s.ops().files[f.File] = f
	s.ops().commit++
}

func (s *story) signature(text string, options map[string]string) []byte {
	by := options["by"]
	if by == "" {
		return nil
	}
	signature, err := operation.Sign([]byte(text), nameOr(options["namespace"], "ichor-operation@prod"), keyOf(by))
	require.NoError(s.t, err)
	return signature
}

// forge changes an operation in the state as somebody could who holds the cluster's secrets.
func (s *story) forge(name string, options map[string]string) {
	s.drive.state = cloneState(s.drive.state)
	op := operationNamed(s.drive.state, name)
	if op != nil && op.AcceptedAt.IsZero() {
		s.drive.state.Operations = slices.DeleteFunc(s.drive.state.Operations, func(o *statefile.OperationState) bool { return o == op })
		op = nil
	}
	if op == nil { // it was never accepted: its file is put there as if it had been
		f := s.ops().files[s.fileNamed(name)]
		op = &statefile.OperationState{Name: name, Digest: f.Digest, Source: sourceGit, File: f.File, Data: string(f.Data), Signature: string(f.Signature),
			AcceptedAt: s.drive.model.now, JudgedAt: s.drive.model.now, FirstSeen: s.drive.model.now, ExpiresAt: f.ExpiresAt}
		s.drive.state.Operations = append(s.drive.state.Operations, op)
	}
	op.Phase, op.Once, op.OnceNonce = statefile.OperationPhase(options["phase"]), true, "forged"
	if options["judged"] == "now" { // as if the writer that is at work had verified it
		op.JudgedEpoch = s.drive.state.Writer.Epoch
	}
	if options["from"] != "" {
		op.Data = strings.ReplaceAll(op.Data, options["from"], options["to"])
	}
	if options["digest"] == "new" {
		op.Digest = operation.Digest([]byte(op.Data))
	}
	s.drive.state.Lock = &statefile.Lock{Holder: operationLock(op.Digest), Reason: "forged", Since: stamp(s.drive.model.now)}
}

// showOperations prints the operations of which there is news, and who has the lock.
func (s *story) showOperations() {
	said := map[string]bool{}
	for _, op := range s.drive.state.Operations {
		line := fmt.Sprintf("%s %s", op.Name, op.Phase)
		if op.Step != "" {
			line += " at " + op.Step
		}
		if op.Pause > 0 {
			line += fmt.Sprintf(" pause %d", op.Pause)
		}
		if op.Refusal != "" {
			line += fmt.Sprintf(" (%s)", op.Refusal)
		}
		line += ": " + op.Message
		if said[line] = true; !s.ops().said[line] {
			fmt.Fprintln(&s.out, line)
		}
	}
	s.ops().said = said
	if l := s.drive.state.Lock; l != nil {
		fmt.Fprintf(&s.out, "locked by %s: %s\n", s.holderOf(l), l.Reason)
	}
	if n := s.drive.state.RefusedMore; n > 0 {
		fmt.Fprintf(&s.out, "%d more are refused\n", n)
	}
}

func (s *story) holderOf(l *statefile.Lock) string {
	for _, op := range s.drive.state.Operations {
		if operationLock(op.Digest) == l.Holder {
			return op.Name
		}
	}
	return l.Holder
}
