package gitsource_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
)

// addition is what run-op adds.
func addition() gitsource.Addition {
	return gitsource.Addition{Message: "Reboot w-1\n", Files: map[string][]byte{
		"operations/reboot.yaml":     []byte("kind: TalosOperation\n"),
		"operations/reboot.yaml.sig": []byte("signed\n"),
	}}
}

// asAda gives the user who runs the tests a name and nothing else of a configuration.
func asAda(t *testing.T) {
	t.Helper()
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	t.Setenv("GIT_CONFIG_GLOBAL", writeFile(t, "[user]\n\tname = Ada\n\temail = ada@example.com\n[protocol \"file\"]\n\tallow = always\n"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SSH_AUTH_SOCK", "")
}

// in runs git in a folder as the tests' user.
func in(t *testing.T, folder string, arguments ...string) string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", folder}, arguments...)...).CombinedOutput()
	require.NoError(t, err, "git %v: %s", arguments, out)
	return strings.TrimSpace(string(out))
}

// checkedOut clones a repository by a URL, and opens the checkout's remote.
func checkedOut(t *testing.T, url string) (string, *gitsource.Remote) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "work")
	in(t, ".", "clone", "--quiet", url, folder)
	checkout, err := gitsource.OpenCheckout(folder)
	require.NoError(t, err)
	remote, err := checkout.Remote(context.Background(), gitsource.RemoteOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, remote.Close()) })
	return folder, remote
}

// content is every file of a folder with its bytes, mode and time, but for what the skipped names begin.
func content(t *testing.T, folder string, skip ...string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		below, _ := filepath.Rel(folder, path)
		for _, name := range skip {
			if below == filepath.FromSlash(name) {
				if info.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
		}
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found[below] = fmt.Sprintf("%s %s %x", info.Mode(), info.ModTime(), sha256.Sum256(data))
		}
		return nil
	}))
	return found
}

// expectAdded looks at the server: one commit on top of onto, by Ada, with exactly the two files.
func expectAdded(t *testing.T, r *gittest.Repository, branch, onto string) {
	t.Helper()
	tip := r.Tip(branch)
	require.Equal(t, onto, r.Git("rev-parse", tip+"^"))
	require.Equal(t, "A\toperations/reboot.yaml\nA\toperations/reboot.yaml.sig", r.Git("diff", "--name-status", onto, tip))
	require.Equal(t, "100644 blob", r.Git("ls-tree", tip, "operations/reboot.yaml")[:11])
	require.Equal(t, "kind: TalosOperation", r.Git("show", tip+":operations/reboot.yaml"))
	require.Equal(t, "Ada <ada@example.com> Reboot w-1", r.Git("log", "-1", "--format=%an <%ae> %s", tip))
	r.Git("fsck", "--strict", "--no-dangling")
}

// Odd modes, links and submodules, and names that Git sorts in its own way.
func odd(r *gittest.Repository) string {
	first := r.Commit(gittest.Files{"a": "1"})
	return r.Commit(gittest.Files{"a": "2", "operations.txt": "x", "operations-old/x": "y", "operation": "z", "link": gittest.Link("a"),
		"sub": gittest.Submodule(first), "operations/earlier.yaml": "e"})
}

func TestTwoFilesArePushedFromACheckoutThatStaysAsItIs(t *testing.T) {
	asAda(t)
	r := gittest.New(t)
	odd(r)
	folder, remote := checkedOut(t, r.URL())
	// A user in the middle of something: staged, changed, untracked, on another branch, with hooks that would object.
	in(t, folder, "switch", "--quiet", "-c", "topic")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a"), []byte("staged"), 0o600))
	in(t, folder, "add", "a")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a"), []byte("changed"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "operations/reboot.yaml"), []byte("untracked"), 0o600))
	hook := filepath.Join(folder, ".git/hooks/pre-push")
	require.NoError(t, os.MkdirAll(filepath.Dir(hook), 0o755))
	require.NoError(t, os.WriteFile(hook, []byte("#!/bin/sh\ntouch "+folder+"/hooked\nexit 1\n"), 0o755))
	tip := r.Commit(gittest.Files{"moved": "since the clone"})
	before := content(t, folder, ".git/objects", ".git/hooks", ".git/refs/remotes", ".git/logs/refs/remotes")

	branch, err := remote.DefaultBranch(context.Background())
	require.NoError(t, err)
	require.Equal(t, "main", branch)
	revision, err := remote.Tip(context.Background(), branch)
	require.NoError(t, err)
	require.Equal(t, tip, revision.Commit)
	added, err := remote.Add(context.Background(), branch, branch, addition())
	require.NoError(t, err)
	require.Equal(t, &gitsource.Added{Commit: r.Tip("main"), Onto: tip, Attempts: 1}, added)
	expectAdded(t, r, "main", tip)
	require.Equal(t, before, content(t, folder, ".git/objects", ".git/hooks", ".git/refs/remotes", ".git/logs/refs/remotes"), "the checkout, its index and its branches are as they were")
	in(t, folder, "fsck", "--no-dangling")

	again, err := remote.Add(context.Background(), branch, branch, addition())
	require.NoError(t, err)
	require.Empty(t, again.Commit, "it is there already")
	other := addition()
	other.Files["operations/reboot.yaml"] = []byte("another")
	_, err = remote.Add(context.Background(), branch, branch, other)
	require.ErrorIs(t, err, gitsource.ErrTaken)
	require.Equal(t, added.Commit, r.Tip("main"))
}

