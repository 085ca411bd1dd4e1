package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/sealed"
)

// sealedFolder is a folder with two sealed files, and the identity that opens them.
func sealedFolder(t *testing.T) (folder, identity string) {
	t.Helper()
	folder, identity = t.TempDir(), filepath.Join(t.TempDir(), "key.txt")
	key, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(identity, []byte(key.String()), 0o600))
	list := []byte(key.Recipient().String() + "\n")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "recipients.txt"), list, 0o644))
	recipients, err := sealed.ParseRecipients("recipients.txt", list)
	require.NoError(t, err)
	for _, name := range []string{"a.age", "b.age"} {
		text, err := sealed.Seal(recipients, []byte("token: canary-in-"+name+"\n"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), text, 0o640))
	}
	return folder, identity
}

func contents(t *testing.T, folder string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	found := map[string]string{}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		require.NoError(t, err)
		found[entry.Name()] = string(text)
	}
	return found
}

func TestNothingIsSealedAnewWithoutAYes(t *testing.T) {
	folder, identity := sealedFolder(t)
	before := contents(t, folder)
	b := &stateBench{t: t, interactive: true}
	for _, answer := range []string{"n\n", "\n", "perhaps\n"} {
		b.in = strings.NewReader(answer)
		code, out, errText := b.run("secrets", "rekey", folder, "--age-identity", identity)
		require.Equal(t, exitNo, code)
		require.Empty(t, out)
		require.Contains(t, errText, "seal 2 files anew? [y/N] ")
		require.Contains(t, errText, "nothing was changed")
	}
	require.Equal(t, before, contents(t, folder))

	b.in = strings.NewReader("Y\n")
	code, out, errText := b.run("secrets", "rekey", folder, "--age-identity", identity)
	require.Zero(t, code, errText)
	require.NotContains(t, out+errText, "canary")
	after := contents(t, folder)
	require.Len(t, after, len(before))
	require.NotEqual(t, before["a.age"], after["a.age"])
	require.NotEqual(t, before["b.age"], after["b.age"])
	info, err := os.Stat(filepath.Join(folder, "a.age"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
}

// prepared is everything opened and sealed in memory, right before it is written.
func prepared(t *testing.T, folder, identity string) *rekeying {
	t.Helper()
	identities, err := sealed.LoadIdentities(identity)
	require.NoError(t, err)
	place, err := findRepository(folder)
	require.NoError(t, err)
	t.Cleanup(func() { _ = place.close() })
	r := &rekeying{given: folder, place: place, identities: identities}
	require.NoError(t, r.prepare())
	require.Len(t, r.files, 2)
	return r
}

func TestWhatFailsAfterTheFirstFileWasWrittenLeavesAllAsTheyWere(t *testing.T) {
	folder, identity := sealedFolder(t)
	before := contents(t, folder)
	r := prepared(t, folder, identity)
	r.files[1].plain = []byte("something else")
	err := r.write(t.Context())
	require.ErrorContains(t, err, "writing b.age: it opens to something else than before")
	require.Equal(t, before, contents(t, folder))
}

func TestAFileThatChangedWhileAPersonWasAskedIsNotOverwritten(t *testing.T) {
	folder, identity := sealedFolder(t)
	r := prepared(t, folder, identity)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "b.age"), []byte("newer"), 0o644))
	before := contents(t, folder)
	require.ErrorContains(t, r.write(t.Context()), "b.age changed meanwhile")
	require.Equal(t, before, contents(t, folder))
}

func TestAFileThatCannotBePutBackKeepsNoOtherFromIt(t *testing.T) {
	dir := t.TempDir()
	r := &rekeying{place: &repository{dir: dir}}
	var files []*rekeyFile
	for _, name := range []string{"a.age", "gone/b.age", "c.age"} {
		files = append(files, &rekeyFile{name: name, mode: 0o600, old: []byte("old"), sealed: []byte("new")})
	}
	for _, name := range []string{"a.age", "c.age"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("new"), 0o600))
	}
	err := r.undo(files, errors.New("the disk is full"))
	require.ErrorContains(t, err, "the disk is full; and gone/b.age can't be put back")
	for _, name := range []string{"a.age", "c.age"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, "old", string(content), name)
	}
}
