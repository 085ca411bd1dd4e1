package main

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/operation"
)

func TestEveryReasonOfARefusalHasItsWayOut(t *testing.T) {
	source, err := os.ReadFile("../../operation/refusal.go")
	require.NoError(t, err)
	reasons := regexp.MustCompile(`Reason = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(reasons), 20)
	for _, reason := range reasons {
		require.NotEmpty(t, wayOut(operation.Reason(reason[1])), reason[1])
	}
}

func TestTheTimeThatAnOperationHasIsSaidInWords(t *testing.T) {
	for left, want := range map[time.Duration]string{
		-time.Second: "over", 0: "over", time.Second: "in less than a minute", 59 * time.Second: "in less than a minute", time.Minute: "in 1m",
		89 * time.Second: "in 1m", 10 * time.Minute: "in 10m", time.Hour: "in 1h", 70 * time.Minute: "in 1h10m", 24 * time.Hour: "in 24h",
	} {
		require.Equal(t, want, untilThen(left), left)
	}
}
