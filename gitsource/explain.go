package gitsource

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	sshknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"ichor.maesh.dev/internal/printable"
)

var (
	errShallow = errors.New("shallow")
	errMoved   = errors.New("moved")
)

// credentialError is a file of credentials that can't be used; its text is a whole sentence.
type credentialError struct{ cause error }

func (e *credentialError) Error() string { return e.cause.Error() }
func (e *credentialError) Unwrap() error { return e.cause }

// branchError says that a branch isn't among those that the server has.
type branchError struct {
	branch   string // empty: the server names no default branch
	branches []string
}

func (e *branchError) Error() string { return "no branch " + e.branch }

// pathError says that a folder isn't in a revision.
type pathError struct {
	commit string
	cause  error
}

func (e *pathError) Error() string { return e.cause.Error() }
func (e *pathError) Unwrap() error { return e.cause }

// fetchTimeoutError says that a fetch or clone took too long.
type fetchTimeoutError struct {
	limit time.Duration
	cause error
}

func (e *fetchTimeoutError) Error() string { return "took longer than " + e.limit.String() }
func (e *fetchTimeoutError) Unwrap() error { return e.cause }

// explain makes one sentence with the way out of whatever failed. Only text that went through scrub gets into it.
func (p *poll) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil { // the caller's own doing
		return fmt.Errorf("asking %s was stopped: %w", p.source.location.shown, ctx.Err())
	}
	var rewound *RewoundError
	if errors.As(err, &rewound) {
		rewound.Branch = p.creds.scrub(rewound.Branch)
		return rewound
	}
	var explained *Error
	if errors.As(err, &explained) {
		return explained
	}
	for _, explain := range []func(error) (Reason, string){
		p.explainOwn, p.explainDisk, p.explainRefused, p.explainTrust, p.explainNetwork, p.explainAnswer,
	} {
		if reason, message := explain(err); reason != "" {
			return &Error{Reason: reason, Message: message, cause: err}
		}
	}
	message := fmt.Sprintf("reading %s failed: %s", p.source.location.shown, p.creds.scrub(err.Error()))
	return &Error{Reason: ReasonServer, Message: message, cause: err}
}

// explainOwn is about what this package itself found.
func (p *poll) explainOwn(err error) (Reason, string) {
	shown := p.source.location.shown
	var (
		credential *credentialError
		branch     *branchError
		path       *pathError
		tree       *refusedTreeError
		tooBig     *tooBigError
		broken     *brokenPackError
		cache      *brokenCacheError
		timeout    *fetchTimeoutError
	)
	switch {
	case errors.As(err, &credential):
		return ReasonCredentials, p.creds.scrub(credential.Error())
	case errors.As(err, &branch):
		return ReasonBranch, p.noBranch(branch)
	case errors.As(err, &path):
		return ReasonPath, fmt.Sprintf("the folder %s (branch %s of %s, commit %.12s)", p.creds.scrub(path.Error()), p.branch, shown, path.commit)
	case errors.As(err, &tree):
		return ReasonTree, fmt.Sprintf("the newest commit of branch %s of %s is refused: %s; push a commit without that", p.branch, shown, p.creds.scrub(tree.Error()))
	case errors.As(err, &tooBig):
		return ReasonTooBig, fmt.Sprintf("%s is too big: %s; a fleet repository holds text, so remove what doesn't belong there, or use another repository",
			shown, tooBig.Error())
	case errors.As(err, &timeout):
		return ReasonUnreachable, fmt.Sprintf("fetching from %s took longer than %s and was stopped; it is tried again at the next poll", shown, timeout.limit)
	case errors.As(err, &broken):
		return ReasonServer, fmt.Sprintf("what %s sent is no whole pack (%s); it is asked again at the next poll: if it stays so, run \"git fsck\" on the server",
			shown, p.creds.scrub(broken.cause.Error()))
	case errors.As(err, &cache) && p.cloned:
		return ReasonServer, fmt.Sprintf("%s sent a history with holes (object %.12s is missing); run \"git fsck\" on the server", shown, cache.hash)
	case errors.As(err, &cache):
		return ReasonCache, cache.Error()
	case errors.Is(err, errShallow):
		return ReasonServer, fmt.Sprintf("%s is itself a shallow clone, without its history; make it whole there by \"git fetch --unshallow\"", shown)
	case errors.Is(err, errMoved):
		return ReasonServer, fmt.Sprintf("branch %s of %s moved while it was read; the next poll looks again", p.branch, shown)
	case errors.Is(err, errNoGit):
		return ReasonCache, fmt.Sprintf("%s is read by git, which isn't installed here; install git, or serve the repository over https or ssh", shown)
	}
	return "", ""
}

func (p *poll) noBranch(e *branchError) string {
	shown := p.source.location.shown
	names := e.branches
	more := ""
	if len(names) > 5 {
		names, more = names[:5], fmt.Sprintf(" and %d more", len(e.branches)-5)
	}
	has := p.creds.scrub(strings.Join(names, ", ")) + more
	if has == "" {
		has = "no branch at all"
	}
	if e.branch == "" {
		return fmt.Sprintf("%s names no default branch (it has %s); name the branch by --branch", shown, has)
	}
	return fmt.Sprintf("%s has no branch %s (it has %s); push it, or name another by --branch", shown, p.creds.scrub(e.branch), has)
}

