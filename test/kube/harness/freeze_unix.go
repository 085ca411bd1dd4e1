//go:build unix

package harness

import (
	"syscall"

	"github.com/stretchr/testify/require"
)

// Freeze stops the process where it is: connections are still taken, and nothing answers on them.
func (s *APIServer) Freeze() { require.NoError(s.t, s.process.cmd.Process.Signal(syscall.SIGSTOP)) }

// Thaw lets a frozen process go on.
func (s *APIServer) Thaw() { require.NoError(s.t, s.process.cmd.Process.Signal(syscall.SIGCONT)) }
