package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/statefile"
)

// ends fails the test where something hangs.
func ends(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal(what + " hangs")
	}
}

func TestAFileIsNeverSealedOverItself(t *testing.T) {
	b := newStateBench(t)
	file := filepath.Join(b.fleet, "clusters/prod/s3.age") // it has the name of a sealed one, and isn't
	const plain = "accessKeyID: a\nsecretAccessKey: b\n"
	require.NoError(t, os.WriteFile(file, []byte(plain), 0o600))
	for _, args := range [][]string{{"secrets", "seal", "--force", file}, {"secrets", "seal", "--force", file, "--out", filepath.Join(filepath.Dir(file), ".", "s3.age")}} {
		code, _, errText := b.run(args...)
		require.Equal(t, exitCannot, code, errText)
		require.Contains(t, errText, "would be written over itself")
		require.NotContains(t, errText, "delete it")
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, plain, string(data))
	}
}

func TestTheStatusOfAnUncheckedStateActsOnNoTerminal(t *testing.T) {
	b := newStateBench(t)
	require.NoError(t, b.agent().Create(t.Context(), &statefile.State{Revision: statefile.RevisionState{Applied: "\x1b[31mred", Observed: "\x1b[2Jgone",
		Refused: &statefile.RefusedRevision{Commit: "\x1b]0;title\a", Findings: []string{"no"}}}}))
	_, out, errText := b.run("status", "--state", "file://"+b.state)
	require.Contains(t, out, "revision red applied, gone is the newest", errText)
	require.NotContains(t, out, "\x1b")
}

func TestAFolderThatIsNoStateIsNotMadeByWhoOnlyReads(t *testing.T) {
	b := newStateBench(t)
	missing := filepath.Join(t.TempDir(), "tpyo")
	for _, args := range [][]string{{"status"}, {"audit", "verify"}, {"state", "accept", "prod", "--confirm", "prod"}} {
		code, _, errText := b.run(append(args, "--state", "file://"+missing, "--fleet", b.fleet, "--age-identity", b.identity)...)
		require.Equal(t, exitCannot, code, args)
		require.Contains(t, errText, "no such file or directory", args)
		require.Contains(t, errText, "name the folder that the agent is started with", args)
		require.NoDirExists(t, missing, args)
	}
}

func TestARefusedBranchLeavesNothingInTheTemporaryFolder(t *testing.T) {
	b := newOpBench(t)
	for _, args := range [][]string{nil, {"--ssh-key", b.key}} { // by the user's git, and without it
		temporary := t.TempDir()
		t.Setenv("TMPDIR", temporary)
		code, _, errText := b.run(append([]string{"run-op", "node", "reboot", "w-1", "--key", b.key, "--yes", "--watched", "nope"}, args...)...)
		require.Equal(t, exitCannot, code)
		if args == nil {
			require.Contains(t, errText, "there is no such branch")
		}
		left, err := os.ReadDir(temporary)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

func TestASSHAgentThatNeverAnswersIsLeftWithCtrlC(t *testing.T) {
	b := newOpBench(t)
	socket := filepath.Join(t.TempDir(), "agent")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1)) // it is asked, as for a touch of a security key
		stop()
		_, _ = io.Copy(io.Discard, conn)
	}()
	b.environment["SSH_AUTH_SOCK"] = socket
	ends(t, "the command", func() {
		code, _, errText := b.runFor(ctx, hurried{}, io.Discard, "run-op", "node", "reboot", "w-1", "--yes")
		require.Equal(t, exitCannot, code)
		require.Contains(t, errText, "it was stopped")
	})
	require.NotContains(t, b.server.Git("ls-tree", "-r", "--name-only", "main"), "operations/")
}

func TestAKeyIsWrittenIntoAFileAndNothingElse(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	a := &app{terminal: &terminal{in: strings.NewReader(""), out: io.Discard, err: io.Discard}, clock: clock.RealClock{}, getenv: func(string) string { return "" }}
	ends(t, "reading what is to be replaced", func() {
		err := a.writeCredential(credential{out: pipe, what: "kubeconfig", cluster: "prod", text: []byte("key"), replaces: onlyKubernetes, merge: "merge it"})
		require.ErrorContains(t, err, "is no file")
	})
}

func TestFindingsAreWrittenThroughWhatIsNoFile(t *testing.T) {
	folder := t.TempDir()
	link := filepath.Join(folder, "stdout") // as /dev/stdout is one
	require.NoError(t, os.Symlink("/dev/null", link))
	require.NoError(t, writeWhole(link, []byte("findings"), 0o644, true))
	target, err := os.Readlink(link)
	require.NoError(t, err, "the link was replaced")
	require.Equal(t, "/dev/null", target)
	require.ErrorIs(t, writeWhole(link, []byte("findings"), 0o644, false), os.ErrExist)
}

func TestAListIsReadAlikeByEveryCommand(t *testing.T) {
	types, of := map[string]string{}, map[string]string{}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if _, list := flag.Value.(pflag.SliceValue); !list {
				return // one value is read alike, whatever it becomes
			}
			if known := types[flag.Name]; known != "" && known != flag.Value.Type() {
				t.Errorf("--%s is a %s in %q and a %s in %q: what stands in %s can't mean the same to both", flag.Name, known, of[flag.Name],
					flag.Value.Type(), cmd.CommandPath(), environmentName(flag.Name))
			}
			types[flag.Name], of[flag.Name] = flag.Value.Type(), cmd.CommandPath()
		})
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk((&app{terminal: &terminal{}, clock: clock.RealClock{}, getenv: func(string) string { return "" }}).rootCommand())
}

func TestTheSecondCtrlCEndsWhatDoesNotHearTheFirst(t *testing.T) {
	command := exec.Command("ichor", "secrets", "seal", "-", "--out", filepath.Join(t.TempDir(), "x.age"))
	stdin, err := command.StdinPipe() // it is read to its end, which never comes
	require.NoError(t, err)
	defer stdin.Close()
	require.NoError(t, command.Start())
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(time.Minute)
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
			_ = command.Process.Signal(os.Interrupt)
		case <-limit:
			_ = command.Process.Kill()
			<-ended
			t.Fatal("it does not end, however often it is asked to")
		}
	}
}
