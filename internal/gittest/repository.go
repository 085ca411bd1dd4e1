package gittest

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Repository is a bare repository on disk.
type Repository struct {
	// Dir is the bare repository.
	Dir string
	t   testing.TB
	// now is the time of the next commit: each is a minute after the one before.
	now time.Time
}

// New makes an empty bare repository whose default branch is main.
func New(t testing.TB) *Repository {
	t.Helper()
	r := &Repository{Dir: filepath.Join(t.TempDir(), "fleet.git"), t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	r.run(nil, "init", "--quiet", "--bare", "--initial-branch=main", r.Dir)
	r.Git("config", "uploadpack.allowFilter", "true")
	r.Git("config", "http.receivepack", "true")
	return r
}

// URL is the repository's file URL.
func (r *Repository) URL() string { return "file://" + filepath.ToSlash(r.Dir) }

// Git runs git in the repository and gives what it printed.
func (r *Repository) Git(arguments ...string) string {
	r.t.Helper()
	return r.run(nil, append([]string{"-C", r.Dir}, arguments...)...)
}

// GitInput is Git with something on standard input.
func (r *Repository) GitInput(input []byte, arguments ...string) string {
	r.t.Helper()
	return r.run(input, append([]string{"-C", r.Dir}, arguments...)...)
}

func (r *Repository) run(input []byte, arguments ...string) string {
	r.t.Helper()
	command := exec.Command("git", arguments...)
	command.Env = environment()
	command.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		r.t.Fatalf("git %s: %v: %s", strings.Join(arguments, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// environment is free of the configuration of whoever runs the tests.
func environment() []string {
	env := []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "LC_ALL=C",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com"}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "GIT_") && !strings.HasPrefix(variable, "LC_ALL=") {
			env = append(env, variable)
		}
	}
	return env
}

// Files are changes by path: a text writes a file, nil removes it, Link and Submodule write those.
type Files map[string]any

// Link is a symbolic link to a path.
type Link string

// Submodule is a reference to a commit of another repository.
type Submodule string

// Commit describes a commit for Write. The zero value goes on top of main, a minute after the last one.
type Commit struct {
	// Branch is main unless given.
	Branch string
	// Parents are what the commit stands on, the first one giving the files; the branch's tip unless given. Root makes a
	// commit without parents.
	Parents []string
	Root    bool
	// At is the committer's time.
	At      time.Time
	Subject string
	Files   Files
}

// Commit writes files on top of main and gives the new commit.
func (r *Repository) Commit(files Files) string {
	r.t.Helper()
	return r.Write(Commit{Files: files})
}

// Write makes a commit, moves its branch there (also where that rewinds it), and gives its hash.
func (r *Repository) Write(c Commit) string {
	r.t.Helper()
	return r.WriteAll([]Commit{c})
}

// WriteAll makes several commits at once, and gives the last one's hash.
func (r *Repository) WriteAll(commits []Commit) string {
	r.t.Helper()
	var stream bytes.Buffer
	written := map[string]bool{}
	last := "main"
	for _, c := range commits {
		if c.Branch == "" {
			c.Branch = "main"
		}
		last = c.Branch
		if len(c.Parents) == 0 && !c.Root && !written[c.Branch] && r.Tip(c.Branch) != "" {
			c.Parents = []string{r.Tip(c.Branch)}
		}
		r.writeCommit(&stream, c)
		written[c.Branch] = true
	}
	r.GitInput(stream.Bytes(), "fast-import", "--quiet", "--force", "--date-format=raw")
	return r.Tip(last)
}

func (r *Repository) writeCommit(stream *bytes.Buffer, c Commit) {
	if c.At.IsZero() {
		r.now = r.now.Add(time.Minute)
		c.At = r.now
	}
	if c.Subject == "" {
		c.Subject = "A change"
	}
	if c.Root {
		fmt.Fprintf(stream, "reset refs/heads/%s\n", c.Branch)
	}
	fmt.Fprintf(stream, "commit refs/heads/%s\n", c.Branch)
	fmt.Fprintf(stream, "author Ada <ada@example.com> %d +0000\n", c.At.Add(-time.Hour).Unix())
	fmt.Fprintf(stream, "committer Ada <ada@example.com> %d +0000\n", c.At.Unix())
	fmt.Fprintf(stream, "data %d\n%s\n", len(c.Subject), c.Subject)
	for i, parent := range c.Parents {
		fmt.Fprintf(stream, "%s %s\n", map[bool]string{true: "from", false: "merge"}[i == 0], parent)
	}
	var paths []string
	for path := range c.Files {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		switch content := c.Files[path].(type) {
		case nil:
			fmt.Fprintf(stream, "D %s\n", path)
		case string:
			fmt.Fprintf(stream, "M 100644 inline %s\ndata %d\n%s\n", path, len(content), content)
		case Link:
			fmt.Fprintf(stream, "M 120000 inline %s\ndata %d\n%s\n", path, len(content), string(content))
		case Submodule:
			fmt.Fprintf(stream, "M 160000 %s %s\n", string(content), path)
		default:
			r.t.Fatalf("%s: a file can't be a %T", path, content)
		}
	}
}

// Tip gives the commit that a branch points to, "" if there is no such branch.
func (r *Repository) Tip(branch string) string {
	r.t.Helper()
	return r.Git("for-each-ref", "--format=%(objectname)", "refs/heads/"+branch)
}

// ForcePush moves a branch to any commit.
func (r *Repository) ForcePush(branch, commit string) {
	r.t.Helper()
	r.Git("update-ref", "refs/heads/"+branch, commit)
}

// RawTree commits, on top of nothing, a tree object of exactly these bytes, and moves main there: for names that git refuses.
func (r *Repository) RawTree(tree []byte) string {
	r.t.Helper()
	hash := r.GitInput(tree, "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	text := "tree " + hash + "\nauthor Ada <ada@example.com> 1767225600 +0000\ncommitter Ada <ada@example.com> 1767225600 +0000\n\nA raw tree\n"
	commit := r.GitInput([]byte(text), "hash-object", "-t", "commit", "-w", "--literally", "--stdin")
	r.ForcePush("main", commit)
	return commit
}

// RawEntry is one entry for RawTree: a mode as git writes it, a name, and the hash of an object of the repository.
func RawEntry(mode, name, hash string) []byte {
	raw, err := hex.DecodeString(hash)
	if err != nil || len(raw) != 20 {
		panic("gittest: " + hash + " is no hash")
	}
	return append([]byte(mode+" "+name+"\x00"), raw...)
}

// Blob stores a file's content and gives its hash.
func (r *Repository) Blob(content string) string {
	r.t.Helper()
	return r.GitInput([]byte(content), "hash-object", "-w", "--stdin")
}

// Sign gives a commit like the one given, signed as git signs with these settings ("gpg.format=ssh", "user.signingkey=..."). No branch is moved.
func (r *Repository) Sign(commit string, settings ...string) string {
	r.t.Helper()
	var arguments []string
	for _, setting := range settings {
		arguments = append(arguments, "-c", setting)
	}
	arguments = append(arguments, "commit-tree", "-S", commit+"^{tree}", "-m", r.Git("log", "-1", "--format=%s", commit))
	for _, parent := range strings.Fields(r.Git("log", "-1", "--format=%P", commit)) {
		arguments = append(arguments, "-p", parent)
	}
	return r.Git(arguments...)
}

// RawCommit stores exactly these bytes as a commit object. No branch is moved.
func (r *Repository) RawCommit(object []byte) string {
	r.t.Helper()
	return r.GitInput(object, "hash-object", "-t", "commit", "-w", "--literally", "--stdin")
}

// Object gives the bytes of a commit object.
func (r *Repository) Object(commit string) []byte {
	r.t.Helper()
	command := exec.Command("git", "-C", r.Dir, "cat-file", "commit", commit)
	command.Env = environment()
	out, err := command.Output()
	if err != nil {
		r.t.Fatalf("git cat-file commit %s: %v", commit, err)
	}
	return out
}
