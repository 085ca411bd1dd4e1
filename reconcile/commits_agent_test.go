package reconcile

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// signedBench is a bench whose repository is a real one, of signed commits.
type signedBench struct {
	*bench
	branch *signedBranch
}

func newSignedBench(t *testing.T, clusters ...string) *signedBench {
	b := &signedBench{bench: newBench(t, clusters...), branch: &signedBranch{t: t, repo: gittest.New(t), alice: newSigner(t)}}
	b.branch.allow(b.branch.alice.line("alice@example.com", `namespaces="git,ichor-*"`))
	return b
}

// commit makes a commit of the files as they are, on top of main, and leaves main where it is.
func (b *signedBench) commit(parents ...string) string {
	b.t.Helper()
	if tip := b.branch.repo.Tip("main"); len(parents) == 0 && tip != "" {
		parents = []string{tip}
	}
	files := gittest.Files{}
	for name, file := range b.files {
		files[name] = string(file.Data)
	}
	return b.branch.repo.Write(gittest.Commit{Branch: "work", Parents: parents, Root: len(parents) == 0, Files: files})
}

func (b *signedBench) signed(commit string) string {
	return b.branch.push(b.branch.signedBy(b.branch.alice, commit))
}

// start runs an agent that has never seen the repository.
func (b *signedBench) start() {
	b.t.Helper()
	source, err := gitsource.Open(gitsource.Config{URL: b.branch.repo.URL(), Branch: "main", Cache: b.t.TempDir()}, clock.RealClock{})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { source.Close() })
	b.run(func(config *Config) {
		config.Source, config.CommitSigners = source, b.branch.who
		config.Signers = func() (*operation.AllowedSigners, error) { return b.branch.signers.SSH, nil }
	})
}

// known makes the state of a cluster whose past is settled, so that operations are looked at.
func (b *signedBench) known(name string, bundle *talos.Bundle) {
	b.t.Helper()
	material := bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	require.NoError(b.t, err)
	handle, err := statefile.OpenCluster(b.store, statefile.Options{Name: name, Sealer: sealer, WriterID: "before"})
	require.NoError(b.t, err)
	require.NoError(b.t, handle.Create(context.Background(), &statefile.State{SchemaVersion: statefile.SchemaVersion, Origin: statefile.OriginNew,
		Cluster: statefile.ClusterIdentity{Name: name, ID: schema.ClusterID(bundle.ClusterID()), BundleFingerprint: bundle.Fingerprint(), CAs: bundle.CAs()}}))
}

func (b *signedBench) bundle(name string) *talos.Bundle {
	b.t.Helper()
	fleet, _ := schema.Load(b.files, []string{"."})
	bundle, err := OpenBundle(fleet, fleet.Cluster(name), b.identities)
	require.NoError(b.t, err)
	return bundle
}

