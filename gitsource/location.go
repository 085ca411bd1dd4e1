package gitsource

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
)

// The protocols that a location may have.
const (
	protocolFile  = "file"
	protocolHTTP  = "http"
	protocolHTTPS = "https"
	protocolSSH   = "ssh"
)

// location is a repository's URL, taken apart so that its userinfo can't be printed by accident.
type location struct {
	endpoint *transport.Endpoint
	// username and password are what stood in an http URL.
	username, password string
	// shown is the URL without userinfo, query and fragment.
	shown string
}

func parseLocation(raw string) (location, error) {
	if raw == "" {
		return location{}, fmt.Errorf("no repository URL is given; want file:///path, https://host/path, ssh://git@host/path or git@host:path")
	}
	endpoint, err := transport.NewEndpoint(raw)
	if err != nil {
		// The parser's own text repeats the URL, userinfo included.
		return location{}, fmt.Errorf("the repository URL can't be read; want file:///path, https://host/path, ssh://git@host/path or git@host:path")
	}
	endpoint.Protocol = strings.ToLower(endpoint.Protocol)
	l := location{endpoint: endpoint}
	switch endpoint.Protocol {
	case protocolFile:
		return parseFile(l)
	case protocolHTTP, protocolHTTPS:
		return parseHTTP(l)
	case protocolSSH:
		return parseSSH(l)
	case "git":
		return l, fmt.Errorf("git:// neither proves the server nor hides what it sends; give the repository's https:// or ssh:// URL")
	default:
		return l, fmt.Errorf("the repository URL's scheme isn't known; want file, http, https or ssh")
	}
}

func parseFile(l location) (location, error) {
	if l.endpoint.Host != "" {
		return l, fmt.Errorf("a file URL has three slashes before its path, as in file:///srv/fleet.git")
	}
	if !filepath.IsAbs(filepath.FromSlash(l.endpoint.Path)) && !strings.HasPrefix(l.endpoint.Path, "/") {
		return l, fmt.Errorf("the repository's path must be absolute, as in file:///srv/fleet.git")
	}
	l.shown = "file://" + l.endpoint.Path
	return l, nil
}

func parseHTTP(l location) (location, error) {
	if l.endpoint.Host == "" {
		return l, fmt.Errorf("the repository URL names no host")
	}
	// A query or fragment would be taken for a part of the path, and may hold a token.
	if strings.ContainsAny(l.endpoint.Path, "?#") {
		return l, fmt.Errorf("the repository URL may have no query or fragment; give a token by --git-token-file")
	}
	l.username, l.password = l.endpoint.User, l.endpoint.Password
	l.endpoint.User, l.endpoint.Password = "", ""
	shown := url.URL{Scheme: l.endpoint.Protocol, Host: hostPort(l.endpoint, 0), Path: l.endpoint.Path}
	l.shown = shown.String()
	return l, nil
}

func parseSSH(l location) (location, error) {
	if l.endpoint.Host == "" {
		return l, fmt.Errorf("the repository URL names no host")
	}
	if l.endpoint.Password != "" {
		return l, fmt.Errorf("an ssh URL may hold no password; give a private key by --ssh-key")
	}
	if l.endpoint.User == "" {
		l.endpoint.User = "git"
	}
	if l.endpoint.Port == 22 {
		l.endpoint.Port = 0
	}
	path := l.endpoint.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	l.shown = (&url.URL{Scheme: protocolSSH, Host: hostPort(l.endpoint, 0), Path: path}).String()
	return l, nil
}

// hostPort gives host:port, with fallback where the URL names no port; a fallback of 0 leaves it away.
func hostPort(endpoint *transport.Endpoint, fallback int) string {
	port := endpoint.Port
	if port == 0 {
		port = fallback
	}
	if port == 0 {
		return endpoint.Host
	}
	return net.JoinHostPort(strings.Trim(endpoint.Host, "[]"), strconv.Itoa(port))
}
