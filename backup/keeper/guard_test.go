package keeper

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

func TestNothingOlderThanTheLastBootstrapOrRestoreIsPrunedUnproved(t *testing.T) {
	bootstrapped, restored := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		state statefile.State
		want  time.Time
	}{
		"neither":                 {statefile.State{}, time.Time{}},
		"a bootstrap under way":   {statefile.State{Bootstrap: &statefile.BootstrapRecord{At: bootstrapped}}, bootstrapped},
		"a bootstrap":             {statefile.State{Bootstrap: &statefile.BootstrapRecord{At: bootstrapped.Add(-time.Hour), Done: bootstrapped}}, bootstrapped},
		"a restore after it":      {statefile.State{Bootstrap: &statefile.BootstrapRecord{Done: bootstrapped}, LastRestore: &statefile.RestoreRecord{At: restored}}, restored},
		"a restore of an adopted": {statefile.State{LastRestore: &statefile.RestoreRecord{At: restored}}, restored},
	} {
		require.Equal(t, test.want, guard(&test.state).Past, name)
	}
}
