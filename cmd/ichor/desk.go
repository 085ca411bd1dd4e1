package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/schema"
)

// deskFlags say where the fleet repository is for who works with it from a desk.
type deskFlags struct {
	repo, remote, watched string
	offline               bool
	paths                 []string
	git                   gitsource.Config
}

func (f *deskFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.repo, "repo", "C", ".", "a checkout of the fleet repository, or the repository's URL")
	flags.StringVar(&f.remote, "remote", "", "the checkout's remote (default: that of its branch, else origin)")
	flags.StringVar(&f.watched, "watched", "", "the branch that the agent watches (default: the server's default branch)")
	flags.BoolVar(&f.offline, "offline", false, "don't ask the Git server: read the fleet as the checkout has it")
	flags.StringSliceVar(&f.paths, "path", nil, "folder of the repository that holds documents (may be repeated; default: all of it)")
	addGitCredentials(flags, &f.git)
}

// desk is the fleet as it was read, and the way back.
type desk struct {
	// remote is nil where it can't be reached, and then why says so.
	remote *gitsource.Remote
	why    error
	// checkout is nil where the repository was given by its URL.
	checkout *gitsource.Checkout
	watched  string
	revision *gitsource.Revision
	// readAt names what was read, for people.
	readAt   string
	fleet    *schema.Fleet
	problems int
	roots    []string
}

func (d *desk) close() {
	if d.remote != nil {
		_ = d.remote.Close()
	}
}

// operations is the folder in which operations stand: below the first root.
func (d *desk) operations() string { return path.Join(d.roots[0], "operations") }

// errNoSuchBranch says that the server answered, and doesn't have the branch.
var errNoSuchBranch = errors.New("there is no such branch")

var scpLike = regexp.MustCompile(`^[^/\\]+@[^/\\]+:.`)

