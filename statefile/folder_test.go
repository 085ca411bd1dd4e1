package statefile_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

func openFolder(t *testing.T, dir string, agent bool) statefile.Store {
	t.Helper()
	store, err := statefile.OpenFolder(dir, statefile.FolderOptions{Agent: agent})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func TestAFolderIsForOneAgent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	agent := openFolder(t, dir, true)
	_, err := statefile.OpenFolder(dir, statefile.FolderOptions{Agent: true})
	require.ErrorContains(t, err, "another agent works with the state folder "+dir)

	beside := openFolder(t, dir, false)
	_, err = beside.Put(t.Context(), "prod/state.json", []byte("x"), statefile.IfAbsent())
	require.NoError(t, err, "who is no agent may write between its writes")
	_, err = agent.Put(t.Context(), "prod/state.json", []byte("y"), statefile.IfAbsent())
	require.ErrorIs(t, err, statefile.ErrConflict)

	require.NoError(t, agent.Close())
	openFolder(t, dir, true)
}

// TestHelperHoldsAFolder is no test: it is the process that holds a folder for the one that is killed.
func TestHelperHoldsAFolder(t *testing.T) {
	dir := os.Getenv("ICHOR_TEST_HOLD_FOLDER")
	if dir == "" {
		return
	}
	_, err := statefile.OpenFolder(dir, statefile.FolderOptions{Agent: true})
	require.NoError(t, err)
	_, err = os.Stdout.WriteString("held\n")
	require.NoError(t, err)
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
}

func TestAnAgentThatIsKilledHoldsNoFolderAndLeavesNothingHalfWritten(t *testing.T) {
	dir := t.TempDir()
	holder := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperHoldsAFolder$")
	holder.Env = append(os.Environ(), "ICHOR_TEST_HOLD_FOLDER="+dir)
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	in, err := holder.StdinPipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Close() })
	require.NoError(t, holder.Start())
	_, err = out.Read(make([]byte, 5))
	require.NoError(t, err)
	_, err = statefile.OpenFolder(dir, statefile.FolderOptions{Agent: true})
	require.ErrorContains(t, err, "another agent")

	require.NoError(t, os.MkdirAll(filepath.Join(dir, "prod"), 0o700))
	half := filepath.Join(dir, "prod", ".tmp-0123")
	require.NoError(t, os.WriteFile(half, []byte("half"), 0o600))
	require.NoError(t, holder.Process.Kill())
	_ = holder.Wait()
	store := openFolder(t, dir, true)
	require.NoFileExists(t, half)
	require.NoError(t, store.List(t.Context(), "", "", func(info statefile.ObjectInfo) error {
		t.Errorf("%s is listed", info.Key)
		return nil
	}))
}

func TestAFoldersLinksLeadNowhere(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "state.json"), []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "prod")))
	store := openFolder(t, dir, true)
	_, err := store.Get(t.Context(), "prod/state.json", "")
	require.Error(t, err)
	_, err = store.Put(t.Context(), "prod/other.json", []byte("x"), statefile.If{})
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(outside, "other.json"))
}

func TestAFolderThatCanNotBeMadeOrWrittenIsOneSentence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := statefile.OpenFolder(filepath.Join(file, "state"), statefile.FolderOptions{Agent: true})
	require.ErrorContains(t, err, "making the state folder "+filepath.Join(file, "state"))
	require.NotContains(t, err.Error(), "\n")
}

func TestALocationIsTheSameForTheSamePlaceAndAnotherElsewhere(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	require.Equal(t, statefile.LocationHash(openFolder(t, a, true)), statefile.LocationHash(openFolder(t, a+"/../"+filepath.Base(a), false)))
	require.NotEqual(t, statefile.LocationHash(openFolder(t, a, false)), statefile.LocationHash(openFolder(t, b, false)))
	require.Len(t, statefile.LocationHash(openFolder(t, a, false)), 16)
	bucket := func(endpoint, bucket, prefix string) string {
		store, err := statefile.OpenS3(t.Context(), statefile.S3Config{
			Endpoint: endpoint, Bucket: bucket, Prefix: prefix, Credentials: &statefile.S3Credentials{AccessKeyID: "a", SecretAccessKey: "b"},
		})
		require.NoError(t, err)
		return store.Location()
	}
	require.Equal(t, "s3://s3.example.com/state/fleet", bucket("https://S3.example.com", "state", "/fleet/"))
	require.Equal(t, bucket("https://s3.example.com", "state", "fleet"), bucket("http://s3.example.com/", "state", "fleet"))
	require.NotEqual(t, bucket("https://s3.example.com", "state", "fleet"), bucket("https://s3.example.com", "state", "fleet2"))
}

func TestStoreURLsAreReadAndWhatIsNoneIsRefused(t *testing.T) {
	for text, want := range map[string]statefile.StoreURL{
		"s3://bucket":                {Bucket: "bucket"},
		"s3://bucket/":               {Bucket: "bucket"},
		"s3://bucket/a/b/":           {Bucket: "bucket", Prefix: "a/b"},
		"file:///var/lib/ichor":      {Folder: "/var/lib/ichor"},
		"file://localhost/var/ichor": {Folder: "/var/ichor"},
	} {
		got, err := statefile.ParseStoreURL(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "s3://", "s3:///a", "file://", "file:///", "file://host/a", "/var/lib", "http://x/y", "s3://key:secret@bucket", "s3://b?x=1", "s3:b"} {
		_, err := statefile.ParseStoreURL(text)
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "secret")
	}
}
