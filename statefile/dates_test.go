package statefile

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHowFarTheClockIsFromTheStoresIsReadOffEachAnswer(t *testing.T) {
	var offset time.Duration
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(offset).UTC().Format(http.TimeFormat))
	}))
	defer server.Close()
	d := &dates{through: http.DefaultTransport}
	ask := func() time.Duration {
		response, err := (&http.Client{Transport: d}).Get(server.URL)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return time.Duration(d.skew.Load()).Round(time.Minute)
	}
	require.Zero(t, ask())
	offset = time.Hour
	require.Equal(t, -time.Hour, ask(), "this machine is behind")
	offset = -2 * time.Hour
	require.Equal(t, 2*time.Hour, ask(), "this machine is ahead")
	offset = 0
	require.Zero(t, ask())
	server.Close()
	_, err := (&http.Client{Transport: d}).Get(server.URL)
	require.Error(t, err)
	require.Zero(t, d.skew.Load(), "no answer says nothing")
}

func TestADateToTheSecondIsNoSkew(t *testing.T) {
	noon := time.Date(2026, 11, 29, 12, 0, 0, 900_000_000, time.UTC)
	require.Zero(t, apart(noon, noon.Add(50*time.Millisecond), noon.Truncate(time.Second)))
	require.Zero(t, apart(noon, noon.Add(20*time.Second), noon.Add(10*time.Second).Truncate(time.Second)), "an answer that took long")
	require.Equal(t, 8900*time.Millisecond, apart(noon, noon, noon.Add(-8*time.Second).Truncate(time.Second)))
}
