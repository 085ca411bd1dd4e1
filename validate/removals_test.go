package validate

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestAPlaceUnderTheCapIsFreedByARemovalWhoseSignatureIsThere(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	const three = "cluster prod\nmachine prod/cp-1 controlplane approved\nmachine prod/cp-2 controlplane approved\nmachine prod/cp-3 controlplane approved\nmachine prod/cp-4 controlplane approved\n"
	const removal = "remove prod/cp-1\n"
	const approval = "machine prod/cp-5 controlplane approved\n"
	signature := removalFile(t) + ".sig"
	for _, c := range []struct {
		name, old, now string
		signed         bool // the signature is there
		checked        bool // and was checked
		severity       Severity
		want           string
	}{
		{name: "checked, it frees a place", old: three, now: three + removal + approval, signed: true, checked: true},
		{name: "unchecked, that is a warning", old: three, now: three + removal + approval, signed: true, severity: Warning,
			want: "cp-5 may be approved only if remove-cp-1 takes a machine away, and nobody checked whether its signer may: give --allowed-signers FILE"},
		{name: "without one it takes nothing away", old: three, now: three + removal + approval, severity: Error,
			want: "; remove-cp-1 takes nothing away as it stands, because its signature isn't there: sign it, as with 'ichor op sign'"},
		{name: "without one, though others were checked", old: three, now: three + removal + approval, checked: true, severity: Error, want: "because its signature isn't there"},
		{name: "merged before, it is no different", old: three + removal, now: three + removal + approval, signed: true, severity: Warning, want: "nobody checked whether its signer may"},
		{name: "merged before and without one", old: three + removal, now: three + removal + approval, severity: Error, want: "because its signature isn't there"},
		{name: "a removal alone approves nothing", old: three, now: three + removal},
		{name: "what is removed is no newcomer", old: three + removal + approval, now: three + removal + approval},
		{name: "an approval that fits rests on nothing", old: "cluster prod\nmachine prod/cp-1 controlplane approved\n" + removal,
			now: "cluster prod\nmachine prod/cp-1 controlplane approved\n" + removal + approval},
		{name: "what Check refuses already is not said again", old: three, now: three + removal + approval + "machine prod/cp-6 controlplane approved\n", signed: true},
		{name: "without a base nothing is new", now: three + removal + approval},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := fleetOf(t, c.now)
			if c.signed {
				now.Tree.(fstest.MapFS)[signature] = &fstest.MapFile{Data: []byte("a signature")}
			}
			old := fleetOf(t, c.old)
			if c.old == "" {
				old = nil
			}
			found := engine.CheckRemovals(old, now, nil, c.checked)
			if c.want == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, c.severity, found[0].Severity)
			require.Equal(t, RuleApprovalCap, found[0].Rule)
			require.Equal(t, "cp-5", found[0].Name)
			require.Contains(t, found[0].Message, c.want)
		})
	}
}

// removalFile is where a `remove` stands that fleetOf makes.
func removalFile(t *testing.T) string {
	t.Helper()
	return fleetOf(t, "cluster prod\nremove prod/cp-1").Operations[0].Source.File
}
