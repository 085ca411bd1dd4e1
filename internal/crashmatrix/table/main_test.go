package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheRowsBecomeATableAndWhatDidNotEndRightIsAnError(t *testing.T) {
	for name, test := range map[string]struct{ rows, problem string }{
		"all ended right": {`{"procedure":"reboot","world":"modelled machines","points":40,"killed":40,"runs":48,"failures":0,"seed":5}
{"procedure":"bring-up","world":"modelled machines","points":10,"killed":10,"runs":10,"failures":0,"seed":0}
`, ""},
		"one did not":          {`{"procedure":"reboot","world":"w","points":4,"killed":4,"runs":4,"failures":2,"seed":5}`, "2 runs did not end right"},
		"a point was left out": {`{"procedure":"reboot","world":"w","points":4,"killed":3,"runs":3,"failures":0,"seed":5}`, "reboot was killed at 3 of its 4 points only"},
		"there is no row":      {"", "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "crash.jsonl")
			require.NoError(t, os.WriteFile(file, []byte(test.rows), 0o600))
			var out strings.Builder
			err := run(file, &out)
			if test.problem != "" {
				require.ErrorContains(t, err, test.problem)
				return
			}
			require.NoError(t, err)
			require.Equal(t, `| procedure | on | points found | killed at | runs | failures | seed |
|---|---|---:|---:|---:|---:|---:|
| bring-up | modelled machines | 10 | 10 | 10 | 0 | - |
| reboot | modelled machines | 40 | 40 | 48 | 0 | 5 |
| **all** | | **50** | **50** | **58** | **0** | |
`, out.String())
		})
	}
}
