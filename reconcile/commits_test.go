package reconcile

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	clocktest "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/validate"
)

// commitsAt is when commits are judged in these tests; theirs are of January, by gittest.
var commitsAt = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// signedBranch is a repository whose commits are signed or not, and who may sign them.
type signedBranch struct {
	t       *testing.T
	repo    *gittest.Repository
	source  *gitsource.Source
	history *history
	alice   *signer
	signers CommitSigners
	unread  error
	last    folded // each walk goes on where the one before ended, as a worker's do
}

func newSignedBranch(t *testing.T, options string) *signedBranch {
	t.Helper()
	b := &signedBranch{t: t, repo: gittest.New(t), alice: newSigner(t)}
	b.allow(b.alice.line("alice@example.com", options))
	b.open(false)
	return b
}

func (b *signedBranch) open(rewind bool) {
	b.t.Helper()
	engine, err := validate.New()
	require.NoError(b.t, err)
	b.source, err = gitsource.Open(gitsource.Config{URL: b.repo.URL(), Branch: "main", Cache: b.t.TempDir(), AllowRewind: rewind}, clocktest.NewFakeClock(commitsAt))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { b.source.Close() })
	b.history = newHistory(b.source, engine, nil, rewind, false)
	b.history.commits = &commitJudge{source: b.source, signers: b.who}
}

func (b *signedBranch) who() (CommitSigners, error) { return b.signers, b.unread }

func (b *signedBranch) allow(lines ...string) { b.signers.SSH = signersOf(b.t, lines...) }

// work makes a commit that isn't signed, on top of parents (the tip of main where none is given), and leaves main where it is.
func (b *signedBranch) work(file string, parents ...string) string {
	b.t.Helper()
	if len(parents) == 0 && b.repo.Tip("main") != "" {
		parents = []string{b.repo.Tip("main")}
	}
	files := gittest.Files{"notes/" + file: file}
	if len(parents) == 0 {
		for name, content := range (approvals{count: map[string]int{"prod": 1, "test": 1}, machines: map[string]map[string]bool{"prod": {"cp-1": true}, "test": {"cp-1": true}}}).files() {
			files[name] = string(content.Data)
		}
	}
	return b.repo.Write(gittest.Commit{Branch: "work", Parents: parents, Root: len(parents) == 0, Subject: "Change " + file, Files: files})
}

// signedBy gives a commit like another one, signed by a key.
func (b *signedBranch) signedBy(who *signer, commit string) string {
	b.t.Helper()
	object := b.repo.Object(commit)
	return b.repo.RawCommit(withSignature(object, who.sign(string(object), "git")))
}

func withSignature(object, signature []byte) []byte {
	header := "\ngpgsig " + strings.ReplaceAll(strings.TrimSpace(string(signature)), "\n", "\n ") + "\n\n"
	return bytes.Replace(object, []byte("\n\n"), []byte(header), 1)
}

func (b *signedBranch) push(commit string) string {
	b.t.Helper()
	b.repo.ForcePush("main", commit)
	return commit
}

// signed pushes a commit that alice signed.
func (b *signedBranch) signed(file string) string { return b.push(b.signedBy(b.alice, b.work(file))) }

// fold polls and walks prod on from a commit.
func (b *signedBranch) fold(on place) folded {
	b.t.Helper()
	head, err := b.source.Poll(context.Background())
	require.NoError(b.t, err)
	if on.now.IsZero() {
		on.now = commitsAt
	}
	got, err := b.history.fold(context.Background(), "prod", on, head, b.last)
	require.NoError(b.t, err)
	b.last = got
	return got
}

func (b *signedBranch) requireOn(got folded, commit string) {
	b.t.Helper()
	require.NotNil(b.t, got.good, "%v", got.refused)
	require.Equal(b.t, commit, got.good.revision.Commit, "%v", got.refused)
}

// requireStopped wants a walk that ended before a commit, with its author and the reason.
func (b *signedBranch) requireStopped(got folded, commit, reason string) {
	b.t.Helper()
	require.Len(b.t, got.refused, 1)
	require.Contains(b.t, got.refused[0], "commit-signature: commit "+commit[:12]+" by Ada <ada@example.com> (Change ")
	require.Contains(b.t, got.refused[0], reason)
}