func TestTwoFilesArePushedOverEachTransportWithoutACheckout(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.name, func(t *testing.T) {
			r := gittest.New(t)
			tip := odd(r)
			config, _ := transport.serve(t, r)
			remote, err := gitsource.OpenRemote(config, gitsource.Author{Name: "Ada", Email: "ada@example.com"}, clock.RealClock{})
			require.NoError(t, err)
			defer func() { require.NoError(t, remote.Close()) }()
			branch, err := remote.DefaultBranch(context.Background())
			require.NoError(t, err)
			require.Equal(t, "main", branch)
			revision, err := remote.Tip(context.Background(), branch)
			require.NoError(t, err)
			require.Equal(t, tip, revision.Commit)
			_, err = remote.Add(context.Background(), "main", "main", addition())
			require.NoError(t, err)
			expectAdded(t, r, "main", tip)
			_, err = remote.Add(context.Background(), "proposals/reboot", "main", gitsource.Addition{Message: "Another\n", Files: map[string][]byte{"b.yaml": []byte("b")}})
			require.NoError(t, err)
			require.Equal(t, "A\tb.yaml", r.Git("diff", "--name-status", r.Tip("main"), r.Tip("proposals/reboot")))
		})
	}
}

func TestTheUsersOwnGitSpeaksToTheServer(t *testing.T) {
	asAda(t)
	t.Run("with a credential helper", func(t *testing.T) {
		r := gittest.New(t)
		tip := odd(r)
		server := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("ada", "t0ken")})
		in(t, ".", "config", "--global", "credential.helper", "!f() { echo username=ada; echo password=t0ken; }; f")
		_, remote := checkedOut(t, server.URL)
		_, err := remote.Add(context.Background(), "main", "main", addition())
		require.NoError(t, err)
		expectAdded(t, r, "main", tip)
	})
	t.Run("with the command that the user has for ssh", func(t *testing.T) {
		if _, err := exec.LookPath("ssh"); err != nil {
			t.Skip("ssh isn't installed")
		}
		r := gittest.New(t)
		tip := odd(r)
		server := gittest.SSH(t, r)
		in(t, ".", "config", "--global", "core.sshCommand", fmt.Sprintf("ssh -F none -i %s -o IdentitiesOnly=yes -o UserKnownHostsFile=%s -o GlobalKnownHostsFile=%s",
			server.KeyFile, server.KnownHostsFile, os.DevNull))
		_, remote := checkedOut(t, server.URL)
		_, err := remote.Add(context.Background(), "main", "main", addition())
		require.NoError(t, err)
		expectAdded(t, r, "main", tip)
	})
	t.Run("and what it says holds no password", func(t *testing.T) {
		r := gittest.New(t)
		odd(r)
		server := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("ada", "s3cret")})
		_, remote := checkedOut(t, "http://ada:s3cret@"+server.URL[len("http://"):])
		require.Equal(t, server.URL, remote.Shown())
		server.Authorize(gittest.Basic("ada", "another"))
		_, err := remote.Add(context.Background(), "main", "main", addition())
		require.Error(t, err)
		require.NotContains(t, err.Error(), "s3cret")
		require.Contains(t, err.Error(), server.URL)
	})
	t.Run("and signs commits where the user signs them", func(t *testing.T) {
		r := gittest.New(t)
		odd(r)
		key := filepath.Join(t.TempDir(), "id")
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput()
		require.NoError(t, err, string(out))
		for name, value := range map[string]string{"gpg.format": "ssh", "user.signingKey": key, "commit.gpgSign": "true"} {
			in(t, ".", "config", "--global", name, value)
		}
		_, remote := checkedOut(t, r.URL())
		_, err = remote.Add(context.Background(), "main", "main", addition())
		require.NoError(t, err)
		require.Contains(t, r.Git("cat-file", "commit", "main"), "BEGIN SSH SIGNATURE")
	})
}

