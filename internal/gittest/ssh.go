package gittest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// SSHServer is a Server over SSH, with what a client needs for it.
type SSHServer struct {
	*Server
	// KeyFile is a private key that the server accepts, LockedKeyFile the same under Passphrase, StrangerKeyFile one that it
	// refuses. KnownHostsFile names the server's host key.
	KeyFile, LockedKeyFile, Passphrase, StrangerKeyFile, KnownHostsFile string

	mu   sync.Mutex
	host ssh.Signer
	conn map[net.Conn]bool
}

// SSH serves a repository by git-upload-pack and git-receive-pack over SSH, for one key.
func SSH(t testing.TB, repository *Repository) *SSHServer {
	t.Helper()
	folder := t.TempDir()
	s := &SSHServer{Server: &Server{t: t}, Passphrase: "correct horse battery staple", conn: map[net.Conn]bool{},
		KeyFile: filepath.Join(folder, "id"), LockedKeyFile: filepath.Join(folder, "id-locked"),
		StrangerKeyFile: filepath.Join(folder, "id-stranger"), KnownHostsFile: filepath.Join(folder, "known_hosts")}
	_, private := newKey(t)
	writeKey(t, s.KeyFile, private, "")
	writeKey(t, s.LockedKeyFile, private, s.Passphrase)
	_, stranger := newKey(t)
	writeKey(t, s.StrangerKeyFile, stranger, "")
	allowed, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	s.NewHostKey()
	config := func() *ssh.ServerConfig {
		s.mu.Lock()
		defer s.mu.Unlock()
		c := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if string(key.Marshal()) != string(allowed.PublicKey().Marshal()) {
				return nil, io.EOF
			}
			return nil, nil
		}}
		c.AddHostKey(s.host)
		return c
	}
	s.start = func(listener net.Listener) func() {
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				s.track(conn, true)
				go func() {
					defer s.track(conn, false)
					s.serveConn(conn, config(), filepath.Dir(repository.Dir))
				}()
			}
		}()
		return func() {
			_ = listener.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			for conn := range s.conn {
				_ = conn.Close()
			}
		}
	}
	s.Start()
	s.URL = "ssh://git@" + s.port.Address + "/" + filepath.Base(repository.Dir)
	s.TrustHost()
	t.Cleanup(s.Stop)
	return s
}

// NewHostKey gives the server another host key, which KnownHostsFile does not name until TrustHost.
func (s *SSHServer) NewHostKey() {
	_, private := newKey(s.t)
	host, err := ssh.NewSignerFromKey(private)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.host = host
}

// TrustHost writes the server's host key into KnownHostsFile, and nothing else.
func (s *SSHServer) TrustHost() {
	s.mu.Lock()
	line := knownhosts.Line([]string{s.port.Address}, s.host.PublicKey())
	s.mu.Unlock()
	if err := os.WriteFile(s.KnownHostsFile, []byte(line+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *SSHServer) track(conn net.Conn, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open {
		s.conn[conn] = true
	} else {
		delete(s.conn, conn)
		_ = conn.Close()
	}
}

func (s *SSHServer) serveConn(conn net.Conn, config *ssh.ServerConfig, root string) {
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		channel, asked, err := offered.Accept()
		if err != nil {
			continue
		}
		go s.serveSession(channel, asked, root)
	}
	_ = server.Close()
}

func (s *SSHServer) serveSession(channel ssh.Channel, asked <-chan *ssh.Request, root string) {
	defer func() { _ = channel.Close() }()
	for request := range asked {
		var body struct{ Command string }
		if request.Type != "exec" || ssh.Unmarshal(request.Payload, &body) != nil {
			_ = request.Reply(false, nil)
			continue
		}
		_ = request.Reply(true, nil)
		s.requests.Add(1)
		status := uint32(0)
		service, path, _ := strings.Cut(body.Command, " ")
		path = filepath.Join(root, strings.Trim(path, "'"))
		var err error
		switch service {
		case "git-upload-pack":
			err = s.uploadPack(channel, path)
		case "git-receive-pack":
			err = s.receivePack(channel, path)
		default:
			_, _ = io.WriteString(channel.Stderr(), "only git-upload-pack and git-receive-pack are served\n")
			status = 1
		}
		if err != nil {
			status = 128
		}
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
		return
	}
}

func (s *SSHServer) uploadPack(channel ssh.Channel, path string) error {
	command := exec.Command("git", "upload-pack", path)
	command.Env = environment()
	command.Stdout, command.Stderr = channel, channel.Stderr()
	in, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(in, channel)
		_ = in.Close()
	}()
	return command.Wait()
}

func (s *SSHServer) receivePack(channel ssh.Channel, path string) error {
	command := exec.Command("git", "receive-pack", path)
	command.Env = environment()
	command.Stdin, command.Stdout, command.Stderr = channel, channel, channel.Stderr()
	command.WaitDelay = time.Second // the client may keep its end open
	return command.Run()
}

func newKey(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func writeKey(t testing.TB, file string, key ed25519.PrivateKey, passphrase string) {
	t.Helper()
	var block *pem.Block
	var err error
	if passphrase == "" {
		block, err = ssh.MarshalPrivateKey(key, "")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
}