func TestEachCommitSinceTheLastGoodOneMustBeSigned(t *testing.T) {
	b := newSignedBranch(t, `namespaces="git"`)
	first := b.signed("1")
	b.requireOn(b.fold(place{}), first)
	second, third := b.signed("2"), b.signed("3")
	got := b.fold(place{applied: first})
	b.requireOn(got, third)
	require.Equal(t, third, got.verified)
	require.Empty(t, got.refused)

	unsigned := b.push(b.work("4"))
	got = b.fold(place{applied: third, verified: third})
	b.requireOn(got, third)
	b.requireStopped(got, unsigned, "it is not signed")
	require.Contains(t, got.refused[0], "git merge -S --no-ff "+unsigned[:12])
	require.Contains(t, got.refused[0], "git checkout "+third[:12])

	// One on top of it that is signed doesn't make it good, nor is itself.
	later := b.signed("5")
	got = b.fold(place{applied: second})
	b.requireOn(got, third)
	b.requireStopped(got, unsigned, "it is not signed")
	require.NotContains(t, got.refused[0], "commit "+later[:12])
	require.Equal(t, third, got.verified)
}

func TestASignedMergeVouchesForWhatItMerges(t *testing.T) {
	b := newSignedBranch(t, `namespaces="git"`)
	good := b.signed("1")
	unsigned := b.work("side")

	merge := b.work("merge", good, unsigned)
	b.push(merge)
	b.requireStopped(b.fold(place{applied: good}), merge, "it is not signed")

	// The way out that the refusal names: a signed merge on top of the last good commit, which the branch comes to without a rewind.
	vouched := b.push(b.signedBy(b.alice, b.work("vouch", good, merge)))
	got := b.fold(place{applied: good, verified: good})
	b.requireOn(got, vouched)
	require.Equal(t, vouched, got.verified)

	// A merge the other way round has the unsigned commit on its first-parent line.
	bad := b.push(b.signedBy(b.alice, b.work("wrong way", b.push(b.work("x")), good)))
	got = b.fold(place{applied: vouched})
	b.requireOn(got, vouched)
	require.NotContains(t, got.refused[0], "commit "+bad[:12])
}

func TestAFirstStartJudgesTheTipAlone(t *testing.T) {
	b := newSignedBranch(t, `namespaces="git"`)
	unsigned := b.push(b.work("1"))
	got := b.fold(place{})
	require.Nil(t, got.good)
	b.requireStopped(got, unsigned, "it is not signed")
	require.Contains(t, got.refused[0], "push a commit on top of it that is signed")
	tip := b.signed("2")
	b.requireOn(b.fold(place{}), tip)
}

func TestARewindThatIsAllowedMustBeSignedToo(t *testing.T) {
	b := newSignedBranch(t, `namespaces="git"`)
	first := b.signed("1")
	second := b.signed("2")
	b.open(true)
	b.requireOn(b.fold(place{applied: first}), second)

	b.push(b.work("elsewhere", first))
	got := b.fold(place{applied: second, verified: second})
	require.Nil(t, got.good)
	b.requireStopped(got, b.repo.Tip("main"), "it is not signed")
	// The one rewind that is allowed is not used up by it.
	tip := b.signed("on top")
	b.requireOn(b.fold(place{applied: second, verified: second}), tip)
}

func TestARewindIsRefusedHoweverItIsSigned(t *testing.T) {
	b := newSignedBranch(t, `namespaces="git"`)
	first := b.signed("1")
	second := b.signed("2")
	b.requireOn(b.fold(place{applied: first}), second)
	b.push(first)
	_, err := b.source.Poll(context.Background())
	var rewound *gitsource.RewoundError
	require.ErrorAs(t, err, &rewound)
	// Where the cache is new too, the state knows.
	b.open(false)
	head, err := b.source.Poll(context.Background())
	require.NoError(t, err)
	_, err = b.history.fold(context.Background(), "prod", place{applied: second, verified: second, now: commitsAt}, head, folded{})
	require.ErrorIs(t, err, errRewound)
}

