package e2e

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/statefile"
)

// canary is a secret that must show up nowhere, with what to call it.
type canary struct{ name, value string }

// canaries are all secrets of a world: the bundle's, the bucket's keys, Git's tokens, the age identity, and sealed patches' values.
func (w *world) canaries() []canary {
	w.t.Helper()
	list := []canary{
		{"the S3 key", w.s3Secret}, {"the Git token", w.token}, {"the sealed patch's value", w.patch},
		{"the age identity", w.identity.String()},
	}
	var bundle any
	require.NoError(w.t, yaml.Unmarshal(w.plain, &bundle))
	collect("bundle", bundle, &list)
	require.Greater(w.t, len(list), 12)
	return list
}

// collect takes every value of a document but certificates, which are public. A key that is base64 of PEM is also taken as
// PEM, line by line.
func collect(path string, value any, into *[]canary) {
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			if key != "crt" {
				collect(path+"."+key, below, into)
			}
		}
	case []any:
		for n, below := range v {
			collect(fmt.Sprintf("%s[%d]", path, n), below, into)
		}
	case string:
		if len(v) < 8 {
			return
		}
		*into = append(*into, canary{path, v})
		decoded, err := base64.StdEncoding.DecodeString(v)
		if err != nil || !strings.Contains(string(decoded), "-----BEGIN") {
			return
		}
		for n, text := range strings.Split(string(decoded), "\n") {
			if len(text) >= 24 && !strings.HasPrefix(text, "-----") {
				*into = append(*into, canary{fmt.Sprintf("%s, line %d of its PEM", path, n), text})
			}
		}
	}
}

// forms are the ways in which a secret may stand in a text.
func (c canary) forms() []string {
	quoted, _ := json.Marshal(c.value)
	forms := []string{
		c.value, url.QueryEscape(c.value), url.PathEscape(c.value), strings.Trim(string(quoted), `"`),
		strings.Trim(strconv.Quote(c.value), `"`), hex.EncodeToString([]byte(c.value)),
	}
	// In base64 of a longer text it stands at one of three alignments; the first and last characters depend on its neighbours.
	for shift := range 3 {
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := encoding.EncodeToString(append(make([]byte, shift), c.value...))
			forms = append(forms, text[4:len(text)-4])
		}
	}
	return forms
}

// findings names every canary in a text.
func findings(where, text string, list []canary) []string {
	var found []string
	for _, c := range list {
		for _, form := range c.forms() {
			if at := strings.Index(text, form); at >= 0 {
				from := max(0, strings.LastIndexByte(text[:at], '\n'))
				found = append(found, fmt.Sprintf("%s holds %s after %q", where, c.name, text[max(from, at-200):at]))
				break
			}
		}
	}
	return found
}

// written are all files of a world but what holds secrets because it must: the keys themselves, the machines' disks, and
// Git's packs, in which the sealed files are.
func (w *world) written() map[string]string {
	w.t.Helper()
	files := map[string]string{}
	for _, folder := range []string{"s3", "cache", "tmp"} {
		err := filepath.WalkDir(w.path(folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, ".pack") || strings.HasSuffix(path, ".idx") {
				return err
			}
			data, err := os.ReadFile(path)
			files[path] = string(data)
			return err
		})
		require.NoError(w.t, err)
	}
	return files
}

