package recovery

import "time"

// notSeen is for what isn't so, and has been so since no time.
const notSeen = time.Duration(-1)

type callTimes struct{ begun, ended time.Duration }

// passed is for how long this process has been the driver. Unlike the times of the marker nobody sets that clock.
func (r *Run) passed() time.Duration { return r.Clocks.Now().Passed(r.started) }

// callAges are how long ago this process made each of its calls.
func (r *Run) callAges() map[string]callAges {
	now, ages := r.passed(), map[string]callAges{}
	for nonce, at := range r.calls {
		ages[nonce] = callAges{now - at.begun, now - at.ended}
	}
	return ages
}

// watch keeps since when each thing has been so.
func watch(since map[string]time.Duration, now map[string]bool, at time.Duration) {
	for name := range since {
		if !now[name] {
			delete(since, name)
		}
	}
	for name, is := range now {
		if _, known := since[name]; is && !known {
			since[name] = at
		}
	}
}

func ages(since map[string]time.Duration, now time.Duration) map[string]time.Duration {
	all := map[string]time.Duration{}
	for name, at := range since {
		all[name] = now - at
	}
	return all
}