func TestTheRightToSignCommitsIsJudgedNow(t *testing.T) {
	b := newSignedBranch(t, `namespaces="git",valid-before="20261129Z"`)
	first := b.signed("1")
	second := b.signed("2")
	before := commitsAt.AddDate(0, 0, -2)
	b.requireOn(b.fold(place{applied: first, now: before}), second)

	// The commits are of January, and their committer could have written any time: the key is out of date now.
	got := b.fold(place{applied: first})
	b.requireOn(got, first)
	b.requireStopped(got, second, "held until 2026-11-29")

	// What was found signed once isn't asked again: a rule that refused it meanwhile doesn't make the branch unusable.
	b.requireOn(b.fold(place{applied: first, verified: second}), second)
	third := b.signed("3")
	got = b.fold(place{applied: first, verified: second})
	b.requireOn(got, second)
	b.requireStopped(got, third, "held until 2026-11-29")

	// A commit that isn't on the line vouches for nothing.
	got = b.fold(place{applied: first, verified: b.signedBy(b.alice, b.work("side", first))})
	b.requireOn(got, first)
}

func TestWhoMaySignCommits(t *testing.T) {
	b := newSignedBranch(t, "")
	first := b.signed("1")
	second := b.signed("2")
	mallory := newSigner(t)
	alice := func(options string) string { return b.alice.line("alice@example.com", options) }
	for _, c := range []struct {
		name, want string
		lines      []string
		revoked    bool
		unread     error
	}{
		{name: "a line without namespaces, which is OpenSSH's any", lines: []string{alice("")}},
		{name: "a line for git", lines: []string{alice(`namespaces="git"`)}},
		{name: "a line for all", lines: []string{alice(`namespaces="*"`)}},
		{name: "a line for operations alone", lines: []string{alice(`namespaces="ichor-*"`)}, want: `allows "ichor-*", and not git`},
		{name: "a line that leaves git out", lines: []string{alice(`namespaces="*,!git"`)}, want: "and not git"},
		{name: "a line that begins tomorrow", lines: []string{alice(`valid-after="20261130Z"`)}, want: "holds from 2026-11-30"},
		{name: "another's line", lines: []string{mallory.line("alice@example.com", "")}, want: "no line of the allowed signers holds it"},
		{name: "nobody's", lines: nil, want: "no line of the allowed signers holds it"},
		{name: "a revoked key", lines: []string{alice("")}, revoked: true, want: "is revoked"},
		{name: "a file that can't be read", lines: []string{alice("")}, unread: errors.New("line 3 is broken"), want: "line 3 is broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.t = t
			b.allow(c.lines...)
			b.unread = c.unread
			if c.revoked {
				require.NoError(t, b.signers.SSH.Revoke("revoked", []byte(strings.TrimSpace(string(ssh.MarshalAuthorizedKey(b.alice.key.PublicKey()))))))
			}
			got := b.fold(place{applied: first})
			if c.want == "" {
				b.requireOn(got, second)
				return
			}
			b.requireOn(got, first)
			b.requireStopped(got, second, c.want)
		})
	}
}

// What git itself signs with ssh-keygen.
func TestACommitThatGitSignedWithSSHIsTaken(t *testing.T) {
	b := newSignedBranch(t, `namespaces="git"`)
	first := b.signed("1")
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	key, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	second := b.push(b.repo.Sign(b.work("2"), "gpg.format=ssh", "user.signingkey="+file))
	b.requireStopped(b.fold(place{applied: first}), second, "no line of the allowed signers holds it")
	b.allow("bob@example.com " + string(ssh.MarshalAuthorizedKey(key)))
	b.requireOn(b.fold(place{applied: first}), second)
}