func TestACheckoutThatLeavesObjectsOutGetsThoseThatItReads(t *testing.T) {
	asAda(t)
	r := gittest.New(t)
	r.Git("config", "uploadpack.allowAnySHA1InWant", "true")
	odd(r)
	server := gittest.HTTP(t, r, gittest.HTTPOptions{})
	folder := filepath.Join(t.TempDir(), "work")
	in(t, ".", "clone", "--quiet", "--filter=blob:none", "--no-checkout", server.URL, folder)
	tip := r.Commit(gittest.Files{"moved": "since the clone"})
	checkout, err := gitsource.OpenCheckout(folder)
	require.NoError(t, err)
	remote, err := checkout.Remote(context.Background(), gitsource.RemoteOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, remote.Close()) }()
	revision, err := remote.Tip(context.Background(), "main")
	require.NoError(t, err)
	require.Equal(t, tip, revision.Commit)
	for name, want := range map[string]string{"a": "2", "moved": "since the clone", "operations/earlier.yaml": "e"} {
		data, err := fs.ReadFile(revision.Tree, name)
		require.NoError(t, err, name)
		require.Equal(t, want, string(data))
	}
	_, err = remote.Add(context.Background(), "main", "main", addition())
	require.NoError(t, err)
	expectAdded(t, r, "main", tip)
}

// roads are both ways to a repository that is served over HTTP.
func roads(t *testing.T, url string) map[string]*gitsource.Remote {
	t.Helper()
	_, checkout := checkedOut(t, url)
	direct, err := gitsource.OpenRemote(gitsource.Config{URL: url}, gitsource.Author{Name: "Ada", Email: "ada@example.com"}, clock.RealClock{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, direct.Close()) })
	return map[string]*gitsource.Remote{"from a checkout": checkout, "without one": direct}
}

// beforePushes calls a function before each push reaches the server.
func beforePushes(server *gittest.Server, before func(n int64)) {
	var pushes atomic.Int64
	var backend http.Handler
	backend = server.Handle(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/git-receive-pack") && r.ContentLength != 4 { // not git's probe
			before(pushes.Add(1))
		}
		backend.ServeHTTP(w, r)
	}))
}

func TestABranchThatMovesDuringThePushIsPushedToAgain(t *testing.T) {
	asAda(t)
	for _, name := range []string{"from a checkout", "without one"} {
		t.Run(name, func(t *testing.T) {
			r := gittest.New(t)
			odd(r)
			server := gittest.HTTP(t, r, gittest.HTTPOptions{})
			remote := roads(t, server.URL)[name]
			last := ""
			beforePushes(server, func(n int64) {
				if n <= 2 {
					last = r.Commit(gittest.Files{"other": fmt.Sprint(n)})
				}
			})
			added, err := remote.Add(context.Background(), "main", "main", addition())
			require.NoError(t, err)
			require.Equal(t, 3, added.Attempts)
			require.Equal(t, last, added.Onto)
			expectAdded(t, r, "main", last)
		})
		t.Run(name+", but not for ever", func(t *testing.T) {
			r := gittest.New(t)
			odd(r)
			server := gittest.HTTP(t, r, gittest.HTTPOptions{})
			remote := roads(t, server.URL)[name]
			beforePushes(server, func(n int64) { r.Commit(gittest.Files{"other": fmt.Sprint(n)}) })
			_, err := remote.Add(context.Background(), "main", "main", addition())
			require.ErrorIs(t, err, gitsource.ErrMoving)
			require.NotContains(t, r.Git("ls-tree", "-r", "--name-only", "main"), "reboot")
		})
		t.Run(name+", and the name that another took meanwhile isn't", func(t *testing.T) {
			r := gittest.New(t)
			odd(r)
			server := gittest.HTTP(t, r, gittest.HTTPOptions{})
			remote := roads(t, server.URL)[name]
			beforePushes(server, func(int64) { r.Commit(gittest.Files{"operations/reboot.yaml": "mine"}) })
			_, err := remote.Add(context.Background(), "main", "main", addition())
			require.ErrorIs(t, err, gitsource.ErrTaken)
			require.Equal(t, "mine", r.Git("show", "main:operations/reboot.yaml"))
		})
		t.Run(name+", and a branch that went back stays back", func(t *testing.T) {
			r := gittest.New(t)
			before := r.Commit(gittest.Files{"a": "1"})
			r.Commit(gittest.Files{"secret": "pushed by mistake"})
			server := gittest.HTTP(t, r, gittest.HTTPOptions{})
			remote := roads(t, server.URL)[name]
			_, err := remote.Tip(context.Background(), "main")
			require.NoError(t, err)
			r.ForcePush("main", before)
			_, err = remote.Add(context.Background(), "main", "main", addition())
			require.NoError(t, err)
			expectAdded(t, r, "main", before)
		})
		t.Run(name+", and an answer that was lost is found out", func(t *testing.T) {
			r := gittest.New(t)
			tip := odd(r)
			server := gittest.HTTP(t, r, gittest.HTTPOptions{})
			remote := roads(t, server.URL)[name]
			var backend http.Handler
			backend = server.Handle(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				if request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/git-receive-pack") && request.ContentLength != 4 {
					backend.ServeHTTP(&deaf{header: http.Header{}}, request)
					panic(http.ErrAbortHandler)
				}
				backend.ServeHTTP(w, request)
			}))
			added, err := remote.Add(context.Background(), "main", "main", addition())
			require.NoError(t, err)
			require.Equal(t, r.Tip("main"), added.Commit)
			expectAdded(t, r, "main", tip)
		})
		t.Run(name+", and what the server says to a push is said", func(t *testing.T) {
			r := gittest.New(t)
			odd(r)
			hook := filepath.Join(r.Dir, "hooks", "pre-receive")
			require.NoError(t, os.MkdirAll(filepath.Dir(hook), 0o755))
			require.NoError(t, os.WriteFile(hook, []byte("#!/bin/sh\necho 'main is \x1b[31mprotected' >&2\nexit 1\n"), 0o755))
			server := gittest.HTTP(t, r, gittest.HTTPOptions{})
			_, err := roads(t, server.URL)[name].Add(context.Background(), "main", "main", addition())
			require.ErrorContains(t, err, "pre-receive hook declined")
			require.ErrorContains(t, err, "--branch")
			require.NotContains(t, err.Error(), "\x1b")
		})
	}
}

