package gitsource

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/gittest"
)

// gitIn runs git for a user who has checked out a repository.
func gitIn(t *testing.T, folder string, arguments ...string) {
	t.Helper()
	command := exec.Command("git", append([]string{"-C", folder, "-c", "user.name=Ada", "-c", "user.email=ada@example.com"}, arguments...)...)
	command.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull)
	output, err := command.CombinedOutput()
	require.NoError(t, err, string(output))
}

func TestACheckoutKnowsWhereItsBranchLeftTheBase(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"a": "1"})
	fork := r.Commit(gittest.Files{"a": "2", "d/b": "1"})
	tip := r.Commit(gittest.Files{"a": "3"})
	topic := r.Write(gittest.Commit{Branch: "topic", Parents: []string{fork}, Files: gittest.Files{"c": "1"}})
	folder := filepath.Join(t.TempDir(), "work")
	gitIn(t, ".", "clone", "--quiet", "--branch", "topic", r.Dir, folder)

	for name, dir := range map[string]string{"at its top": folder, "in a folder of it": filepath.Join(folder, "d"), "in another worktree": ""} {
		t.Run(name, func(t *testing.T) {
			top := folder
			if dir == "" {
				top = filepath.Join(t.TempDir(), "other")
				gitIn(t, folder, "worktree", "add", "--quiet", "--detach", top, "origin/topic")
				dir = filepath.Join(top, "d")
			}
			c, err := OpenCheckout(dir)
			require.NoError(t, err)
			require.Equal(t, top, c.Dir)
			head, err := c.Revision("HEAD")
			require.NoError(t, err)
			require.Equal(t, topic, head.Commit)
			base, err := c.Revision("origin/main")
			require.NoError(t, err)
			require.Equal(t, tip, base.Commit)
			for name, commit := range map[string]string{"origin/main~1": fork, tip: tip, tip[:10]: tip} {
				revision, err := c.Revision(name)
				require.NoError(t, err, name)
				require.Equal(t, commit, revision.Commit, name)
			}
			parted, err := c.Parted(head, base)
			require.NoError(t, err)
			require.Equal(t, fork, parted.Commit)
			same, err := c.Parted(base, base)
			require.NoError(t, err)
			require.Equal(t, tip, same.Commit)
			data, err := fs.ReadFile(base.Tree, "a")
			require.NoError(t, err)
			require.Equal(t, "3", string(data))
		})
	}
}

func TestWhatACheckoutDoesNotHaveIsSaid(t *testing.T) {
	_, err := OpenCheckout(t.TempDir())
	require.ErrorIs(t, err, ErrNoCheckout)

	r := gittest.New(t)
	first := r.Commit(gittest.Files{"a": "1"})
	r.Commit(gittest.Files{"a": "2"})
	r.Write(gittest.Commit{Branch: "topic", Parents: []string{first}, Files: gittest.Files{"c": "1"}})
	r.Write(gittest.Commit{Branch: "unrelated", Root: true, Files: gittest.Files{"c": "1"}})
	folder := filepath.Join(t.TempDir(), "work")
	gitIn(t, ".", "clone", "--quiet", r.Dir, folder)
	c, err := OpenCheckout(folder)
	require.NoError(t, err)
	_, err = c.Revision("origin/nowhere")
	require.EqualError(t, err, "the checkout has no revision origin/nowhere: reference not found")
	main, err := c.Revision("HEAD")
	require.NoError(t, err)
	unrelated, err := c.Revision("origin/unrelated")
	require.NoError(t, err)
	_, err = c.Parted(main, unrelated)
	require.ErrorContains(t, err, "they have no common ancestor")

	shallow := filepath.Join(t.TempDir(), "shallow")
	gitIn(t, ".", "clone", "--quiet", "--depth=1", "--no-single-branch", r.URL(), shallow)
	c, err = OpenCheckout(shallow)
	require.NoError(t, err)
	main, err = c.Revision("HEAD")
	require.NoError(t, err)
	topic, err := c.Revision("origin/topic")
	require.NoError(t, err)
	_, err = c.Parted(main, topic)
	require.ErrorContains(t, err, "the checkout is shallow, so their history isn't here")

	bare, err := OpenCheckout(r.Dir)
	require.Error(t, err)
	require.Nil(t, bare)
}
