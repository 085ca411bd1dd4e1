package gitsource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"ichor.maesh.dev/internal/printable"
)

// userGitTimeout bounds one run of the user's git, which may fetch, or ask for a passphrase.
const userGitTimeout = 10 * time.Minute

// ErrNoGit says that the program git isn't there.
var ErrNoGit = errNoGit

// userGit is the road of a checkout: the user's own git speaks to the server, with the user's credentials, keys, proxies and
// signing. Objects go into the checkout's store, and where the server's branch stands is noted as after any push; files, index and
// branches stay as they are.
type userGit struct {
	checkout *Checkout
	git      string
	// remote is the remote's name in the checkout, url its URL without anything secret.
	remote, url string
	// signs says that the user signs commits, partial that the checkout leaves out objects until they are asked for.
	signs, partial bool
	// hooks is an empty folder: the user's hooks look at the checkout, which isn't what is pushed.
	hooks string
	// prompts lets git ask on the terminal.
	prompts bool
	store   *store
	// seen is where branches stood when they were last asked for.
	seen map[string]plumbing.Hash
}

// RemoteOptions say how a checkout's remote is used.
type RemoteOptions struct {
	// Name of the remote. Empty: that of the branch which is checked out, else origin, else the only one.
	Name string
	// Prompts lets git ask for a password or passphrase on the terminal.
	Prompts bool
	// ReadOnly says that nothing will be added, so that it needn't be known whose commits they would be.
	ReadOnly bool
}

// Remote gives the checkout's remote, which is read and written by the user's own git. [ErrNoGit] where that isn't installed. Unless
// it is to be read only, it fails at once where git can't tell whose commits they are.
func (c *Checkout) Remote(ctx context.Context, options RemoteOptions) (*Remote, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, ErrNoGit
	}
	u := &userGit{checkout: c, git: git, remote: options.Name, prompts: options.Prompts, seen: map[string]plumbing.Hash{}}
	if u.hooks, err = os.MkdirTemp("", "ichor-no-hooks-"); err != nil {
		return nil, fmt.Errorf("make a folder without hooks: %w", err)
	}
	err = u.find(ctx)
	if err == nil && !options.ReadOnly {
		err = u.known(ctx)
	}
	if err != nil {
		_ = os.RemoveAll(u.hooks)
		return nil, err
	}
	return &Remote{road: u, pushed: map[string]bool{}}, nil
}

// find learns what the checkout's configuration says.
func (u *userGit) find(ctx context.Context) error {
	if u.remote == "" {
		if err := u.findRemote(ctx); err != nil {
			return err
		}
	}
	url, err := u.run(ctx, nil, "remote", "get-url", "--push", u.remote)
	if err != nil {
		return fmt.Errorf("the checkout %s has no remote %s: %w", u.checkout.Dir, printable.Text(u.remote), err)
	}
	u.url = withoutSecrets(url)
	signs, err := u.run(ctx, nil, "config", "--type=bool", "--default=false", "--get", "commit.gpgSign")
	if err != nil {
		return fmt.Errorf("commit.gpgSign can't be read: %w", err)
	}
	u.signs = signs == "true"
	promised, err := u.run(ctx, nil, "config", "--type=bool", "--default=false", "--get", "remote."+u.remote+".promisor")
	u.partial = err == nil && promised == "true"
	u.reopen()
	return nil
}

// errNobody stands for what git itself says to it, which is a page.
var errNobody = errors.New("git doesn't know who you are, and a commit has an author: " +
	`set it with git config --global user.name "Your Name", and git config --global user.email you@example.com`)

// known says what git lacks to make commits.
func (u *userGit) known(ctx context.Context) error {
	for _, who := range []string{"GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"} {
		_, err := u.run(ctx, nil, "var", who)
		switch {
		case err == nil:
		case strings.Contains(err.Error(), "dentity unknown"), strings.Contains(err.Error(), "empty ident"), strings.Contains(err.Error(), "auto-detection is disabled"):
			return errNobody
		default:
			return fmt.Errorf("git can't say who commits: %w", err)
		}
	}
	return nil
}

