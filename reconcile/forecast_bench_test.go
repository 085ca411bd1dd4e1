package reconcile

import (
	"fmt"
	"testing"

	"ichor.maesh.dev/internal/cputime"
)

// BenchmarkForecast is what ichor plan does for one cluster after both sides were rendered: the cluster is brought up in thought, and a change to
// each machine is followed to its end.
func BenchmarkForecast(b *testing.B) {
	for _, change := range []struct {
		name    string
		reboots bool
	}{{"live", false}, {"reboot", true}} {
		for _, machines := range []int{100, 300, 1000} {
			b.Run(fmt.Sprintf("%s change of %d machines", change.name, machines), func(b *testing.B) {
				var f Forecast
				defer cputime.Of(b)()
				for b.Loop() {
					f = Foretell(changedCluster(machines, change.reboots))
				}
				if f.Unfinished {
					b.Fatal("the forecast did not come to its end")
				}
				b.ReportMetric(float64(len(f.Steps)), "steps")
				b.ReportMetric(float64(f.looks)/float64(len(f.Steps)), "looks/step")
			})
		}
	}
}