// openDesk reads the fleet at the tip of the watched branch. Where the server can't be reached and need not be, what the checkout
// knows of it serves.
func (a *app) openDesk(ctx context.Context, f *deskFlags, needRemote bool) (*desk, error) {
	d := &desk{roots: []string{"."}}
	if len(f.paths) > 0 {
		d.roots = nil
		for _, given := range f.paths {
			d.roots = append(d.roots, path.Clean(strings.Trim(strings.ReplaceAll(given, `\`, "/"), "/")))
		}
	}
	if f.offline && needRemote {
		return nil, usageError(errors.New("nothing can be pushed with --offline"), "give --via-state, --no-push, --print or --dry-run too")
	}
	if err := a.findRemote(ctx, f, d, needRemote); err != nil {
		return nil, err
	}
	if d.why == nil {
		d.why = d.readTip(ctx, f)
	}
	if errors.Is(d.why, errNoSuchBranch) {
		d.close()
		return nil, cannot(d.why, "name the one that the agent watches with --watched")
	}
	if d.why != nil {
		if d.remote != nil {
			_ = d.remote.Close()
			d.remote = nil
		}
		if needRemote || d.checkout == nil {
			return nil, cannot(d.why, "mend that; where Git is down, --via-state puts the operation into the state's inbox instead")
		}
		if err := d.readCheckout(f); err != nil {
			return nil, err
		}
		fmt.Fprintf(a.err, "the server was not asked (%s), so the fleet is read at %s, which may be old\n", a.clean(d.why.Error()), a.clean(d.readAt))
	}
	var problems []schema.Problem
	d.fleet, problems = schema.Load(d.revision.Tree, d.roots)
	if d.problems = len(problems); d.problems > 0 {
		fmt.Fprintf(a.err, "%s of the fleet can't be read; the first is %s: %s\n", counted(d.problems, "place"), a.clean(problems[0].File), a.clean(problems[0].Message))
	}
	return d, nil
}

// findRemote finds the way to the repository.
func (a *app) findRemote(ctx context.Context, f *deskFlags, d *desk, toPush bool) error {
	if strings.Contains(f.repo, "://") || scpLike.MatchString(f.repo) {
		if f.offline {
			return usageError(errors.New("--offline reads a checkout, and the repository was given by its URL"), "name a checkout with --repo")
		}
		f.git.URL = f.repo
		err := a.openURL(ctx, f, d, toPush)
		if err != nil {
			return cannot(err, "")
		}
		return nil
	}
	checkout, err := gitsource.OpenCheckout(f.repo)
	if errors.Is(err, gitsource.ErrNoCheckout) {
		return cannot(err, "start it in a checkout of the fleet repository, or name one, or the repository's URL, with --repo")
	}
	if err != nil {
		return cannot(err, "")
	}
	d.checkout = checkout
	if f.offline {
		d.why = errors.New("--offline")
		return nil
	}
	if !f.ownCredentials() {
		d.remote, d.why = checkout.Remote(ctx, gitsource.RemoteOptions{Name: f.remote, Prompts: a.interactive, ReadOnly: !toPush})
		if !errors.Is(d.why, gitsource.ErrNoGit) {
			return nil
		}
	}
	url, err := checkout.RemoteURL(f.remote)
	if err != nil {
		d.why = err
		return nil
	}
	f.git.URL = url
	d.why = a.openURL(ctx, f, d, toPush)
	return nil
}

// openURL is the way without the user's git.
func (a *app) openURL(ctx context.Context, f *deskFlags, d *desk, toPush bool) (err error) {
	author := a.author(ctx, d.checkout)
	if toPush && (author.Name == "" || author.Email == "") {
		return gitsource.ErrNoAuthor
	}
	d.remote, err = gitsource.OpenRemote(f.git, author, a.clock)
	return err
}

// ownCredentials says whether credentials were given, which the user's git wouldn't know of.
func (f *deskFlags) ownCredentials() bool {
	return slices.ContainsFunc([]string{f.git.TokenFile, f.git.Username, f.git.PasswordFile, f.git.CAFile, f.git.SSHKeyFile, f.git.SSHPassphraseFile, f.git.KnownHostsFile},
		func(given string) bool { return given != "" })
}

// author is whose commits they are where the user's git doesn't make them.
func (a *app) author(ctx context.Context, checkout *gitsource.Checkout) gitsource.Author {
	author := gitsource.UserAuthor(ctx)
	if checkout != nil {
		author = checkout.Author(ctx)
	}
	if name := a.getenv("GIT_AUTHOR_NAME"); name != "" {
		author.Name = name
	}
	if email := a.getenv("GIT_AUTHOR_EMAIL"); email != "" {
		author.Email = email
	}
	return author
}

func (d *desk) readTip(ctx context.Context, f *deskFlags) (err error) {
	how := ""
	if d.watched = f.watched; d.watched == "" {
		how = ", its default branch"
		if d.watched, err = d.remote.DefaultBranch(ctx); err != nil {
			return err
		}
	}
	if d.revision, err = d.remote.Tip(ctx, d.watched); err != nil {
		return err
	}
	if d.revision == nil {
		return fmt.Errorf("%w: %s of %s", errNoSuchBranch, d.watched, d.remote.Shown())
	}
	d.readAt = fmt.Sprintf("%s of %s%s (commit %.12s)", d.watched, d.remote.Shown(), how, d.revision.Commit)
	return nil
}

// readCheckout reads what the checkout last saw of the server, else what is checked out.
func (d *desk) readCheckout(f *deskFlags) error {
	remote := f.remote
	if remote == "" {
		remote = "origin"
	}
	names := []string{remote + "/HEAD", "HEAD"}
	if f.watched != "" {
		names = []string{remote + "/" + f.watched, f.watched, "HEAD"}
	}
	var failed error
	for _, name := range names {
		revision, err := d.checkout.Revision(name)
		if err == nil {
			d.revision, d.readAt = revision, fmt.Sprintf("%s of the checkout %s (commit %.12s)", name, d.checkout.Dir, revision.Commit)
			return nil
		}
		failed = err
	}
	return cannot(failed, "commit the fleet first")
}
