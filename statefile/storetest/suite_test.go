package storetest_test

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// promiseVariable names the promise that the store under the Suite is to break; without it, it breaks none.
const promiseVariable = "ICHOR_TEST_BROKEN_PROMISE"

func TestAStoreThatKeepsEveryPromisePassesTheSuite(t *testing.T) {
	storetest.Suite(t, func(*testing.T) statefile.Store { return breaking(os.Getenv(promiseVariable)) })
}

var failedTest = regexp.MustCompile(`(?m)^ +--- FAIL: TestAStoreThatKeepsEveryPromisePassesTheSuite/(\S+)`)

func TestAStoreThatBreaksAPromiseFailsTheSuite(t *testing.T) {
	guarded := map[string]bool{}
	for _, promise := range brokenPromises {
		t.Run(promise.name, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAStoreThatKeepsEveryPromisePassesTheSuite$")
			command.Env = append(os.Environ(), promiseVariable+"="+promise.name)
			out, err := command.CombinedOutput()
			require.Error(t, err, "the Suite passed")
			failed := map[string]bool{}
			for _, match := range failedTest.FindAllStringSubmatch(string(out), -1) {
				failed[match[1]] = true
			}
			require.NotEmpty(t, promise.fails)
			for _, name := range promise.fails {
				require.Contains(t, failed, spaced.ReplaceAllString(name, "_"), "%s", out)
				guarded[name] = true
			}
		})
	}
	for _, name := range []string{readBack, absent, createOnce, swap, swapAbsent, createRace, lostUpdate, tornRead, unchanged, listing, listMany,
		tooLarge, badKeys, endedCtx} {
		require.True(t, guarded[name], "no broken promise fails the test %q", name)
	}
}

// spaced is what the names of tests are shown without.
var spaced = regexp.MustCompile(` `)
