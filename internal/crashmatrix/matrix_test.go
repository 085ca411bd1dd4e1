package crashmatrix

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASampleIsTheSameWithTheSameSeedAndHoldsWhatItMust(t *testing.T) {
	t.Setenv(envFull, "")
	first := sample(100, 10, 7, []int{99, 0})
	require.Equal(t, first, sample(100, 10, 7, []int{99, 0}))
	require.NotEqual(t, first, sample(100, 10, 8, []int{99, 0}))
	require.Subset(t, first, []int{0, 99})
	require.LessOrEqual(t, len(first), 12)
	require.Equal(t, []int{0, 1, 2}, sample(3, 10, 7, nil))
	t.Setenv(envFull, "1")
	require.Len(t, sample(100, 10, 7, nil), 100)
}

func TestAPointIsDiedAtOnceAndOneInSoManyOfThemInAnOrdinaryRun(t *testing.T) {
	deaths := func(t *testing.T, met map[string]bool) (died int, must bool) {
		dies := Of(t, "reboot", Modelled).Once(met, 4, 7, "before must")
		for range 2 {
			for n := range 400 {
				if dies(fmt.Sprint("after point ", n)) {
					died++
				}
			}
			must = dies("before must happen") || must
		}
		return died, must
	}
	t.Setenv(envFile, "")
	t.Setenv(envFull, "")
	died, must := deaths(t, map[string]bool{})
	require.True(t, must)
	require.InDelta(t, 100, died, 40)
	again, _ := deaths(t, map[string]bool{})
	require.Equal(t, died, again)
	t.Setenv(envFull, "1")
	died, must = deaths(t, map[string]bool{"after point 9": true})
	require.True(t, must)
	require.Equal(t, 399, died)
}

func TestTheRowOfAProcedureIsWrittenWithWhatBecameOfIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "matrix.jsonl")
	t.Setenv(envFile, file)
	t.Setenv(envFull, "")
	t.Run("a reboot", func(t *testing.T) {
		c := Of(t, "reboot", Modelled)
		c.Each(t, 40, 3, 5, nil, func(*testing.T, int) {})
		c.Random(5)
		c.Killed(0, 2)
	})
	line, err := os.ReadFile(file)
	require.NoError(t, err)
	require.JSONEq(t, `{"procedure":"reboot","world":"modelled machines","points":40,"killed":3,"runs":5,"failures":0,"seed":5}`, strings.TrimSpace(string(line)))
}
