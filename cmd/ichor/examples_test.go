package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// Each example is clean as it stands, warnings included, and a plan can be made of it.
func TestEachExampleValidatesAndPlans(t *testing.T) {
	for _, example := range []string{"single-node", "highly-available", "two-clusters"} {
		dir := checkoutOf(t, filepath.Join("..", "..", "examples", example))
		for _, command := range [][]string{{"validate", "--strict"}, {"plan"}} {
			var out, errs bytes.Buffer
			a := &app{terminal: &terminal{in: strings.NewReader(""), out: &out, err: &errs}, clock: clock.RealClock{}, getenv: func(string) string { return "" }}
			code := a.execute(t.Context(), append(command, "--base", "main", dir))
			require.Zero(t, code, "%s of %s: %s%s", command[0], example, out.String(), errs.String())
		}
	}
}
