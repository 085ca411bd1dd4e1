package gittest_test

import (
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"ichor.maesh.dev/internal/gittest"
)

// dial reaches a server with a key, as somebody does who believes its known hosts alone.
func dial(t *testing.T, server *gittest.SSHServer, keyFile string) (*ssh.Client, error) {
	t.Helper()
	text, err := os.ReadFile(keyFile)
	require.NoError(t, err)
	signer, err := ssh.ParsePrivateKey(text)
	require.NoError(t, err)
	known, err := knownhosts.New(server.KnownHostsFile)
	require.NoError(t, err)
	where, err := url.Parse(server.URL)
	require.NoError(t, err)
	client, err := ssh.Dial("tcp", where.Host, &ssh.ClientConfig{User: where.User.Username(), Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: known})
	if err == nil {
		t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

// ask runs a command on the server and gives what it printed.
func ask(t *testing.T, client *ssh.Client, command string) (string, error) {
	t.Helper()
	session, err := client.NewSession()
	require.NoError(t, err)
	out, err := session.CombinedOutput(command)
	return string(out), err
}

func TestOneKeyOpensTheRepositoryOverSSH(t *testing.T) {
	r := gittest.New(t)
	tip := r.Commit(gittest.Files{"a": "1"})
	server := gittest.SSH(t, r)
	client, err := dial(t, server, server.KeyFile)
	require.NoError(t, err)
	require.Zero(t, server.Requests(), "only commands count")
	out, err := ask(t, client, "git-upload-pack '/fleet.git'")
	require.Contains(t, out, tip, "%v", err)
	require.EqualValues(t, 1, server.Requests())
	out, err = ask(t, client, "git-receive-pack '/fleet.git'")
	require.Contains(t, out, tip, "%v", err)

	out, err = ask(t, client, "cat /etc/passwd")
	var ended *ssh.ExitError
	require.ErrorAs(t, err, &ended)
	require.Equal(t, 1, ended.ExitStatus())
	require.Contains(t, out, "only git-upload-pack and git-receive-pack")
	require.EqualValues(t, 3, server.Requests())
	_, err = ask(t, client, "git-upload-pack '/none.git'")
	require.ErrorAs(t, err, &ended)
	require.Equal(t, 128, ended.ExitStatus())

	_, err = dial(t, server, server.StrangerKeyFile)
	require.ErrorContains(t, err, "unable to authenticate")
}

func TestTheLockedKeyIsTheSameUnderItsPassphrase(t *testing.T) {
	server := gittest.SSH(t, gittest.New(t))
	read := func(file string) []byte {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return text
	}
	_, err := ssh.ParsePrivateKey(read(server.LockedKeyFile))
	var missing *ssh.PassphraseMissingError
	require.ErrorAs(t, err, &missing)
	locked, err := ssh.ParsePrivateKeyWithPassphrase(read(server.LockedKeyFile), []byte(server.Passphrase))
	require.NoError(t, err)
	plain, err := ssh.ParsePrivateKey(read(server.KeyFile))
	require.NoError(t, err)
	require.Equal(t, plain.PublicKey().Marshal(), locked.PublicKey().Marshal())
}

func TestANewHostKeyIsUnknownUntilItIsTrusted(t *testing.T) {
	server := gittest.SSH(t, gittest.New(t))
	server.NewHostKey()
	_, err := dial(t, server, server.KeyFile)
	var unknown *knownhosts.KeyError
	require.ErrorAs(t, err, &unknown)
	require.NotEmpty(t, unknown.Want, "another key of it is known")
	server.TrustHost()
	_, err = dial(t, server, server.KeyFile)
	require.NoError(t, err)
}

func TestAnSSHServerThatIsAwayTakesItsConnectionsWithItAndIsBackAtItsAddress(t *testing.T) {
	r := gittest.New(t)
	tip := r.Commit(gittest.Files{"a": "1"})
	server := gittest.SSH(t, r)
	client, err := dial(t, server, server.KeyFile)
	require.NoError(t, err)
	server.Stop()
	require.Error(t, client.Wait())
	_, err = dial(t, server, server.KeyFile)
	require.Error(t, err)
	server.Start()
	client, err = dial(t, server, server.KeyFile)
	require.NoError(t, err, "its host key is the same")
	out, _ := ask(t, client, "git-upload-pack '/fleet.git'")
	require.Contains(t, out, tip)
}
