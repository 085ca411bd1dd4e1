package fact

import "testing"

func TestAFactThatNobodyKnowsIsUnknown(t *testing.T) {
	var zero Fact
	for fact, want := range map[Fact][2]string{Yes: {"yes", "present"}, No: {"no", "absent"}, zero: {"unknown", "unknown"}, 7: {"unknown", "unknown"}} {
		if got := [2]string{fact.String(), fact.Presence()}; got != want {
			t.Errorf("%d is %q, not %q", int(fact), got, want)
		}
	}
}
