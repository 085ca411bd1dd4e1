package validate_test

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/cputime"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

func newIdentity(t testing.TB) string {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	return identity.String()
}

func findSecrets(t *testing.T, files map[string]string, roots ...string) validate.Secrets {
	t.Helper()
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	fleet, _ := schema.Load(tree, []string{"."})
	if len(roots) == 0 {
		roots = []string{"."}
	}
	return validate.FindSecrets(tree, roots, fleet)
}

func TestASecretIsFoundInAnyFileWhateverItsName(t *testing.T) {
	secret := newIdentity(t)
	staging := strings.Replace(configsCluster, "name: prod", "name: staging", 1)
	files := map[string]string{
		"clusters/prod/cluster.yaml": configsCluster, "clusters/staging/cluster.yaml": staging, ".ichorignore": "*.key\nnotes/\n/tmp\n",
	}
	want := map[string]string{
		"README.md": "", "clusters/prod/age.key": "prod", "clusters/prod/.env": "prod", "clusters/prod/.hidden/deep/x": "prod", "clusters/staging/a.yaml": "staging",
		"clusters/prod/secrets.age": "prod", "notes/a.txt": "", "tmp": "", ".github/workflows/ci.yaml": "", "operations/x.yaml.sig": "", "x.pub": "",
	}
	for name := range want {
		files[name] = "# a line\nkey: " + secret + "\n"
	}
	files[".git/config"], files["clusters/prod/.git"] = secret, secret
	got := findSecrets(t, files)
	require.Len(t, got.Findings, len(want))
	for _, found := range got.Findings {
		require.Contains(t, want, found.File)
		require.Equal(t, want[found.File], found.Cluster, found.File)
		require.Equal(t, validate.RuleSecret, found.Rule)
		require.Equal(t, validate.Error, found.Severity)
		require.Equal(t, schema.Position{File: found.File, Line: 2, Column: 6}, found.Position)
		require.NotContains(t, found.Message, secret)
		require.Contains(t, found.Message, "an age identity in the clear: keep it outside")
		require.Contains(t, found.Message, "regarded as leaked")
	}
	require.Len(t, findSecrets(t, files, "clusters/staging", "clusters/staging", "notes").Findings, 2, "under the roots, each once")
	require.Len(t, findSecrets(t, files, "tmp").Findings, 1, "a root that is a file")
}

func TestASecretInADocumentOfOursIsToBeTakenOut(t *testing.T) {
	const head = "apiVersion: ichor.maesh.dev/v1alpha1\nmetadata: {name: hourly}\n"
	const keys = "{accessKeyID: ichor, secretAccessKey: a1b2c3d4e5f6g7h8}"
	for kind, text := range map[string]string{
		"a backup":         head + "kind: TalosEtcdBackup\nspec:\n  destination:\n    s3: " + keys + "\n",
		"a policy":         head + "kind: Policy\nspec:\n  rules: [{name: no-keys, scope: backup, expr: \"true\", message: \"'" + keys + "'\"}]\n",
		"a policy's tests": head + "kind: PolicyTest\nspec:\n  policyRef: {name: rules}\n  cases: [{name: keys, new: [{spec: {destination: {s3: " + keys + "}}}], expect: []}]\n",
	} {
		t.Run(kind, func(t *testing.T) {
			got := findSecrets(t, map[string]string{"c/cluster.yaml": configsCluster, "c/hourly.yaml": text})
			require.Len(t, got.Findings, 1)
			require.Contains(t, got.Findings[0].Message, "put it into a file of its own, seal that with 'ichor secrets seal FILE'")
			require.NotContains(t, got.Findings[0].Message, "delete this one")
		})
	}
}

func TestABundleInTheClearSaysHowItIsSealed(t *testing.T) {
	bundle, err := talos.GenerateBundle("v1.6")
	require.NoError(t, err)
	text, err := bundle.Marshal()
	require.NoError(t, err)
	got := findSecrets(t, map[string]string{"c/cluster.yaml": configsCluster, "c/secrets.age": string(text)})
	require.Len(t, got.Findings, 1)
	require.Equal(t, "c/secrets.age:3:5: error: secret-in-clear: a Talos secrets bundle in the clear: seal it with 'ichor secrets seal c/secrets.age', name the sealed file instead, and delete this one; once pushed it must be regarded as leaked, so replace it as well",
		got.Findings[0].String())
	for _, secret := range bundle.Scalars() {
		require.NotContains(t, fmt.Sprint(got), secret)
	}
}

func TestSymlinksAreNoFilesToSearch(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "key.txt")
	require.NoError(t, os.WriteFile(outside, []byte(newIdentity(t)), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "key.txt")))
	require.NoError(t, os.Symlink(".", filepath.Join(dir, "loop")))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "zero")))
	got := validate.FindSecrets(os.DirFS(dir), []string{".", "loop"}, &schema.Fleet{})
	require.Equal(t, validate.Secrets{}, got)
}

// hugeTree has one file of 1 GiB that counts what is read of it, and one that can't be read.
type hugeTree struct {
	fstest.MapFS
	read *int
}

func (h hugeTree) Open(name string) (fs.File, error) {
	file, err := h.MapFS.Open(name)
	if err != nil || !strings.HasSuffix(name, ".img") {
		return file, err
	}
	if name == "broken.img" {
		return nil, fs.ErrPermission
	}
	return hugeFile{file, h.read}, nil
}

type hugeFile struct {
	fs.File
	read *int
}

func (h hugeFile) Read(into []byte) (int, error) {
	const size = 1 << 30
	if *h.read >= size {
		return 0, io.EOF
	}
	clear(into)
	*h.read += len(into)
	return len(into), nil
}

func TestAHugeFileIsSearchedAtItsBeginningAndThatIsSaid(t *testing.T) {
	read := 0
	tree := hugeTree{fstest.MapFS{"huge.img": {}, "broken.img": {}, "a/key": {Data: []byte(newIdentity(t))}}, &read}
	got := validate.FindSecrets(tree, []string{"."}, &schema.Fleet{})
	require.Equal(t, []string{"huge.img"}, got.Partly)
	require.Equal(t, []string{"broken.img"}, got.Unread)
	require.Len(t, got.Findings, 1)
	require.Less(t, read, 32<<20)
}

// BenchmarkFindSecrets searches 100,000 small files and one of 1 GiB.
func BenchmarkFindSecrets(b *testing.B) {
	dir := b.TempDir()
	for n := range 100_000 {
		folder := filepath.Join(dir, fmt.Sprint(n/1000))
		if n%1000 == 0 {
			require.NoError(b, os.MkdirAll(folder, 0o700))
		}
		require.NoError(b, os.WriteFile(filepath.Join(folder, fmt.Sprint(n)), []byte(configsMachine), 0o600))
	}
	huge, err := os.Create(filepath.Join(dir, "huge.img"))
	require.NoError(b, err)
	require.NoError(b, huge.Truncate(1<<30))
	require.NoError(b, huge.Close())
	b.ReportAllocs()
	defer cputime.Of(b)()
	for b.Loop() {
		got := validate.FindSecrets(os.DirFS(dir), []string{"."}, &schema.Fleet{})
		require.Empty(b, got.Findings)
		require.Len(b, got.Partly, 1)
	}
}