// explainDisk is about the cache folder.
func (p *poll) explainDisk(err error) (Reason, string) {
	var onDisk *fs.PathError
	var renamed *os.LinkError
	cache := p.source.config.Cache
	inCache := errors.As(err, &onDisk) && strings.HasPrefix(onDisk.Path, cache) || errors.As(err, &renamed) && strings.HasPrefix(renamed.New, cache)
	if inCache || isFull(err) {
		return ReasonCache, explainCache(cache, err).Error()
	}
	if errors.Is(err, fs.ErrNotExist) && p.source.location.endpoint.Protocol == protocolFile {
		return ReasonNotFound, fmt.Sprintf("there is nothing at %s; make the repository there, or mend the URL", p.source.location.shown)
	}
	if errors.Is(err, fs.ErrPermission) && p.source.location.endpoint.Protocol == protocolFile {
		return ReasonUnauthorized, fmt.Sprintf("%s may not be read by this user; give it the right to", p.source.location.shown)
	}
	return "", ""
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// explainCache says what is wrong with the cache folder.
func explainCache(cache string, err error) error {
	var explained *Error
	if errors.As(err, &explained) {
		return explained
	}
	message := fmt.Sprintf("the cache folder %s can't be used: %s; give the agent a folder that it may write, by --cache", cache, plainCause(err))
	switch {
	case isFull(err):
		message = fmt.Sprintf("the disk of the cache folder %s is full; make room there: it goes on by itself", cache)
	case errors.Is(err, syscall.EROFS):
		message = fmt.Sprintf("the cache folder %s is on a read-only file system; give the agent a folder that it may write, by --cache", cache)
	}
	return &Error{Reason: ReasonCache, Message: message, cause: err}
}

// plainCause gives the innermost text, without the paths around it.
func plainCause(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return printable.Text(err.Error())
}

// explainRefused is about credentials and repositories that the server doesn't accept.
func (p *poll) explainRefused(err error) (Reason, string) {
	shown, text := p.source.location.shown, err.Error()
	switch {
	case errors.Is(err, transport.ErrAuthenticationRequired) && p.creds.http == nil:
		return ReasonUnauthorized, fmt.Sprintf("%s wants credentials and none are given (401); give a token by --git-token-file", shown)
	case errors.Is(err, transport.ErrAuthenticationRequired):
		return ReasonUnauthorized, fmt.Sprintf("%s refuses the token or password (401): it is wrong, expired or revoked; put a new one in its place, it is "+
			"read again at the next poll", shown)
	case errors.Is(err, transport.ErrAuthorizationFailed):
		return ReasonUnauthorized, fmt.Sprintf("%s forbids these credentials to read it (403); give their owner the right to read the repository", shown)
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return ReasonEmpty, fmt.Sprintf("%s is empty; push a first commit to it, for example what \"ichor init\" writes", shown)
	case strings.Contains(text, "dubious ownership"):
		return ReasonUnauthorized, fmt.Sprintf("git refuses to read %s, because it belongs to another user; run \"git config --system --add safe.directory %s\"",
			shown, p.source.location.endpoint.Path)
	case strings.Contains(text, "unable to authenticate"):
		return ReasonUnauthorized, fmt.Sprintf("%s refuses the private key %s (%s) for the user %s; add its public half to the repository's deploy keys",
			shown, p.source.config.SSHKeyFile, ssh.FingerprintSHA256(p.creds.signer.PublicKey()), p.source.location.endpoint.User)
	}
	var remote *remoteError
	if errors.Is(err, transport.ErrRepositoryNotFound) || errors.As(err, &remote) && isNotFound(remote.text) {
		message := fmt.Sprintf("there is no repository at %s, or these credentials may not see it; mend the URL or give the right to read it", shown)
		if p.source.location.endpoint.Protocol == protocolFile {
			message = fmt.Sprintf("%s is no Git repository; make it one, or mend the URL", shown)
		}
		return ReasonNotFound, message
	}
	if remote != nil {
		return ReasonServer, fmt.Sprintf("git-upload-pack for %s said: %s", shown, p.creds.scrub(remote.text))
	}
	return "", ""
}

// isNotFound knows how servers say over ssh, and git on this machine, that a repository isn't there.
func isNotFound(text string) bool {
	text = strings.ToLower(text)
	for _, part := range []string{"not appear to be a git repository", "not found", "does not exist", "no such repository", "could not be found", "access denied"} {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// explainTrust is about certificates and host keys.
func (p *poll) explainTrust(err error) (Reason, string) {
	shown := p.source.location.shown
	host := strings.Trim(p.source.location.endpoint.Host, "[]")
	var (
		keyError  *sshknownhosts.KeyError
		revoked   *sshknownhosts.RevokedError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &revoked):
		return ReasonUntrusted, fmt.Sprintf("the host key of %s is marked as revoked in %s; get its new key from the server's operator", shown, p.source.config.KnownHostsFile)
	case knownhosts.IsHostKeyChanged(err) && errors.As(err, &keyError):
		return ReasonUntrusted, fmt.Sprintf("%s shows another host key than %s has for it: someone may be in between; ask the server's operator for its key, "+
			"and only then put it there", shown, p.source.config.KnownHostsFile)
	case knownhosts.IsHostUnknown(err):
		return ReasonUntrusted, fmt.Sprintf("%s isn't in %s, and a host is never trusted at first sight; get its key with \"ssh-keyscan %s\", compare it with what "+
			"the server's operator publishes, and put it there", shown, p.source.config.KnownHostsFile, sshKeyscan(host, p.source.location.endpoint.Port))
	case errors.As(err, &authority):
		return ReasonUntrusted, fmt.Sprintf("the certificate of %s is of a CA that isn't trusted here; give the CA's certificate by --git-ca", shown)
	case errors.As(err, &hostname):
		return ReasonUntrusted, fmt.Sprintf("the certificate of %s is for another name than %s; use the name in the certificate", shown, host)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return ReasonUntrusted, fmt.Sprintf("the certificate of %s has expired or isn't valid yet; renew it on the server, or set this machine's clock", shown)
	case errors.As(err, &invalid):
		return ReasonUntrusted, fmt.Sprintf("the certificate of %s can't be trusted: %s", shown, p.creds.scrub(invalid.Error()))
	case errors.As(err, &record) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return ReasonUntrusted, fmt.Sprintf("what answers at %s doesn't speak TLS; mend the URL's scheme or port", shown)
	}
	return "", ""
}

func sshKeyscan(host string, port int) string {
	if port == 0 {
		return host
	}
	return fmt.Sprintf("-p %d %s", port, host)
}

// explainNetwork is about servers that don't answer.
func (p *poll) explainNetwork(err error) (Reason, string) {
	shown := p.source.location.shown
	host := strings.Trim(p.source.location.endpoint.Host, "[]")
	var (
		dns     *net.DNSError
		timeout net.Error
		network *net.OpError
	)
	const wait = "it is tried again at the next poll"
	switch {
	case errors.As(err, &dns):
		why := "its name isn't known"
		if dns.IsTimeout || dns.IsTemporary {
			why = "the name server gave no answer"
		}
		return ReasonUnreachable, fmt.Sprintf("%s can't be reached: %s (%s); check the URL and this machine's name server; %s", shown, why, p.creds.scrub(host), wait)
	case errors.Is(err, syscall.ECONNREFUSED):
		return ReasonUnreachable, fmt.Sprintf("%s can't be reached: the connection was refused; check that the server runs; %s", shown, wait)
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return ReasonUnreachable, fmt.Sprintf("%s gave no answer in time; check that the server runs and that a firewall lets this machine through; %s", shown, wait)
	case errors.As(err, &network):
		return ReasonUnreachable, fmt.Sprintf("%s can't be reached: %s; %s", shown, p.creds.scrub(plainCause(network.Err)), wait)
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, packp.ErrEmptyInput) || errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET):
		return ReasonUnreachable, fmt.Sprintf("the connection to %s ended in the middle of an answer; %s", shown, wait)
	}
	return "", ""
}

