package revision_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
)

// holdEnv makes this program make a snapshot ready in a spool, say so at a point, and stay there: "SNAPSHOT\nSPOOL\nPOINT".
const holdEnv = "ICHOR_TEST_HOLD"

func holdIfTold() {
	order := strings.Split(os.Getenv(holdEnv), "\n")
	if len(order) != 3 {
		return
	}
	hold := func(point string) {
		if point == order[2] {
			fmt.Println("holding")
			_, _ = io.Copy(io.Discard, os.Stdin) // until its test is gone
			os.Exit(3)
		}
	}
	file, err := os.Open(order[0])
	if err == nil {
		var spool *backup.Spool
		if spool, err = backup.OpenSpool(order[1]); err == nil {
			_, err = revision.Prepare(context.Background(), file, 1, spool, func(own int64) (int64, error) {
				hold("opened")
				return own + revision.Step, nil
			})
		}
	}
	if err == nil {
		hold("ready")
	}
	fmt.Println(err)
	os.Exit(1)
}

// TestTheClearTextOfAKilledProcessIsSweptAtTheNextStart kills a real process while a restore's snapshot lies open on disk.
func TestTheClearTextOfAKilledProcessIsSweptAtTheNextStart(t *testing.T) {
	snapshot := store(t, whole(t))
	for _, point := range []string{"opened", "ready"} {
		t.Run(point, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "spool")
			process := exec.CommandContext(bounded(t), os.Args[0])
			process.Env = append(os.Environ(), holdEnv+"="+strings.Join([]string{snapshot, dir, point}, "\n"))
			stdin, err := process.StdinPipe()
			require.NoError(t, err)
			defer func() { _ = stdin.Close() }()
			out, err := process.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, process.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "holding\n", line)

			clear := clearText(t, dir)
			require.Len(t, clear, 1, "it is there once")
			info, err := os.Stat(dir)
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
			require.NoError(t, process.Process.Kill())
			require.ErrorContains(t, process.Wait(), "killed")
			require.Equal(t, clear, clearText(t, dir), "nobody was left to take it away")

			_, err = backup.OpenSpool(dir)
			require.NoError(t, err)
			require.Empty(t, clearText(t, dir))
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// clearText gives the files under a folder that hold what the snapshot's keys begin with, and wants them and their folders private.
func clearText(t *testing.T, dir string) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(content, []byte("/registry/")) {
			return err
		}
		found = append(found, path)
		for path != dir {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			require.Zero(t, info.Mode().Perm()&0o077, "%s is nobody else's to read", path)
			path = filepath.Dir(path)
		}
		return nil
	}))
	return found
}
