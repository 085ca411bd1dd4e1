package main

import (
	"os"
	"regexp"
	"testing"

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
