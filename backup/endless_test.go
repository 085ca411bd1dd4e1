package backup

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// endless is a control plane whose snapshot never ends.
type endless struct{ sent int64 }

func (e *endless) Name() string { return "cp-1" }
func (e *endless) EtcdStatus(context.Context) (EtcdStatus, error) {
	return EtcdStatus{MemberID: 1, Leader: 2}, nil
}
func (e *endless) EtcdSnapshot(context.Context) (io.ReadCloser, error) { return io.NopCloser(e), nil }
func (e *endless) Read(p []byte) (int, error) {
	e.sent += int64(len(p))
	return len(p), nil
}

func TestAStreamWithoutEndDoesNotFillTheDisk(t *testing.T) {
	dir := t.TempDir()
	spool, err := OpenSpool(dir)
	require.NoError(t, err)
	node := &endless{}
	spool.free = func(string) (int64, error) { return 1<<30 - 4*node.sent, nil } // it has 1 GiB, and fills fast
	passphrase, err := NewPassphrase("id", "secret")
	require.NoError(t, err)
	_, err = Take(t.Context(), []Node{node}, spool, passphrase, clock.RealClock{})
	require.ErrorContains(t, err, "512 are kept for what else is there")
	require.Less(t, node.sent, int64(256<<20))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
