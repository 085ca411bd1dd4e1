package statefile

import (
	"net/http"
	"sync/atomic"
	"time"
)

// dates passes requests through, and compares this machine's clock with the Date of each answer.
type dates struct {
	through http.RoundTripper
	skew    atomic.Int64 // nanoseconds that this machine's clock is ahead
}

func (d *dates) RoundTrip(request *http.Request) (*http.Response, error) {
	began := time.Now()
	response, err := d.through.RoundTrip(request)
	if err != nil {
		return response, err
	}
	if date, parseErr := http.ParseTime(response.Header.Get("Date")); parseErr == nil {
		d.skew.Store(int64(apart(began, time.Now(), date)))
	}
	return response, err
}

// apart is how far a clock that showed began and ended around an answer is ahead of the one that stamped it with date, to the second.
// Zero where the date lies within the exchange.
func apart(began, ended, date time.Time) time.Duration {
	began, ended = began.Round(0), ended.Round(0)
	switch {
	case date.After(ended):
		return ended.Sub(date)
	case date.Add(time.Second).Before(began):
		return began.Sub(date)
	}
	return 0
}