func (u *userGit) findRemote(ctx context.Context) error {
	if branch, err := u.run(ctx, nil, "symbolic-ref", "--quiet", "--short", "HEAD"); err == nil {
		if name, err := u.run(ctx, nil, "config", "--get", "branch."+branch+".remote"); err == nil && name != "" && name != "." {
			u.remote = name
			return nil
		}
	}
	names, err := u.run(ctx, nil, "remote")
	if err != nil {
		return fmt.Errorf("the remotes of the checkout %s can't be read: %w", u.checkout.Dir, err)
	}
	all := strings.Fields(names)
	switch {
	case slices.Contains(all, "origin"):
		u.remote = "origin"
	case len(all) == 1:
		u.remote = all[0]
	case len(all) == 0:
		return fmt.Errorf("the checkout %s has no remote, so there is nowhere to push to; add it with 'git remote add origin URL'", u.checkout.Dir)
	default:
		return fmt.Errorf("the checkout %s has %d remotes (%s), and none is called origin; name one", u.checkout.Dir, len(all), printable.Text(strings.Join(all, ", ")))
	}
	return nil
}

func (u *userGit) shown() string   { return u.url }
func (u *userGit) objects() *store { return u.store }
func (u *userGit) close() error    { return os.RemoveAll(u.hooks) }

// reopen looks at the checkout's objects anew: a fetch brings packs that an older look doesn't know.
func (u *userGit) reopen() {
	if opened, err := OpenCheckout(u.checkout.Dir); err == nil {
		u.store = opened.store
		return
	}
	u.store = u.checkout.store
}

func (u *userGit) defaultBranch(ctx context.Context) (string, error) {
	out, err := u.run(ctx, nil, "ls-remote", "--symref", "--", u.remote, "HEAD")
	if err != nil {
		return "", u.failed("asking", err)
	}
	branch := ""
	for line := range strings.Lines(out) {
		if rest, found := strings.CutPrefix(line, "ref: refs/heads/"); found {
			branch, _, _ = strings.Cut(rest, "\t")
		} else if hash, name, _ := strings.Cut(strings.TrimSpace(line), "\t"); branch != "" && name == "HEAD" && isHash(hash) {
			u.seen[branch] = plumbing.NewHash(hash)
		}
	}
	if branch != "" {
		return branch, nil
	}
	return "", fmt.Errorf("%s names no default branch; name the branch that the agent watches", u.url)
}

func (u *userGit) tip(ctx context.Context, branch string, fresh bool) (plumbing.Hash, error) {
	ref := "refs/heads/" + branch
	hash := u.seen[branch]
	for range pushAttempts {
		if fresh || hash.IsZero() {
			var err error
			if hash, err = u.look(ctx, ref); err != nil || hash.IsZero() {
				return plumbing.ZeroHash, err
			}
		}
		if u.seen[branch] = hash; u.store.has(hash) {
			return hash, u.complete(ctx, hash)
		}
		// Without a place to go to, what is fetched moves no ref.
		_, err := u.run(ctx, nil, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--no-recurse-submodules", "--refmap=", "--",
			u.remote, ref)
		if err != nil {
			return plumbing.ZeroHash, u.failed("fetching from", err)
		}
		if u.reopen(); u.store.has(hash) {
			return hash, u.complete(ctx, hash)
		}
		fresh = true // it has moved in between
	}
	return plumbing.ZeroHash, fmt.Errorf("branch %s of %s moves each time that it is fetched; try again", branch, u.url)
}

// complete fetches what a partial clone has left out of a commit's files, all at once.
func (u *userGit) complete(ctx context.Context, commit plumbing.Hash) error {
	if !u.partial {
		return nil
	}
	out, err := u.run(ctx, nil, "rev-list", "--objects", "--no-walk", "--missing=print", commit.String())
	if err != nil {
		return u.failed("reading a commit of", err)
	}
	var missing strings.Builder
	for line := range strings.Lines(out) {
		if hash, is := strings.CutPrefix(strings.TrimSpace(line), "?"); is {
			missing.WriteString(hash + "\n")
		}
	}
	if missing.Len() == 0 {
		return nil
	}
	_, err = u.run(ctx, []byte(missing.String()), "-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc",
		"--no-recurse-submodules", "--refmap=", "--filter=blob:none", "--stdin", "--", u.remote)
	if err != nil {
		return u.failed("fetching from", err)
	}
	u.reopen()
	return nil
}

// look asks where a branch stands.
func (u *userGit) look(ctx context.Context, ref string) (plumbing.Hash, error) {
	out, err := u.run(ctx, nil, "ls-remote", "--", u.remote, ref)
	if err != nil {
		return plumbing.ZeroHash, u.failed("asking", err)
	}
	for line := range strings.Lines(out) {
		if hash, name, found := strings.Cut(strings.TrimSpace(line), "\t"); found && name == ref && isHash(hash) {
			return plumbing.NewHash(hash), nil
		}
	}
	return plumbing.ZeroHash, nil
}

