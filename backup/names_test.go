package backup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNamesSortByTimeAndReadBack(t *testing.T) {
	at := time.Date(2026, 11, 29, 10, 0, 5, 999, time.FixedZone("", 3600))
	name := ObjectName(at)
	require.Equal(t, "etcd-20261129T090005Z.snapshot.age", name)
	back, ok := ParseName(name)
	require.True(t, ok)
	require.Equal(t, at.UTC().Truncate(time.Second), back)
	require.Less(t, name, ObjectName(at.Add(time.Second)))
}

func TestOtherNamesAreNoSnapshots(t *testing.T) {
	for _, name := range []string{
		"", "etcd-index.json", "etcd-20261129T090005Z.snapshot", "etcd-20261129T090005Z.snapshot.age.part", "etcd-20261329T090005Z.snapshot.age",
		"etcd-2026-11-29T09:00:05Z.snapshot.age", "x/etcd-20261129T090005Z.snapshot.age", "Etcd-20261129T090005Z.snapshot.age",
		"etcd-restore.0123456789ab.snapshot.age", "etcd-20261129T090005.5Z.snapshot.age", "etcd-20261129T240005Z.snapshot.age",
	} {
		_, ok := ParseName(name)
		require.False(t, ok, name)
	}
}
