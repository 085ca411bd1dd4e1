package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// log writes events in short: "start p", "run p T", "pass p T 1.5", "pass p".
func log(lines ...string) string {
	var out strings.Builder
	for _, line := range lines {
		f := append(strings.Fields(line), "", "", "")
		elapsed := f[3]
		if elapsed == "" {
			elapsed = "0"
		}
		fmt.Fprintf(&out, `{"Time":"2026-11-30T12:00:00Z","Action":%q,"Package":%q,"Test":%q,"Elapsed":%s}`+"\n", f[0], f[1], f[2], elapsed)
	}
	return out.String()
}

func TestARunIsJudgedByTheLastEndOfEachTestAndByWhetherAllOfThemHadOne(t *testing.T) {
	for name, test := range map[string]struct {
		log                      string
		unstable, failed, broken []string
	}{
		"all pass": {log: log("start p", "run p A", "pass p A 1", "run p A/x", "skip p A/x", "pass p", "start q", "skip q")},
		"one failed at first and passed alone": {
			log:      log("start p", "run p A", "run p A/x", "fail p A/x", "fail p A", "run p B", "pass p B", "fail p", "start p", "run p A", "run p A/x", "pass p A/x", "pass p A", "pass p"),
			unstable: []string{"p.A"}},
		"one failed twice": {
			log:    log("start p", "run p A", "fail p A", "fail p", "start p", "run p A", "fail p A", "fail p"),
			failed: []string{"p.A"}},
		"a process died in the middle, and its test passes alone": {
			log:    log("start p", "run p A", "run p B", "pause p B", "fail p", "start p", "run p A", "pass p A", "pass p"),
			broken: []string{"p ended while A, B had not: what came after that never ran"}},
		"a package failed without a test that did": {
			log:    log("start p", "run p A", "pass p A", "fail p", "start p", "pass p"),
			broken: []string{"p failed, and none of its tests did"}},
		"a package does not build": {
			log:    log("build-output", "start p", "fail p"),
			broken: []string{"p failed, and none of its tests did"}},
		"the run was broken off": {
			log:    log("start p", "run p A", "pass p A"),
			broken: []string{"p has no result: it was broken off"}},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := judge(strings.NewReader(test.log))
			require.NoError(t, err)
			require.Equal(t, test.unstable, v.unstable)
			require.Equal(t, test.failed, v.failed)
			require.Equal(t, test.broken, v.broken)
			require.Equal(t, test.failed == nil && test.broken == nil, v.good())
		})
	}
}

func TestWhatPassedOnlyAloneIsSaidAndTheSlowestTestsAreListed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "test.json")
	require.NoError(t, os.WriteFile(file, []byte(log("start p", "run p A", "fail p A 2", "run p B", "pass p B 61.5", "fail p", "start p", "run p A", "pass p A 1", "pass p")), 0o600))
	var out, failure strings.Builder
	require.Zero(t, run(file, &out, &failure))
	require.Empty(t, failure.String())
	require.Contains(t, out.String(), "1 TESTS FAILED AT FIRST AND PASSED WHEN RUN ALONE: p.A")
	require.Contains(t, out.String(), "2 tests; the slowest:\n      61.5 s  p.B\n       2.0 s  p.A\n")
}

func TestALogThatSaysNothingIsNoSuccess(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "no JSON": "ok p 1.0s\n", "a test failed": log("start p", "run p A", "fail p A", "fail p")} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "test.json")
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			var out, failure strings.Builder
			require.Equal(t, 1, run(file, &out, &failure))
			require.NotEmpty(t, out.String()+failure.String())
		})
	}
	var failure strings.Builder
	require.Equal(t, 1, run(filepath.Join(t.TempDir(), "missing"), &failure, &failure))
}
