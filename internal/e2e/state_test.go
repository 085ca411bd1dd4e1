package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

func TestARolledBackStateStopsUntilItIsAcceptedAndALostOneIsAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.85.1", 1, 0)
	store := w.store()
	ctx := context.Background()
	a := w.startAgent("one")
	early := w.object(ctx, store, "prod/state.json")
	w.awaitState("the cluster Ready", ready)
	a.stop(syscall.SIGTERM)
	t.Run("a state from before the bootstrap", func(t *testing.T) { w.rolledBack(t, store, early) })
	require.False(t, t.Failed())

	before := w.changes()
	for _, lost := range []struct {
		name string
		lose func()
		// cache is whose cache the next agent has.
		cache string
	}{
		{"state.json alone is gone", func() { require.NoError(t, store.Delete(ctx, "prod/state.json")) }, "one"},
		{"state.json is gone and the next agent runs elsewhere", func() { require.NoError(t, store.Delete(ctx, "prod/state.json")) }, "elsewhere"},
		{"everything under the prefix is gone", func() { w.emptyPrefix(ctx, store) }, "one"},
		{"everything under the prefix is gone and the next agent runs elsewhere", func() { w.emptyPrefix(ctx, store) }, "nowhere"},
	} {
		t.Run(lost.name, func(t *testing.T) {
			w.t = t
			lost.lose()
			b := w.startAgent(lost.cache)
			state := w.awaitState("the cluster Ready again", ready)
			w.passes(b, 3)
			assert.Equal(t, before, w.changes(), "calls that machines took")
			require.NotNil(t, state.Bootstrap)
			assert.True(t, state.Bootstrap.Adopted, "%+v", state.Bootstrap)
			b.stop(syscall.SIGTERM)
		})
	}
}

// object waits for an object and gives its content.
func (w *world) object(ctx context.Context, store statefile.Store, key string) []byte {
	w.t.Helper()
	var data []byte
	await(w.t, key, func(context.Context) error {
		found, err := store.Get(ctx, key, "")
		if err == nil {
			data = found.Data
		}
		return err
	})
	return data
}

// emptyPrefix deletes every object of the state.
func (w *world) emptyPrefix(ctx context.Context, store statefile.Store) {
	w.t.Helper()
	var keys []string
	require.NoError(w.t, store.List(ctx, "", "", func(info statefile.ObjectInfo) error {
		keys = append(keys, info.Key)
		return nil
	}))
	require.NotEmpty(w.t, keys)
	for _, key := range keys {
		require.NoError(w.t, store.Delete(ctx, key))
	}
}

// rolledBack puts an old state in the place of the newest.
func (w *world) rolledBack(t *testing.T, store statefile.Store, early []byte) {
	w.t = t
	_, err := store.Put(context.Background(), "prod/state.json", early, statefile.If{})
	require.NoError(t, err)
	before := w.changes()
	// Not a change of any machine's config: what differs from Git when a state knows nothing of it is left alone.
	w.files["README.md"] = "the fleet\n"
	w.push()
	a := w.startAgent("one")
	a.awaitSaying(0, "was rolled back")
	w.passes(a, 5)
	assert.Len(t, a.saying(0, "was rolled back"), 1)
	assert.Equal(t, before, w.changes())

	accept := w.ichor(append([]string{"state", "accept", "prod", "--confirm", "prod", "--cache", w.path("cache", "one"), "--fleet", w.checkout(),
		"--age-identity", w.path("age.key")}, w.stateArguments()...)...)
	t.Log(accept.out, accept.err)
	require.Zero(t, accept.code, accept.err)
	state := w.awaitState("the cluster Ready with what was pushed", readyAt(w.repo.Tip("main")))
	assert.True(t, state.Bootstrap.Adopted, "%+v", state.Bootstrap)
	assert.Equal(t, before, w.changes(), "calls that machines took")
	a.stop(syscall.SIGTERM)
}

// checkout writes the fleet repository's files to a folder.
func (w *world) checkout() string {
	w.t.Helper()
	for name, content := range w.files {
		text, isText := content.(string)
		if !isText {
			continue
		}
		file := w.path("checkout", name)
		require.NoError(w.t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(w.t, os.WriteFile(file, []byte(text), 0o600))
	}
	return w.path("checkout")
}

func TestAFullDiskUnderAStateInAFolderStopsTheWorkUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	if !canMount() {
		t.Log("left out, because no small file system may be mounted here")
		return
	}
	w := newWorld(t, "127.0.86.1", 1, 0)
	w.folder = w.path("state")
	require.NoError(t, os.MkdirAll(w.folder, 0o700))
	mountSmall(t, w.folder)
	a := w.startAgent("one")
	w.awaitState("the cluster Ready", ready)

	fill(t, w.folder+"/filler")
	before, from := w.changes(), len(a.lines())
	w.setting("100000")
	commit := w.push()
	a.awaitSaying(from, "the disk is full")
	w.passes(a, 5)
	for text, count := range repeated(a.lines()[from:]) {
		assert.Equal(t, 1, count, "said more than once: %s", text)
	}
	assert.Len(t, a.saying(from, "the disk is full"), 1)
	assert.Equal(t, before, w.changes(), "nothing may be sent without its intent")
	w.awaitState("the state whole", func(s *statefile.State) error {
		if s.Intent != nil {
			return fmt.Errorf("an intent is left: %+v", s.Intent)
		}
		return nil
	})
	require.NoError(t, os.Remove(w.folder+"/filler"))
	w.awaitState("the change applied once there is room", readyAt(commit))
	_, code := a.stop(syscall.SIGTERM)
	assert.Zero(t, code)

	fill(t, w.folder+"/filler")
	w.setting("200000")
	w.push()
	got := w.once("one")
	t.Log(got.err)
	assert.NotZero(t, got.code)
	assert.Contains(t, got.err, "the disk is full")
	require.NoError(t, os.Remove(w.folder+"/filler"))
}
