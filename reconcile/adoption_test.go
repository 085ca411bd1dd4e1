package reconcile

import "testing"

func TestADifferenceIsCountedAndItsFirstLinesAreShown(t *testing.T) {
	for _, c := range []struct{ name, diff, want string }{
		{"nothing differs", "", ""},
		{"one line is another", "--- active\n+++ wanted\n@@ -1 +1 @@\n   sysctls:\n-    a: \"1\"\n+    a: \"2\"\n", ` in 2 lines (- a: "1"; + a: "2")`},
		{"only a few of many lines are shown", "+a\n+b\n+c\n+d\n+e\n", " in 5 lines (+ a; + b; + c; + d; …)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := inLines(c.diff); got != c.want {
				t.Errorf("inLines = %q, want %q", got, c.want)
			}
		})
	}
}
