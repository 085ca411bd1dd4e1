package etcdfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/internal/etcdfile"
)

func TestMain(m *testing.M) {
	drill.RunIfChild()
	os.Exit(m.Run())
}

func TestEtcdRestoresWhatWasMadeUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	size, err := etcdfile.Write(path, etcdfile.Options{Keys: 3000, ValueSize: 500})
	require.NoError(t, err)
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	whole, err := backup.CheckTrailer(file)
	require.NoError(t, err)
	require.Equal(t, size, whole)
	_, err = file.Seek(0, 0)
	require.NoError(t, err)
	spool, err := backup.OpenSpool(t.TempDir())
	require.NoError(t, err)
	counts, err := drill.Run(t.Context(), file, size, spool)
	require.NoError(t, err)
	require.Equal(t, drill.Counts{Revision: 3001, Keys: 3000, Resources: map[string]int64{"pods": 3000}}, counts)
}