func TestAnAgentActsUponSignedCommitsAlone(t *testing.T) {
	b := newSignedBench(t, "prod")
	b.known("prod", b.bundle("prod"))
	first := b.signed(b.commit())
	b.start()
	b.until("prod", applied(first))
	require.Equal(t, first, b.cluster("prod").State.Revision.Verified)
	require.Contains(t, b.log.String(), "who may sign commits")

	// Somebody who can push and may not sign: another bundle, a further machine, a further cluster; and an operation that alice signed.
	created := time.Now().UTC().Truncate(time.Second)
	text := operationText("20261129-backup", schema.ClusterID(b.bundle("prod").ClusterID()), created, time.Hour,
		"  kind: etcd-backup\n  etcdBackup:\n    backupRef:\n      name: hourly\n")
	wholesome := string(b.files["clusters/prod/secrets.age"].Data)
	b.write("operations/20261129-backup.yaml", text)
	b.write("operations/20261129-backup.yaml.sig", string(b.branch.alice.sign(text, operation.Namespace("prod"))))
	b.write("clusters/prod/secrets.age", sealBundle(t, b.recipients, newBundle(t)))
	b.machine("prod", 0, "prod-w1", "worker", true)
	b.addCluster("evil", 7)
	second := b.branch.push(b.commit())
	b.agent.Poke()
	prod := b.until("prod", func(c ClusterReport) bool { return c.State != nil && c.State.Revision.Refused != nil })
	require.Equal(t, first, prod.State.Revision.Applied)
	require.Equal(t, second, prod.State.Revision.Refused.Commit)
	require.Contains(t, prod.State.Revision.Refused.Findings[0], "commit "+second[:12]+" by Ada <ada@example.com> (A change) is not acted upon")
	require.NotContains(t, prod.State.Machines, "prod-w1")
	require.Empty(t, b.cluster("evil").Name, "no cluster is worked for because an unsigned commit says so")
	require.Contains(t, strings.Join(b.agent.Report().Problems(), "\n"), "it is not signed")
	// The operation's own signature is its authority.
	prod = b.until("prod", func(c ClusterReport) bool { return c.State != nil && operationNamed(c.State, "20261129-backup") != nil })
	require.False(t, operationNamed(prod.State, "20261129-backup").AcceptedAt.IsZero(), "%+v", operationNamed(prod.State, "20261129-backup"))

	// An agent that starts anew, with nothing in its cache, goes on with what the state says, and doesn't open that bundle.
	b.start()
	again := b.until("prod", func(c ClusterReport) bool { return !c.Blocked && c.Passes.Count > 1 })
	require.Equal(t, first, again.State.Revision.Applied)
	require.NotNil(t, again.State.Revision.Refused)

	// Signed on top of it: still not. A signed merge on the last good commit, which puts right what was wrong: that one.
	delete(b.files, "clusters/evil/cluster.yaml")
	third := b.signed(b.commit())
	b.agent.Poke()
	b.until("prod", func(c ClusterReport) bool { return c.State != nil && c.State.Revision.Observed == third })
	require.Equal(t, first, b.cluster("prod").State.Revision.Applied)
	b.write("clusters/prod/secrets.age", wholesome)
	for name := range b.files {
		if strings.HasPrefix(name, "clusters/evil/") {
			delete(b.files, name)
		}
	}
	fourth := b.signed(b.commit(first, third))
	b.agent.Poke()
	last := b.until("prod", applied(fourth))
	require.Contains(t, last.State.Machines, "prod-w1")
	require.Nil(t, last.State.Revision.Refused)
	require.Equal(t, fourth, last.State.Revision.Verified)
}

func TestAFirstStartOnAnUnsignedCommitDoesNothingAndSaysSo(t *testing.T) {
	b := newSignedBench(t, "prod")
	b.branch.push(b.commit())
	b.start()
	require.Eventually(t, func() bool { return strings.Contains(b.agent.Report().Git, "it is not signed") }, ample, 5*time.Millisecond)
	require.Empty(t, b.agent.Report().Clusters)
	require.Zero(t, b.store.writes())
	require.Contains(t, b.log.String(), "the newest revision is not acted upon")

	// Nor where an earlier one is signed: nobody knows that the cluster was ever on it.
	b.machine("prod", 0, "prod-w1", "worker", true)
	earlier := b.branch.signedBy(b.branch.alice, b.commit())
	b.machine("prod", 0, "prod-w2", "worker", true)
	b.branch.push(b.commit(earlier))
	c := b.until("prod", reason("RevisionRefused"))
	require.Contains(t, c.Ready.Message, "it is not signed")
	require.NoError(t, b.store.List(context.Background(), "prod/", "", func(object statefile.ObjectInfo) error {
		t.Errorf("%s was written", object.Key)
		return nil
	}))

	last := b.signed(b.commit())
	b.until("prod", applied(last))
}

func TestASignerThatIsAddedLaterMakesACommitGoodWithoutAnother(t *testing.T) {
	b := newSignedBench(t, "prod")
	first := b.signed(b.commit())
	bob := newSigner(t)
	both := signersOf(t, b.branch.alice.line("alice@example.com", ""), bob.line("bob@example.com", ""))
	allowed := b.branch.signers.SSH
	source, err := gitsource.Open(gitsource.Config{URL: b.branch.repo.URL(), Branch: "main", Cache: t.TempDir()}, clock.RealClock{})
	require.NoError(t, err)
	t.Cleanup(func() { source.Close() })
	b.run(func(config *Config) {
		config.Source = source
		config.CommitSigners = func() (CommitSigners, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return CommitSigners{SSH: allowed}, nil
		}
	})
	b.until("prod", applied(first))
	b.machine("prod", 0, "prod-w1", "worker", true)
	second := b.branch.push(b.branch.signedBy(bob, b.commit()))
	b.until("prod", func(c ClusterReport) bool {
		return c.State != nil && c.State.Revision.Refused != nil && strings.Contains(c.State.Revision.Refused.Findings[0], "no line of the allowed signers holds it")
	})
	b.mu.Lock()
	allowed = both
	b.mu.Unlock()
	b.until("prod", applied(second))
}
