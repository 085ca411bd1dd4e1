package gitsource

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strings"

	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/internal/printable"
)

// maxCredential bounds a file with a token, key, known hosts or certificates, in bytes.
const maxCredential = 1 << 20

// credentials are what one poll uses: the config's files as they were when it began.
type credentials struct {
	http githttp.AuthMethod
	// pool is nil for the system's certificates alone; ca is what was added to them.
	pool *x509.CertPool
	ca   []byte

	signer     ssh.Signer
	knownHosts *knownhosts.HostKeyDB

	// secrets are every string that no message may hold.
	secrets []string
}

// secret reads one secret: value as given, or what file holds, without the white space around it.
func secret(what, value, file string) (string, error) {
	if value != "" || file == "" {
		return value, nil
	}
	data, err := readCredential(what, file)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", fmt.Errorf("%s %s is empty; put it there, it is read again at the next poll", what, file)
	}
	return text, nil
}

func readCredential(what, file string) ([]byte, error) {
	opened, err := os.Open(file)
	if err == nil {
		defer func() { _ = opened.Close() }()
		var data []byte
		if data, err = io.ReadAll(io.LimitReader(opened, maxCredential+1)); err == nil {
			if len(data) > maxCredential {
				return nil, fmt.Errorf("%s %s is bigger than 1 MiB, so it isn't what it should be", what, file)
			}
			return data, nil
		}
	}
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	return nil, fmt.Errorf("%s %s can't be read: %w; it is read again at the next poll", what, file, err)
}

func loadCredentials(c Config, l location) (credentials, error) {
	switch l.endpoint.Protocol {
	case protocolHTTP, protocolHTTPS:
		return httpCredentials(c, l)
	case protocolSSH:
		return sshCredentials(c, l)
	}
	return credentials{}, nil
}

func httpCredentials(c Config, l location) (credentials, error) {
	var out credentials
	token, err := secret("the Git token file", c.Token, c.TokenFile)
	if err != nil {
		return out, err
	}
	password, err := secret("the Git password file", c.Password, c.PasswordFile)
	if err != nil {
		return out, err
	}
	username := c.Username
	if l.username != "" && token == "" && password == "" {
		username, password = l.username, l.password
	}
	switch {
	case token != "" && c.Bearer:
		out.http = &githttp.TokenAuth{Token: token}
	case token != "":
		if username == "" {
			username = "x-access-token"
		}
		out.http = &githttp.BasicAuth{Username: username, Password: token}
	case username != "" || password != "":
		out.http = &githttp.BasicAuth{Username: username, Password: password}
	}
	for _, secret := range []string{token, password, l.password} {
		out.hide(username, secret)
	}
	if l.username != "" && l.password == "" { // https://TOKEN@host/
		out.hide("", l.username)
	}
	if c.CAFile == "" {
		return out, nil
	}
	if out.ca, err = readCredential("the certificate file", c.CAFile); err != nil {
		return out, err
	}
	if out.pool, err = x509.SystemCertPool(); err != nil {
		out.pool = x509.NewCertPool()
	}
	if !out.pool.AppendCertsFromPEM(out.ca) {
		return out, fmt.Errorf("the certificate file %s holds no PEM certificate; put the certificate of the Git server's CA there", c.CAFile)
	}
	return out, nil
}

func sshCredentials(c Config, l location) (credentials, error) {
	var out credentials
	if c.KnownHostsFile == "" {
		return out, fmt.Errorf("no known_hosts file is given, and a host is never trusted at first sight; get its key with \"ssh-keyscan %s\", "+
			"compare it with what the server's operator publishes, and give the file by --known-hosts", strings.Trim(l.endpoint.Host, "[]"))
	}
	if c.SSHKeyFile == "" {
		return out, fmt.Errorf("no private key is given for %s; give one by --ssh-key", l.shown)
	}
	passphrase, err := secret("the passphrase file", c.SSHPassphrase, c.SSHPassphraseFile)
	if err != nil {
		return out, err
	}
	out.hide("", passphrase)
	key, err := readCredential("the private key", c.SSHKeyFile)
	if err != nil {
		return out, err
	}
	if out.signer, err = parseKey(key, passphrase, c.SSHKeyFile); err != nil {
		return out, err
	}
	// Read first, so that a file which can't be opened is told apart from one with a bad line.
	if _, err := readCredential("the known_hosts file", c.KnownHostsFile); err != nil {
		return out, err
	}
	if out.knownHosts, err = knownhosts.NewDB(c.KnownHostsFile); err != nil {
		return out, fmt.Errorf("the known_hosts file %s can't be understood: %s; mend that line, it is read again at the next poll",
			c.KnownHostsFile, printable.Text(err.Error()))
	}
	return out, nil
}

func parseKey(key []byte, passphrase, file string) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(key)
	var missing *ssh.PassphraseMissingError
	if !errors.As(err, &missing) {
		if err != nil {
			return nil, fmt.Errorf("%s holds no private key that can be used: %s; make one with \"ssh-keygen -t ed25519\"", file, printable.Text(err.Error()))
		}
		return signer, nil
	}
	if passphrase == "" {
		return nil, fmt.Errorf("the private key %s has a passphrase and none is given; give it by --ssh-passphrase-file", file)
	}
	if signer, err = ssh.ParsePrivateKeyWithPassphrase(key, []byte(passphrase)); err != nil {
		return nil, fmt.Errorf("the passphrase does not open the private key %s", file)
	}
	return signer, nil
}

// hide adds a secret, and the forms in which a server or a library may give it back.
func (c *credentials) hide(username, secret string) {
	if secret == "" {
		return
	}
	c.secrets = append(c.secrets, secret, url.PathEscape(secret), url.QueryEscape(secret),
		base64.StdEncoding.EncodeToString([]byte(username+":"+secret)), base64.StdEncoding.EncodeToString([]byte(secret)))
}

// scrub gives text of a server or library as one printable line without any secret.
func (c *credentials) scrub(text string) string {
	for _, secret := range c.secrets {
		text = strings.ReplaceAll(text, secret, "[redacted]")
	}
	text = printable.Text(strings.TrimSpace(text))
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "..."
	}
	return text
}

func sameCA(a, b []byte) bool { return bytes.Equal(a, b) }