func (u *userGit) write(kind plumbing.ObjectType, data []byte) (plumbing.Hash, error) {
	return writeObject(u.store.storage, kind, data)
}

func (u *userGit) commit(ctx context.Context, tree, parent plumbing.Hash, addition Addition) (plumbing.Hash, error) {
	arguments := []string{"commit-tree", tree.String(), "-p", parent.String()}
	if u.signs {
		arguments = append(arguments, "-S")
	}
	out, err := u.run(ctx, []byte(addition.Message), append(arguments, "-F", "-")...)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if !isHash(out) {
		return plumbing.ZeroHash, fmt.Errorf("git gave %.60q for a commit", out)
	}
	commit := plumbing.NewHash(out)
	if u.signs || addition.Sign == nil {
		return commit, nil
	}
	object, err := u.store.read(commit, plumbing.CommitObject, maxMeta)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if object, err = addition.signed(object); err != nil {
		return plumbing.ZeroHash, err
	}
	return u.write(plumbing.CommitObject, object)
}

func (u *userGit) send(ctx context.Context, branch string, old, commit plumbing.Hash) error {
	expected := ""
	if !old.IsZero() {
		expected = old.String()
	}
	ref := "refs/heads/" + branch
	// The lease only narrows: the commit stands on what is expected there, so nothing is rewound.
	_, err := u.run(ctx, nil, "push", "--quiet", "--no-verify", "--no-follow-tags", "--recurse-submodules=no", "--force-with-lease="+ref+":"+expected, "--",
		u.remote, commit.String()+":"+ref)
	if err != nil {
		return u.failed("pushing to branch "+branch+" of", err)
	}
	return nil
}

func (u *userGit) failed(doing string, err error) error {
	hint := ""
	text := strings.ToLower(err.Error())
	switch {
	case strings.Contains(text, "protected branch") || strings.Contains(text, "pre-receive hook declined") || strings.Contains(text, "protected ref"):
		hint = "; if the branch is protected, push to another one with --branch, and merge that"
	case strings.Contains(text, "authentication failed") || strings.Contains(text, "could not read username") || strings.Contains(text, "permission denied"):
		hint = "; see that 'git push' works here"
	}
	return fmt.Errorf("%s %s with git failed: %w%s", doing, u.url, err, hint)
}

// userinfo is what may stand before the host in a URL.
var userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s'"]*@`)

// withoutSecrets takes user and password out of every URL in a text, and everything that would act on a terminal.
func withoutSecrets(text string) string {
	return printable.Text(userinfo.ReplaceAllString(strings.TrimSpace(text), "$1"))
}

// ownVariables are those by which git tells its children where they are: set by a hook or a wrapper, they would lead elsewhere.
var ownVariables = []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR",
	"GIT_NAMESPACE", "GIT_PREFIX", "GIT_QUARANTINE_PATH", "GIT_SHALLOW_FILE"}

// run runs the user's git in the checkout, and gives what it printed without the line's end.
func (u *userGit) run(ctx context.Context, input []byte, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, userGitTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, u.git, append([]string{"-C", u.checkout.Dir, "-c", "core.hooksPath=" + u.hooks, "-c", "gc.auto=0",
		"-c", "maintenance.auto=false", "-c", "advice.pushUpdateRejected=false"}, arguments...)...)
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !slices.Contains(ownVariables, name) && name != "LC_ALL" && name != "LANGUAGE" {
			command.Env = append(command.Env, variable)
		}
	}
	command.Env = append(command.Env, "LC_ALL=C")
	if !u.prompts {
		command.Env = append(command.Env, "GIT_TERMINAL_PROMPT=0")
	}
	command.WaitDelay = 5 * time.Second
	command.Stdin = bytes.NewReader(input)
	var out bytes.Buffer
	said := &tail{}
	command.Stdout, command.Stderr = &out, said
	verb := arguments[0]
	if verb == "-c" { // a setting comes first
		verb = arguments[2]
	}
	// A Ctrl-C is the caller's to handle: git ends with the context, and leaves nothing half done.
	if err := command.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return "", fmt.Errorf("git %s was stopped: %w", verb, cause)
		}
		text := withoutSecrets(said.String())
		if text == "" {
			text = err.Error()
		}
		return "", errors.New("git " + verb + ": " + clipTo(text, 600))
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

func clipTo(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// tail keeps the last 4 KiB of what is written to it.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if extra := len(t.data) - 4096; extra > 0 {
		t.data = t.data[extra:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	return strings.Join(strings.FieldsFunc(string(t.data), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
