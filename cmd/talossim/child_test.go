package main

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// child runs this program as a process of its own until the test ends, and wants it to end in order then.
func child(t *testing.T, args string) *buffer {
	t.Helper()

	self, err := os.Executable()
	require.NoError(t, err)

	out := &buffer{}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "TALOSSIM_ARGS="+args)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait(), "%s", out)
	})

	return out
}