func TestNoSecretLeavesTheAgentWhateverGoesWrong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.89.1", 1, 1)
	list := w.canaries()
	secret := list[len(list)-1].value
	for _, c := range list {
		if c.name == "bundle.cluster.secret" {
			secret = c.value
		}
	}
	// Machines say what they were given: in refusals, in errors of what is read, in what looks like a diff.
	says := fmt.Sprintf("rejected: token %s, key %s, diff:\n--- a\n+++ b\n+ secret: %s\n%s", secret, w.patch, secret, w.plain)
	// ... and not only as they were given it: as JSON, in URLs, in base64 of something longer.
	for _, value := range []string{secret, w.patch} {
		for _, form := range (canary{value: value}).forms() {
			says += "\n" + form
		}
		says += "\n" + base64.StdEncoding.EncodeToString([]byte("user:"+value+"@host")) + " " + base64.URLEncoding.EncodeToString([]byte(`{"password":"`+value+`"}`))
	}
	cp, worker := w.farm.Node("cp-1"), w.farm.Node("w-1")
	cp.Inject(talossim.Fault{Method: "ApplyConfiguration", Kind: talossim.Fail, Code: codes.InvalidArgument, Text: says, Times: 1})
	worker.Inject(talossim.Fault{Method: "ApplyConfiguration", Kind: talossim.Panic, Times: 1})
	cp.Inject(talossim.Fault{Method: "Bootstrap", Kind: talossim.Fail, Code: codes.FailedPrecondition, Text: says, Times: 1})
	a := w.startAgent("one")
	w.awaitState("the cluster Ready in spite of it", ready)

	for _, method := range []string{"EtcdStatus", "EtcdMemberList", "Read", "List", "Get", "ServiceList"} {
		cp.Inject(talossim.Fault{Method: method, Kind: talossim.Fail, Code: codes.Internal, Text: says, Times: 2})
	}
	cp.Inject(talossim.Fault{Method: "ApplyConfiguration", Kind: talossim.Fail, Code: codes.InvalidArgument, Text: says, Times: 1})
	from := len(a.lines())
	w.setting("100000")
	w.push()
	a.awaitSaying(from, "refused it: cp-1: applying the config: rejected")
	w.setting("200000")
	w.awaitState("the next change applied", readyAt(w.push()))

	w.wrongInGit(a, secret)
	w.wrongCredentials(t)

	for _, format := range []string{"table", "json", "yaml"} {
		w.statusText("-o", format)
		w.statusText("-o", format, "--age-identity", w.path("age.key"), "--fleet", w.checkout())
	}
	w.ichor("validate", w.checkout())
	w.ichor(append([]string{"audit", "verify", "prod", "--age-identity", w.path("age.key"), "--fleet", w.checkout()}, w.stateArguments()...)...)
	text := w.startAgent("text", "--log-format", "text")
	await(t, "the other agent standing by", func(context.Context) error {
		if !strings.Contains(text.log.String(), "this one stands by") {
			return fmt.Errorf("%s", tail(text.log.String()))
		}
		return nil
	})
	// What a crash prints.
	for _, crashing := range []*agent{text, a} {
		_, code := crashing.stop(syscall.SIGQUIT)
		require.NotZero(t, code)
		require.Contains(t, crashing.log.String(), "goroutine ")
	}

	list = append(list, w.canaries()...)
	require.NotEmpty(t, findings("the token's own file", w.token, list), "the search finds nothing at all")
	var found []string
	for path, content := range w.written() {
		found = append(found, findings(path, content, list)...)
	}
	found = append(found, findings("what was printed", w.printed.String(), list)...)
	for _, one := range []*agent{a, text} {
		found = append(found, findings("the log of agent "+one.name, one.log.String(), list)...)
	}
	assert.Empty(t, found, "%s", strings.Join(found, "\n"))
}

// wrongInGit pushes what can't be used, with secrets in the wrong places.
func (w *world) wrongInGit(a *agent, secret string) {
	w.t.Helper()
	patch, cluster, bundle := clusterDir+"/patches/secret.age", clusterDir+"/cluster.yaml", clusterDir+"/secrets.age"
	for _, wrong := range []struct{ file, content, says string }{
		{patch, w.seal([]byte("machine:\n  env: " + w.patch + "\n")), "patches/secret.age"},
		{patch, w.seal([]byte("machine: {" + w.patch + ": {" + secret + "]\n")), "patches/secret.age"},
		{cluster, strings.Replace(w.files[cluster].(string), "count: 1", "count: "+secret, 1), "count"},
		{bundle, w.seal([]byte("cluster: {secret: " + secret + ", id: [" + secret + "\n" + string(w.plain))), "secrets.age"},
	} {
		from, right := len(a.lines()), w.files[wrong.file]
		w.files[wrong.file] = wrong.content
		w.push()
		a.awaitSaying(from, wrong.says)
		w.statusText()
		w.statusText("-o", "json")
		w.ichor("validate", w.checkout(), "--age-identity", w.path("age.key"))
		w.files[wrong.file] = right
		w.awaitState("the mistake taken back", readyAt(w.push()))
	}
}

// wrongCredentials has the bucket's key and the Git token refused by servers that repeat what they were given.
func (w *world) wrongCredentials(t *testing.T) {
	t.Helper()
	w.git.Authorize(gittest.Basic("x-access-token", "another"))
	w.awaitState("the token refused", gitProblem("token"))
	got := w.once("expired") // and without a clone to go on with
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.err, "refuses the token or password")
	w.git.Authorize(gittest.Basic("x-access-token", w.token))
	w.awaitState("the token taken again", ready)

	right, err := os.ReadFile(w.path("s3.yaml"))
	require.NoError(t, err)
	wrong := "s3-" + statefile.NewNonce()
	w.writeFile("s3.yaml", strings.Replace(string(right), w.s3Secret, wrong, 1))
	got = w.once("refused")
	assert.Equal(t, 2, got.code)
	assert.NotContains(t, got.err, wrong)
	t.Log(got.err)
	w.writeFile("s3.yaml", string(right))
	w.otherIdentity()
	w.once("other-identity")
	w.writeFile("age.key", w.identity.String()+"\n")
}
