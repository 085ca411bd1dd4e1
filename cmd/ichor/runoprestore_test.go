package main

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

func TestTheLossOfLocalVolumesIsSaidToBeAcceptedOnlyOnceItWasAsked(t *testing.T) {
	for name, supposed := range map[string]bool{"given by a flag": false, "supposed, and asked for below": true} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			spec := schema.OperationSpec{ClusterRef: schema.ClusterRef{Name: "prod"}, Kind: schema.OperationEtcdRestore,
				EtcdRestore: &schema.RestoreOperation{LocalDataLoss: localLoss}}
			r := &runOpRun{app: &app{terminal: &terminal{out: &out, err: &out}, clock: clock.RealClock{}}, f: &runOpFlags{}, desk: &desk{}, supposed: supposed,
				draft: &runop.Draft{Operation: &schema.TalosOperation{Metadata: schema.ObjectMeta{Name: "restore-1"}, Spec: spec}}}
			require.NoError(t, r.showPlan())
			require.Contains(t, out.String(), "restore-1 puts the snapshot ")
			if supposed {
				require.NotContains(t, out.String(), "accepted")
			} else {
				require.Contains(t, out.String(), "that local volumes on them are lost is accepted")
			}
			require.Equal(t, localLoss, spec.EtcdRestore.LocalDataLoss, "what is signed stays as it is")
		})
	}
}

const localLoss = "accepted"

// fickleMachines tell at each look what they tell at that one, and the last of it at all later ones.
type fickleMachines struct {
	mu    sync.Mutex
	tells map[string][]talos.Observation
	asked map[string]int
}

func (m *fickleMachines) Observe(_ context.Context, target talos.Target) talos.Observation {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[target.Name]++
	told := m.tells[target.Name]
	if len(told) > 1 {
		m.tells[target.Name] = told[1:]
	}
	return told[0]
}

func TestOneSlowAnswerDoesNotDecideWhatARestoreShows(t *testing.T) {
	whole := talos.Observation{Mode: talos.ModeConfigured, BootID: "whole"}
	partly := talos.Observation{Mode: talos.ModeConfigured, BootID: "partly", Problem: "reading its etcd: no answer in time"}
	none := talos.Observation{Problem: "no answer in time"}
	for name, test := range map[string]struct {
		tells []talos.Observation
		asked int
		want  talos.Observation
	}{
		"it tells all at once":                   {[]talos.Observation{whole}, 1, whole},
		"it answers the second time":             {[]talos.Observation{none, whole}, 2, whole},
		"it tells the rest the second time":      {[]talos.Observation{partly, whole}, 2, whole},
		"it never answers":                       {[]talos.Observation{none}, 2, none},
		"it told a part, and then nothing":       {[]talos.Observation{partly, none}, 2, partly},
		"it told nothing, and a part of it then": {[]talos.Observation{none, partly}, 2, partly},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := &runOpRun{app: &app{terminal: &terminal{out: &out, err: &out}, clock: clock.RealClock{}}}
			machines := &fickleMachines{tells: map[string][]talos.Observation{"cp-1": {whole}, "cp-2": test.tells}, asked: map[string]int{}}
			got := r.lookTwice(t.Context(), machines, []talos.Target{{Name: "cp-1"}, {Name: "cp-2"}})
			require.Equal(t, map[string]talos.Observation{"cp-1": whole, "cp-2": test.want}, got)
			require.Equal(t, map[string]int{"cp-1": 1, "cp-2": test.asked}, machines.asked)
			if test.asked == 2 {
				require.Equal(t, "cp-2 didn't tell all: asked once more\n", out.String())
			} else {
				require.Empty(t, out.String())
			}
		})
	}
}

func TestARecoveryAsksTheControlPlanesOfTheCheckoutThatItDoesNotRecoverOn(t *testing.T) {
	declared := map[string]*schema.TalosMachine{}
	for _, name := range []string{"cp-1", "cp-2", "cp-3", "cp-4"} {
		m := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: name}}
		m.Spec.Approved, m.Spec.Endpoint = name != "cp-4", name+".example.com"
		declared[name] = m
	}
	for name, test := range map[string]struct {
		named, without []string
		want           []string
	}{
		"one that is not approved": {nil, nil, []string{"cp-4"}},
		"one that is left out":     {nil, []string{"cp-2"}, []string{"cp-2", "cp-4"}},
		"those that are not named": {[]string{"cp-4", "new=10.0.0.9"}, nil, []string{"cp-1", "cp-2", "cp-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &restoreFlags{declared: declared, controlPlanes: test.named, without: test.without}
			require.NoError(t, f.chooseMachines())
			var got []string
			for _, one := range f.others() {
				got = append(got, one.Name)
				require.Equal(t, one.Name+".example.com", one.Endpoint)
			}
			require.Equal(t, test.want, got)
		})
	}
}
