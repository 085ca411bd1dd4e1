package harness

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAServerRunsUntilItIsKilledAndItsLogIsKept(t *testing.T) {
	dir := t.TempDir()
	p, err := launch(os.Args[0], dir, "kube-apiserver", "--one", "--two")
	require.NoError(t, err)
	p.endWith(t)
	Eventually(t, "it says that it was started", func() error {
		if !strings.Contains(p.tail(), "started as kube-apiserver --one --two") {
			return errors.New(p.tail())
		}
		return nil
	})
	require.False(t, p.ended())
	p.kill()
	require.True(t, p.ended())
	p.kill() // it has ended already
	require.NotContains(t, p.tail(), "\nended", "it was killed, and had no time to say so")

	again, err := launch(os.Args[0], dir, "kube-apiserver")
	require.NoError(t, err)
	again.endWith(t)
	again.kill()
	require.Contains(t, again.tail(), "--one --two", "a log goes on with the next process")
}

func TestAServerEndsWithWhoStartedIt(t *testing.T) {
	p, err := launch(os.Args[0], t.TempDir(), "kube-apiserver")
	require.NoError(t, err)
	p.endWith(t)
	require.NoError(t, p.stdin.Close()) // as the end of this process would
	<-p.done
	require.True(t, strings.HasSuffix(p.tail(), "\nended"), p.tail())
}

func TestAServerThatCannotBeStartedSaysSo(t *testing.T) {
	_, err := launch(filepath.Join(t.TempDir(), "none"), t.TempDir(), "kube-apiserver")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = launch(os.Args[0], filepath.Join(t.TempDir(), "none"), "kube-apiserver")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestTheEndOfALogIsBounded(t *testing.T) {
	p, err := launch(os.Args[0], t.TempDir(), "wordy")
	require.NoError(t, err)
	p.endWith(t)
	<-p.done
	lines := strings.Split(p.tail(), "\n")
	require.Len(t, lines, tailLines)
	for _, line := range lines {
		require.Len(t, line, tailWidth)
	}
	require.True(t, strings.HasPrefix(lines[tailLines-1], "44 "), lines[tailLines-1])
	require.Contains(t, (&process{log: filepath.Join(t.TempDir(), "none")}).tail(), "no such file")
}

func TestAServerIsStartedAgainWhereItHasEnded(t *testing.T) {
	dir, over := t.TempDir(), make(chan struct{})
	launched := func(name string) *process {
		t.Helper()
		p, err := launch(os.Args[0], dir, name)
		require.NoError(t, err)
		p.endWith(t)
		return p
	}
	running, ended := launched("kube-scheduler"), launched("brief")
	<-ended.done
	require.Nil(t, relaunch(over, running, dir, "kube-scheduler", nil), "it runs")
	next := relaunch(over, ended, dir, "kube-scheduler", nil)
	require.NotNil(t, next)
	next.endWith(t)
	require.False(t, next.ended())
	require.Nil(t, relaunch(over, ended, filepath.Join(dir, "none"), "kube-scheduler", nil), "it can't be started now")
	close(over)
	require.Nil(t, relaunch(over, ended, dir, "kube-scheduler", nil), "the test is over")
}

func TestTheServersAreThoseOfTheEnvironment(t *testing.T) {
	t.Setenv(serversVariable, os.Args[0])
	require.Equal(t, os.Args[0], Servers(t))
	p := start(t, t.TempDir(), "brief")
	<-p.done
	require.Equal(t, "started as brief", p.tail())
}
