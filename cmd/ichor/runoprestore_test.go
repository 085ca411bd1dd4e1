package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/schema"
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
