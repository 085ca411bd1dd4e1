package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

func TestANameThatWithoutMistypedIsSaidAndOneThatWipeMistypedIsRefused(t *testing.T) {
	declared := map[string]*schema.TalosMachine{}
	for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
		m := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: name}}
		m.Spec.Approved, m.Spec.Endpoint = name != "cp-3", name+".example.com"
		declared[name] = m
	}
	for name, test := range map[string]struct {
		declared                map[string]*schema.TalosMachine
		given                   []string
		without, wipe, underWay []string
		says, notes             string
	}{
		"one that is declared is left out":                {declared: declared, without: []string{"cp-2"}},
		"one that is not approved is left out":            {declared: declared, without: []string{"cp-3"}},
		"one that is given is left out":                   {given: []string{"cp-1=a", "cp-2=b"}, without: []string{"cp-2"}},
		"one that only the recovery under way knows":      {declared: declared, without: []string{"cp-9"}, underWay: []string{"cp-1", "cp-9"}},
		"one that the recovery under way left out before": {declared: declared, without: []string{"cp-2"}, underWay: []string{"cp-1"}},
		"nobody bears the name that is left out":          {declared: declared, without: []string{"cp2"}, notes: "--without cp2 names none of the control planes"},
		"nor is it given":                                 {given: []string{"cp-1=a", "cp-2=b"}, without: []string{"cp-"}, notes: "--without cp- names none of the control planes"},
		"nor is it in the recovery under way":             {declared: declared, without: []string{"cp-22"}, underWay: []string{"cp-1"}, notes: "--without cp-22 names none"},
		"one that is wiped":                               {declared: declared, wipe: []string{"cp-2"}},
		"nobody bears the name that is wiped":             {declared: declared, wipe: []string{"cp2"}, says: "--wipe cp2 names none of the control planes"},
		"one that is wiped and left out":                  {declared: declared, without: []string{"cp-2"}, wipe: []string{"cp-2"}, underWay: []string{"cp-1", "cp-2"}, says: "--wipe cp-2 names none"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &restoreFlags{declared: test.declared, controlPlanes: test.given, without: test.without, wipe: test.wipe}
			require.NoError(t, f.chooseMachines())
			machines := f.machines
			if test.underWay != nil {
				machines = nil
				for _, one := range test.underWay {
					machines = append(machines, recovery.Machine{Name: one})
				}
			}
			notes, err := f.known(machines)
			if test.says != "" {
				require.ErrorContains(t, err, test.says)
				return
			}
			require.NoError(t, err)
			if test.notes == "" {
				require.Empty(t, notes)
				return
			}
			require.Len(t, notes, 1)
			require.Contains(t, notes[0], test.notes)
		})
	}
}

func TestAClustersNameThatWasMistypedMakesNoStateThatNoAgentLooksAt(t *testing.T) {
	owner, err := backup.NewOwner("id of prod", "secret", "encryption")
	require.NoError(t, err)
	stranger, err := backup.NewOwner("id of staging", "other secret", "other encryption")
	require.NoError(t, err)
	store := storetest.NewMemory()
	open := func(name string, of backup.Owner) *statefile.Cluster {
		cluster, err := statefile.OpenCluster(store, statefile.Options{Name: name, Sealer: of.Sealer, WriterID: statefile.NewNonce(), Clock: clock.RealClock{}})
		require.NoError(t, err)
		return cluster
	}
	for name, of := range map[string]backup.Owner{"prod": owner, "staging": stranger} {
		require.NoError(t, open(name, of).Create(t.Context(), &statefile.State{SchemaVersion: statefile.SchemaVersion,
			Cluster: statefile.ClusterIdentity{Name: name, ID: of.ClusterID}}))
	}
	r := func(name string, of backup.Owner, fleeted bool) *recoverer {
		flags := &restoreFlags{name: name, fleeted: fleeted}
		flags.owner = of
		return &recoverer{app: &app{terminal: &terminal{}, clock: clock.RealClock{}}, restoreFlags: flags, store: store, state: open(name, of)}
	}
	require.NoError(t, r("prod", owner, false).stateOfName(t.Context()))
	require.ErrorContains(t, r("prdo", owner, false).stateOfName(t.Context()), "--state has no state of prdo, and that of prod is of this secrets bundle")
	require.NoError(t, r("prdo", owner, true).stateOfName(t.Context()), "a checkout says which clusters there are")
	other, err := backup.NewOwner("id of a third", "third secret", "third encryption")
	require.NoError(t, err)
	require.NoError(t, r("third", other, false).stateOfName(t.Context()), "its state is lost")
}
