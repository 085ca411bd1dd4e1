package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// TestNoSecretIsWrittenAnywhere plants canaries in the bundle, a sealed patch, the S3 keys and the Git token, runs the whole path
// with troubles whose texts bear them, and searches everything that was written. It ends the agent as SIGTERM does.
func TestNoSecretIsWrittenAnywhere(t *testing.T) {
	const patchCanary, keyCanary, tokenCanary = "canary-of-the-sealed-patch", "canary-of-the-s3-key", "canary-of-the-git-token"
	l := newLab(t, "127.0.55.1", 1, 1, 30)
	l.sealedPatch(t, patchCanary)
	folder := t.TempDir()
	store, err := statefile.OpenFolder(folder, statefile.FolderOptions{})
	require.NoError(t, err)
	defer store.Close()
	broken := &countedStore{Store: store}
	l.store = broken
	l.scrubber.Add(keyCanary, tokenCanary)

	agent, stop := start(l.config("agent-1"))
	ready := func(why string) {
		t.Helper()
		require.Eventually(t, func() bool { return allReady(agent.Report()) }, ample, 20*time.Millisecond, why)
	}
	ready("at first")

	l.source.mu.Lock()
	l.source.problem = errors.New("https://x:" + tokenCanary + "@git.example.com answered 403")
	l.source.mu.Unlock()
	require.Eventually(t, func() bool { return agent.Report().Git != "" }, ample, 20*time.Millisecond)
	broken.fail(fmt.Errorf("signing with %s: %w", keyCanary, statefile.ErrUnavailable))
	require.Eventually(t, func() bool { return agent.Report().Clusters[0].Ready.Reason == "StateUnavailable" }, ample, 20*time.Millisecond)
	report := agent.Report()
	broken.fail(nil)
	l.source.mu.Lock()
	l.source.problem = nil
	l.source.mu.Unlock()
	ready("after the troubles")

	// A changed secret travels over the machines, and one is drifted by hand.
	l.sealedPatch(t, patchCanary+"-2")
	commit := l.source.push(l.fleet.files)
	require.Eventually(t, func() bool {
		r := agent.Report()
		return allReady(r) && r.Clusters[0].State.Revision.Applied == commit && l.accepted("ApplyConfiguration")["w-1"] >= 3
	}, ample, 20*time.Millisecond, "the change was tried and confirmed: %v", agent.Report().Problems())

	began := time.Now()
	stop()
	require.Less(t, time.Since(began), DefaultTiming().Call, "no call was open, so it waits for nothing that has a limit")

	written := map[string]string{"the log": l.log.String()}
	text, err := json.Marshal(report)
	require.NoError(t, err)
	written["the report"] = string(text)
	last, err := l.openState(t, "reader").Load(context.Background())
	require.NoError(t, err)
	status, err := json.Marshal(StatusOf(last, nil))
	require.NoError(t, err)
	written["the status"] = string(status)
	require.NoError(t, filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		written[name] = string(data)
		return err
	}))
	require.Greater(t, len(written), 10, "state, lease and audit were written")
	secrets := append(l.fleet.bundle.Scalars(), patchCanary, keyCanary, tokenCanary)
	for name, text := range written {
		for _, secret := range secrets {
			require.False(t, strings.Contains(text, secret), "%s holds a secret (%.6s…)", name, secret)
		}
	}
	require.Contains(t, written["the log"], "(hidden)", "the canaries were met, and hidden")
}

// sealedPatch writes a patch with a value that is sealed in Git.
func (l *lab) sealedPatch(t *testing.T, value string) {
	if l.recipients == nil {
		l.fleet.identities, l.recipients = newKeys(t)
		l.fleet.write("clusters/prod/secrets.age", sealBundle(t, l.recipients, l.fleet.bundle))
		cluster := string(l.fleet.files["clusters/prod/cluster.yaml"].Data)
		l.fleet.write("clusters/prod/cluster.yaml", cluster+"  patches: {all: [{file: patch.age}]}\n")
	}
	patch, err := sealed.Seal(l.recipients, []byte("machine:\n  sysctls:\n    kernel.core_pattern: \""+value+"\"\n"))
	require.NoError(t, err)
	l.fleet.write("clusters/prod/patch.age", string(patch))
	l.source.mu.Lock()
	if len(l.source.revisions) == 1 {
		l.source.revisions = nil
	}
	none := len(l.source.revisions) == 0
	l.source.mu.Unlock()
	if none {
		l.source.push(l.fleet.files)
	}
}

// TestADriftMadeBehindTheAgentsBackIsMended changes a machine's config by hand: it is tried back and confirmed.
func TestADriftMadeBehindTheAgentsBackIsMended(t *testing.T) {
	t.Parallel()
	l := newLab(t, "127.0.55.11", 1, 1, 30)
	agent, stop := start(l.config("agent-1"))
	defer stop()
	ready := func() {
		t.Helper()
		require.Eventually(t, func() bool { return allReady(agent.Report()) }, ample, 20*time.Millisecond)
	}
	ready()
	ctx, cancel := context.WithTimeout(context.Background(), ample)
	defer cancel()
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	defer client.Close()
	worker := l.farm.Node("w-1")
	target := talos.Target{Name: "w-1", Endpoint: worker.Address()}
	digests := func() (active, persistent string) {
		session, err := client.Dial(ctx, target, talos.RoleAdmin)
		if err != nil {
			return "", ""
		}
		defer session.Close()
		active, persistent, _ = session.ConfigDigests(ctx)
		return active, persistent
	}
	before, _ := digests()
	require.NotEmpty(t, before)
	session, err := client.Dial(ctx, target, talos.RoleAdmin)
	require.NoError(t, err)
	active, _, err := session.Configs(ctx)
	require.NoError(t, err)
	text, err := active.Bytes()
	require.NoError(t, err)
	byHand := strings.Replace(string(text), "machine:\n", "machine:\n    sysctls:\n        vm.swappiness: \"7\"\n", 1)
	require.NoError(t, session.ApplyConfig(ctx, talos.ApplyRequest{Config: []byte(byHand), Mode: talos.ApplyNoReboot}))
	session.Close()
	require.Eventually(t, func() bool {
		active, persistent := digests()
		return active == before && persistent == before
	}, ample, 50*time.Millisecond)
	ready()

	var modes []string
	for _, entry := range worker.Journal() {
		if entry.Accepted && strings.HasSuffix(entry.Method, "/ApplyConfiguration") {
			modes = append(modes, fmt.Sprint(entry.Request["mode"]))
		}
	}
	require.Equal(t, []string{"no_reboot", "no_reboot", "try", "no_reboot"}, modes, "the first config, the hand, the try and its confirmation")
}