// Whoever can push can push any object.
func TestHostileCommitObjectsAreRefused(t *testing.T) {
	b := newSignedBranch(t, `namespaces="*"`)
	first := b.signed("1")
	plain := b.repo.Object(b.work("2"))
	other := b.repo.Git("rev-parse", b.work("3")+"^{tree}")
	tree := b.repo.Git("rev-parse", first+"^{tree}")
	wasTree := string(plain[len("tree ") : len("tree ")+40])
	sign := func(data []byte, namespace string) []byte { return b.alice.sign(string(data), namespace) }
	good := withSignature(plain, sign(plain, "git"))
	tag := []byte("object " + first + "\ntype commit\ntag v1\ntagger Ada <ada@example.com> 1767225600 +0000\n\nv1\n")
	hostile := map[string]struct {
		object []byte
		want   string
	}{
		"a signature over another tree":       {bytes.Replace(good, []byte(wasTree), []byte(other), 1), "not of these bytes"},
		"a signature over another parent":     {bytes.Replace(good, []byte("parent "+first), []byte("parent "+first+"\nparent "+first), 1), "not of these bytes"},
		"a signature over another message":    {append(bytes.Clone(good), "x\n"...), "not of these bytes"},
		"a signature for files":               {withSignature(plain, sign(plain, "file")), `for the namespace "file"`},
		"a signature for operations":          {withSignature(plain, sign(plain, "ichor-operation@prod")), "for the namespace"},
		"a tag's signature":                   {withSignature(plain, sign(tag, "git")), "not of these bytes"},
		"a signature hidden from SHA-1":       {bytes.Replace(good, []byte("\ngpgsig "), []byte("\ngpgsig-sha256 "), 1), "which no signature covers"},
		"a good signature and a hidden one":   {withSignature(good, sign(plain, "git")), "two signatures"},
		"carriage returns in the signature":   {bytes.Replace(good, []byte("-----BEGIN SSH SIGNATURE-----\n"), []byte("-----BEGIN SSH SIGNATURE-----\r\n"), 1), "control character"},
		"a second tree behind the first":      {withSignature(bytes.Replace(plain, []byte("\nauthor"), []byte("\ntree "+tree+"\nauthor"), 1), sign(plain, "git")), "not those of a commit"},
		"another tree beside the signature":   {bytes.Replace(good, []byte("\ngpgsig"), []byte("\ntree "+tree+"\ngpgsig"), 1), "second tree"},
		"an X.509 signature":                  {withSignature(plain, []byte("-----BEGIN SIGNED MESSAGE-----\nAAAA\n-----END SIGNED MESSAGE-----")), "X.509"},
		"an OpenPGP signature without a ring": {withSignature(plain, []byte("-----BEGIN PGP SIGNATURE-----\n\nAAAA\n-----END PGP SIGNATURE-----")), "no keyring is given"},
		"an empty armour":                     {withSignature(plain, []byte("-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----")), "isn't one that ssh-keygen"},
	}
	// One merge brings them all into the clone.
	commits, parents := map[string]string{"good": b.repo.RawCommit(good)}, "parent "+first
	for name, c := range hostile {
		commits[name] = b.repo.RawCommit(c.object)
	}
	for _, commit := range commits {
		parents += "\nparent " + commit
	}
	b.push(b.repo.RawCommit(bytes.Replace(plain, []byte("parent "+first), []byte(parents), 1)))
	_, err := b.source.Poll(context.Background())
	require.NoError(t, err)
	for name, commit := range commits {
		t.Run(name, func(t *testing.T) {
			revision, err := b.source.At(commit)
			require.NoError(t, err)
			why := b.history.commits.unsigned(revision, commitsAt)
			if name == "good" {
				require.Empty(t, why)
				return
			}
			require.Contains(t, why, "commit-signature: commit "+commit[:12])
			require.Contains(t, why, hostile[name].want)
		})
	}
}

func TestWhichClustersThereAreIsAskedOfTheNewestSignedCommit(t *testing.T) {
	b := newSignedBranch(t, `namespaces="git"`)
	first := b.signed("1")
	b.push(b.work("2"))
	b.push(b.work("3"))
	head, err := b.source.Poll(context.Background())
	require.NoError(t, err)
	trusted, why := b.history.trusted(head, commitsAt)
	require.Equal(t, first, trusted.Commit)
	require.Contains(t, why, "it is not signed")

	b.allow()
	trusted, why = b.history.trusted(head, commitsAt)
	require.Nil(t, trusted)
	require.Contains(t, why, head.Commit[:12])
}
