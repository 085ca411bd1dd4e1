package reconcile

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// pile is a decision about many operation files at once.
type pile struct {
	t     *testing.T
	alice *signer
	in    Input
	// judged is how many verdicts were come to.
	judged int
}

func newPile(t *testing.T) *pile {
	t.Helper()
	alice := newSigner(t)
	cluster := &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}}
	cluster.Spec.ID = "1f3a9c0d2b4e6f78"
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return &pile{t: t, alice: alice, in: Input{Cluster: Cluster{Object: cluster, Commit: "c1"}, Now: now, Timing: DefaultTiming(),
		State:      &statefile.State{SchemaVersion: 1, Origin: statefile.OriginNew, OperationsFrom: "c0", Writer: statefile.Writer{ID: "a", Epoch: 1}},
		Operations: &Operations{Commit: "c1", Nonce: "n", Refused: map[string]*operation.Refusal{}, Signers: signersOf(t, alice.line("alice", `namespaces="ichor-operation@prod"`))}}}
}

func (p *pile) add(name, file string, signature []byte) *Submitted {
	text := operationText(name, "1f3a9c0d2b4e6f78", p.in.Now, time.Hour, nodeBody("w-1", "4c4c4544-0039-3510-8052-b4c04f4e3731", "reboot"))
	p.in.Operations.Files = append(p.in.Operations.Files, Submitted{Source: sourceGit, File: file, Data: []byte(text), Signature: signature,
		Digest: operation.Digest([]byte(text)), ExpiresAt: p.in.Now.Add(time.Hour)})
	return &p.in.Operations.Files[len(p.in.Operations.Files)-1]
}

// pass decides, and gives what became of the operations.
func (p *pile) pass() []statefile.Event {
	p.t.Helper()
	plan := Decide(p.in)
	require.LessOrEqual(p.t, len(plan.Refused), mostJudged)
	p.judged += len(plan.Refused)
	maps.Copy(p.in.Operations.Refused, plan.Refused)
	events := operationEvents(p.in.State, plan.Next)
	p.in.State, p.in.Now = plan.Next, p.in.Now.Add(time.Second)
	return events
}

// settle makes passes until one has nothing to tell and nothing left to judge, and counts the events.
func (p *pile) settle() (events int) {
	p.t.Helper()
	for pass := range 100 {
		before := p.judged
		got := p.pass()
		require.LessOrEqual(p.t, len(got), 2*mostNew+1, "pass %d", pass) // accepted, and refused at its start
		if events += len(got); len(got) == 0 && p.judged == before {
			return events
		}
	}
	require.Fail(p.t, "verdicts never come to an end")
	return 0
}

// change gives the files other signatures.
func (p *pile) change(signature func(Submitted) []byte) {
	for n, f := range p.in.Operations.Files {
		p.in.Operations.Files[n].Signature = signature(f)
	}
}

func TestAFileWhoseNameActsOnATerminalIsRefusedOnce(t *testing.T) {
	p := newPile(t)
	p.add("reboot-1", "operations/\x1b[2Jreboot-1\u202e.yaml", nil)
	require.Len(t, p.pass(), 1)
	for range 3 {
		require.Empty(t, p.pass())
	}
	require.Len(t, p.in.State.Operations, 1)
	require.Equal(t, string(operation.FileNameDiffers), p.in.State.Operations[0].Refusal)
	require.Equal(t, "operations/reboot-1.yaml", p.in.State.Operations[0].File)
}

func TestVerdictsThatChangeAllAtOnceAreTakenInAFewAtATime(t *testing.T) {
	p := newPile(t)
	for n := range mostRefused + 50 {
		name := fmt.Sprintf("reboot-%03d", n)
		p.add(name, "operations/"+name+".yaml", nil)
	}
	require.Equal(t, mostRefused+1, p.settle(), "each that is named, and that more are counted")
	require.Equal(t, 50, p.in.State.RefusedMore)
	p.change(func(Submitted) []byte { return []byte("forged") })
	require.Equal(t, mostRefused, p.settle())
	p.change(func(f Submitted) []byte { return p.alice.sign(string(f.Data), "ichor-operation@prod") })
	p.settle()
	for _, op := range p.in.State.Operations {
		require.False(t, op.AcceptedAt.IsZero(), "%s: %s", op.Name, op.Message)
		require.False(t, strings.Contains(op.Message, "forged"))
	}
}

func TestAFloodOfFilesIsJudgedOnceAndAFewAtATimeAndHidesNoGoodOne(t *testing.T) {
	p := newPile(t)
	mallory, many := newSigner(t), 3*mostJudged
	for n := range many {
		name := fmt.Sprintf("flood-%03d", n)
		f := p.add(name, "operations/"+name+".yaml", nil)
		f.Signature = mallory.sign(string(f.Data), "ichor-operation@prod")
	}
	good := p.add("zealous", "operations/zealous.yaml", nil)
	good.Signature = p.alice.sign(string(good.Data), "ichor-operation@prod")
	p.settle()
	require.Equal(t, many, p.judged)
	require.Equal(t, many-mostRefused, p.in.State.RefusedMore)
	require.False(t, operationNamed(p.in.State, "zealous").AcceptedAt.IsZero())
	require.Empty(t, p.pass())
	require.Equal(t, many, p.judged, "what was judged once is not judged again")
	p.makesRoom()

	p.in.Operations.Signers = signersOf(t, mallory.line("mallory", `namespaces="ichor-operation@prod"`))
	p.in.Operations.Refused = (&refusals{by: p.in.Operations.Refused}).under("c1", p.in.Operations.Signers)
	p.settle()
	require.Zero(t, p.in.State.RefusedMore)
	require.False(t, operationNamed(p.in.State, "flood-899").AcceptedAt.IsZero(), "another may sign now")
}

// makesRoom takes the flood away: what is refused next has a name again. It puts the flood back then.
func (p *pile) makesRoom() {
	p.t.Helper()
	files, state := p.in.Operations.Files, p.in.State
	p.in.Operations.Files = nil
	p.add("later", "operations/later.yaml", nil)
	p.in.Operations.Stale = "the repository can't be read"
	p.settle()
	require.Nil(p.t, operationNamed(p.in.State, "later"))
	p.in.Operations.Stale = ""
	p.settle()
	require.Equal(p.t, string(operation.SignatureMissing), operationNamed(p.in.State, "later").Refusal)
	require.Zero(p.t, p.in.State.RefusedMore)
	p.in.Operations.Files, p.in.State = files, state
}

func TestAClockThatWasPutBackMakesNothingValid(t *testing.T) {
	p := newPile(t)
	f := p.add("reboot-1", "operations/reboot-1.yaml", nil) // it waits an hour at most
	f.Signature = p.alice.sign(string(f.Data), "ichor-operation@prod")
	p.in.State.Latest = p.in.Now.Add(61 * time.Minute)
	p.in.Now = p.in.Now.Add(30 * time.Minute)
	p.pass()
	require.Equal(t, string(operation.Expired), operationNamed(p.in.State, "reboot-1").Refusal)
}