// explainAnswer is about servers that answer with something else than Git's protocol.
func (p *poll) explainAnswer(err error) (Reason, string) {
	shown := p.source.location.shown
	var (
		unexpected *packp.ErrUnexpectedData
		line       *pktline.ErrorLine
		status     *githttp.Err
		general    *plumbing.UnexpectedError
	)
	// What the server says in the middle of a pack, go-git gives as a text with this beginning.
	said, isSaid := strings.CutPrefix(err.Error(), "unexpected error: ")
	switch {
	case isSaid && general == nil && !errors.As(err, &general):
		return ReasonServer, fmt.Sprintf("%s said: %s", shown, p.creds.scrub(said))
	case errors.As(err, &line):
		return ReasonServer, fmt.Sprintf("%s said: %s", shown, p.creds.scrub(line.Text))
	case errors.As(err, &status) || errors.As(err, &general) && errors.As(general.Err, &status):
		code := status.StatusCode()
		if code == 429 {
			return ReasonServer, fmt.Sprintf("%s answered that it is asked too often (429); poll less often by --interval", shown)
		}
		return ReasonServer, fmt.Sprintf("%s answered with an error of its own (HTTP %d); look at the server's log, it is tried again at the next poll", shown, code)
	case errors.As(err, &unexpected) || errors.Is(err, pktline.ErrInvalidPktLen):
		return ReasonNotFound, fmt.Sprintf("what answers at %s doesn't speak Git's protocol with SHA-1 names; mend the URL (a repository of SHA-256 names can't be read)", shown)
	case strings.Contains(err.Error(), "http redirect"):
		return ReasonServer, fmt.Sprintf("%s redirects to where it isn't followed; give the repository's own URL", shown)
	}
	return "", ""
}
