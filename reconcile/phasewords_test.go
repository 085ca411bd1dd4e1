package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThePhaseOfARolloutIsSaidSoThatASentenceCanHoldIt(t *testing.T) {
	for phase, words := range map[string]string{
		phaseTry: "being tried", phaseTried: "tried", phaseConfirm: "being made to stay", phaseSettle: "settling",
		phaseStage: "being staged", phaseAgain: "to be sent again", "of another version": "of another version",
	} {
		require.Equal(t, words, phaseWords(phase))
	}
}
