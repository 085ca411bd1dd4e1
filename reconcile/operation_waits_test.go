package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

func TestAnOperationThatWaitsWritesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		wait func(d *drive)
		says string
	}{
		"for its machine, which is paused": {func(d *drive) {
			d.cluster.Machine("w-1").Metadata.Annotations = map[string]string{schema.AnnotationPaused: "someone works on it"}
		}, "someone works on it"},
		"for a clock that was set back": {func(d *drive) { d.state.Latest = d.model.now.Add(3*time.Hour + 10*time.Minute) }, "more than 3h behind"},
		"for one that is paused": {func(d *drive) {
			d.operations.s.doOperation("file", []string{"first", "reboot", "w-2"}, map[string]string{"by": "alice"})
			d.operations.s.forge("first", map[string]string{"phase": string(statefile.OperationPaused)})
			d.state.Lock = nil
		}, "'ichor run-op cancel first"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDrive(newModel(3, 2), 3)
			for range 200 {
				_, err := d.pass()
				require.NoError(t, err)
				d.model.tick(2 * time.Second)
			}
			s := &story{t: t, drive: d}
			s.doOperation("signer", []string{"alice"}, map[string]string{"namespaces": "ichor-operation@prod"})
			_, err := d.pass()
			require.NoError(t, err)
			s.doOperation("file", []string{"one", "reboot", "w-1"}, map[string]string{"by": "alice"})
			c.wait(d)
			for range 5 {
				_, err := d.pass()
				require.NoError(t, err)
				d.model.tick(2 * time.Second)
			}
			if op := operationNamed(d.state, "one"); op != nil {
				require.Equal(t, statefile.OperationPending, op.Phase, op.Message)
				require.Contains(t, op.Message, c.says)
			} else {
				require.Contains(t, d.state.Ready.Message, c.says)
			}
			before := d.state
			for range 30 {
				_, err := d.pass()
				require.NoError(t, err)
				d.model.tick(2 * time.Second)
				require.True(t, sameState(before, d.state), "a pass that changes nothing writes nothing")
			}
		})
	}
}
