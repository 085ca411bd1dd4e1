package s3gateway_test

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/s3gateway"
)

func TestMain(m *testing.M) {
	s3gateway.RunIfChild()
	os.Exit(m.Run())
}

func TestAChildServesUntilItIsStopped(t *testing.T) {
	child, err := s3gateway.StartChild(t.Context(), s3gateway.Options{
		Dir: t.TempDir(), Access: "access", Secret: "secretsecret", Buckets: []string{"state"},
	})
	require.NoError(t, err)
	response, err := http.Get(child.Endpoint + "/state/")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusForbidden, response.StatusCode, "an anonymous request is refused")

	child.Stop()
	_, err = http.Get(child.Endpoint + s3gateway.HealthPath)
	require.Error(t, err)

	again, err := child.Restart(t.Context())
	require.NoError(t, err)
	t.Cleanup(again.Stop)
	require.Equal(t, child.Endpoint, again.Endpoint)
}

func TestAChildThatCanNotStartSaysWhy(t *testing.T) {
	_, err := s3gateway.StartChild(t.Context(), s3gateway.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	require.ErrorContains(t, err, "secret")
}
