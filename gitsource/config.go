package gitsource

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/internal/printable"
)

// Config says where the fleet repository is and how it may be read. Files that are named here are read at every poll, so that
// a renewed token or key is used without a restart.
type Config struct {
	// URL is file:///path or a path, https://, http://, ssh://user@host/path or user@host:path. User and password in an
	// http URL serve as Username and Password; they are never printed.
	URL string
	// Branch is the branch that is watched. Empty is the server's default branch.
	Branch string
	// Paths are the folders that must be there, slash-separated from the top. They bound nothing: Revision.Tree is the
	// whole repository, because a reference may point out of them.
	Paths []string
	// Cache is the folder for the clone and the record. It is made if need be, with mode 0700.
	Cache string

	// Token, or what TokenFile holds, is sent as the password to http(s), with Username or "x-access-token" as the
	// user; or as a bearer token when Bearer is set.
	Token     string
	TokenFile string
	Bearer    bool
	// Username with Password, or what PasswordFile holds, is basic authentication for http(s).
	Username     string
	Password     string
	PasswordFile string
	// CAFile holds PEM certificates that are trusted for https beside the system's.
	CAFile string

	// SSHKeyFile is the private key for ssh; SSHPassphrase, or what SSHPassphraseFile holds, opens it. No agent is asked.
	SSHKeyFile        string
	SSHPassphrase     string
	SSHPassphraseFile string
	// KnownHostsFile is required for ssh. A host that isn't in it is refused, never learnt.
	KnownHostsFile string

	// AllowRewind lets one tip pass, in the life of this Source, that does not descend from the last one seen.
	AllowRewind bool

	// ListTimeout bounds asking where the branch stands (default 30 s), FetchTimeout a fetch or clone (default 10 min).
	ListTimeout  time.Duration
	FetchTimeout time.Duration
	// MaxPack bounds what one fetch may send, in bytes (default 1 GiB); MaxBlob the size of a file that is read (default
	// 8 MiB); MaxFiles how many files a revision may have (default 100,000).
	MaxPack  int64
	MaxBlob  int64
	MaxFiles int
}

func (c Config) withDefaults() Config {
	if c.ListTimeout <= 0 {
		c.ListTimeout = 30 * time.Second
	}
	if c.FetchTimeout <= 0 {
		c.FetchTimeout = 10 * time.Minute
	}
	if c.MaxPack <= 0 {
		c.MaxPack = 1 << 30
	}
	if c.MaxBlob <= 0 {
		c.MaxBlob = 8 << 20
	}
	if c.MaxFiles <= 0 {
		c.MaxFiles = 100_000
	}
	return c
}

// check refuses what can't be meant, so that it is said at the start and not at some poll.
func (c Config) check(l location) error {
	if c.Cache == "" {
		return errors.New("no cache folder is given; give one by --cache")
	}
	basic := c.Username != "" || c.Password != "" || c.PasswordFile != ""
	token := c.Token != "" || c.TokenFile != ""
	switch {
	case c.Token != "" && c.TokenFile != "":
		return errors.New("a Git token is given twice, by itself and as a file; give one of them")
	case c.Password != "" && c.PasswordFile != "":
		return errors.New("a Git password is given twice, by itself and as a file; give one of them")
	case c.SSHPassphrase != "" && c.SSHPassphraseFile != "":
		return errors.New("a passphrase is given twice, by itself and as a file; give one of them")
	case token && (c.Password != "" || c.PasswordFile != ""):
		return errors.New("a Git token and a Git password are given; give one of them")
	case c.Bearer && !token:
		return errors.New("a bearer token is asked for and no Git token is given; give one by --git-token-file")
	}
	web := l.endpoint.Protocol == protocolHTTP || l.endpoint.Protocol == protocolHTTPS
	if (l.username != "" || l.password != "") && (basic || token) {
		return errors.New("the repository URL holds a user or password, and others are given beside it; leave them out of the URL")
	}
	if (basic || token) && !web {
		return fmt.Errorf("a Git token, user or password serves only http and https, and the repository is %s", l.shown)
	}
	if !web && c.CAFile != "" {
		return fmt.Errorf("a certificate file serves only https, and the repository is %s", l.shown)
	}
	if l.endpoint.Protocol == protocolHTTP && c.CAFile != "" {
		return fmt.Errorf("a certificate file serves only https, and the repository is %s; use https there", l.shown)
	}
	if l.endpoint.Protocol != protocolSSH && (c.SSHKeyFile != "" || c.KnownHostsFile != "" || c.SSHPassphrase != "" || c.SSHPassphraseFile != "") {
		return fmt.Errorf("an ssh key or known_hosts file serves only ssh, and the repository is %s", l.shown)
	}
	if branch := c.Branch; branch != "" && (strings.HasPrefix(branch, "refs/") || strings.ContainsAny(branch, " ~^:?*[\\") || strings.Contains(branch, "..")) {
		return fmt.Errorf("%q is no branch name; give it as in main or release/1.2", printable.Text(branch))
	}
	return nil
}
