package statefile_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"fmt"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

func TestMain(m *testing.M) {
	s3gateway.RunIfChild()
	os.Exit(m.Run())
}

// Keys of the S3 server, made to be found should they turn up anywhere.
const (
	canaryAccess = "CANARYACCESSKEY0001"
	canarySecret = "canary/secret+key=0002"
)

func startS3(t *testing.T, change ...func(*s3gateway.Options)) *s3gateway.Child {
	t.Helper()
	opts := s3gateway.Options{Dir: t.TempDir(), Access: canaryAccess, Secret: canarySecret, Buckets: []string{"state"}}
	for _, f := range change {
		f(&opts)
	}
	child, err := s3gateway.StartChild(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(child.Stop)
	return child
}

var prefixes atomic.Int64

// s3ConfigOf gives a prefix of one's own on a server.
func s3ConfigOf(server *s3gateway.Child) statefile.S3Config {
	return statefile.S3Config{
		Endpoint: server.Endpoint, Bucket: "state", Prefix: fmt.Sprintf("fleet/%d", prefixes.Add(1)),
		Credentials: &statefile.S3Credentials{AccessKeyID: canaryAccess, SecretAccessKey: canarySecret},
	}
}

func openS3(t *testing.T, server *s3gateway.Child, change ...func(*statefile.S3Config)) statefile.Store {
	t.Helper()
	config := s3ConfigOf(server)
	for _, f := range change {
		f(&config)
	}
	store, err := statefile.OpenS3(t.Context(), config)
	require.NoError(t, err)
	return store
}

func TestAStoreInMemoryPassesTheSuite(t *testing.T) {
	storetest.Suite(t, func(*testing.T) statefile.Store { return storetest.NewMemory() })
}

func TestAFaultyStoreWithoutFaultsPassesTheSuite(t *testing.T) {
	storetest.Suite(t, func(*testing.T) statefile.Store { return storetest.NewFaulty(storetest.NewMemory(), nil) })
}

func TestAStoreOfTurnsIsAStore(t *testing.T) {
	storetest.Suite(t, func(*testing.T) statefile.Store { return statefile.InTurn(storetest.NewMemory(), 2) })
}

func TestAFolderPassesTheSuite(t *testing.T) {
	storetest.Suite(t, func(t *testing.T) statefile.Store {
		store, err := statefile.OpenFolder(filepath.Join(t.TempDir(), "state"), statefile.FolderOptions{Agent: true})
		require.NoError(t, err)
		return store
	})
}

func TestAnS3BucketPassesTheSuite(t *testing.T) {
	server := startS3(t)
	storetest.Suite(t, func(t *testing.T) statefile.Store { return openS3(t, server) })
}

// requireNoCanary fails when a text holds any of the keys.
func requireNoCanary(t *testing.T, text string) {
	t.Helper()
	for _, canary := range []string{canaryAccess, canarySecret, "canary%2Fsecret"} {
		require.False(t, strings.Contains(text, canary), "a key is in %q", text)
	}
}