// deaf is who asks and doesn't hear the answer.
type deaf struct{ header http.Header }

func (d *deaf) Header() http.Header         { return d.header }
func (d *deaf) Write(p []byte) (int, error) { return len(p), nil }
func (d *deaf) WriteHeader(int)             {}

func TestAPushThatCannotBeMadeSaysWhatToDo(t *testing.T) {
	asAda(t)
	r := gittest.New(t)
	r.Commit(gittest.Files{"operations": "a file"})
	fresh := gittest.New(t)
	fresh.Commit(gittest.Files{"a": "1"})
	folder, remote := checkedOut(t, r.URL())
	_, err := remote.Add(context.Background(), "main", "main", addition())
	require.ErrorContains(t, err, "operations is no folder there")
	_, err = remote.Add(context.Background(), "main", "main", gitsource.Addition{Message: "x", Files: map[string][]byte{"../x": nil}})
	require.ErrorContains(t, err, "is no path")
	_, err = remote.Add(context.Background(), "gone", "gone too", addition())
	require.ErrorContains(t, err, "is no branch name")
	_, err = remote.Add(context.Background(), "gone", "gone-too", addition())
	require.ErrorContains(t, err, "neither a branch gone nor gone-too")
	none, err := remote.Tip(context.Background(), "gone")
	require.NoError(t, err)
	require.Nil(t, none)

	checkout, err := gitsource.OpenCheckout(folder)
	require.NoError(t, err)
	_, err = checkout.Remote(context.Background(), gitsource.RemoteOptions{Name: "elsewhere"})
	require.ErrorContains(t, err, "has no remote elsewhere")
	in(t, folder, "config", "user.useConfigOnly", "true")
	in(t, folder, "config", "--global", "--remove-section", "user")
	_, err = checkout.Remote(context.Background(), gitsource.RemoteOptions{})
	require.EqualError(t, err, "git doesn't know who you are, and a commit has an author: "+
		`set it with git config --global user.name "Your Name", and git config --global user.email you@example.com`)
	nameless, err := checkout.Remote(context.Background(), gitsource.RemoteOptions{ReadOnly: true})
	require.NoError(t, err, "who only reads needs no name")
	require.NoError(t, nameless.Close())
	in(t, folder, "remote", "remove", "origin")
	_, err = checkout.Remote(context.Background(), gitsource.RemoteOptions{})
	require.ErrorContains(t, err, "git remote add origin URL")
	anonymous, err := gitsource.OpenRemote(gitsource.Config{URL: fresh.URL()}, gitsource.Author{}, clock.RealClock{})
	require.NoError(t, err)
	defer func() { require.NoError(t, anonymous.Close()) }()
	_, err = anonymous.Tip(context.Background(), "main")
	require.NoError(t, err, "it can be read")
	_, err = anonymous.Add(context.Background(), "main", "main", addition())
	require.ErrorIs(t, err, gitsource.ErrNoAuthor)
	t.Setenv("PATH", t.TempDir())
	_, err = checkout.Remote(context.Background(), gitsource.RemoteOptions{})
	require.ErrorIs(t, err, gitsource.ErrNoGit)
}
