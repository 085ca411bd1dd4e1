package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func testDemo(t *testing.T) *demo {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "fleet"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &demo{opts: options{binaries: "/it's/bin", state: "s3", timeScale: 10}, out: io.Discard, dir: dir, said: map[string]string{}}
}

// A container or a new machine has no Git identity, and run-op commits with that of the checkout.
func TestTheCheckoutCommitsWhereGitWasNeverToldWho(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	d := testDemo(t)
	if err := d.makeCheckout(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.path("fleet", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.push(t.Context(), "first"); err != nil {
		t.Error(err)
	}
	for _, who := range []string{"GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"} {
		if said, err := output(t.Context(), d.path("fleet"), "git", "-c", "user.useConfigOnly=true", "var", who); err != nil || !strings.HasPrefix(string(said), "Demo <") {
			t.Errorf("%s: %s, %v", who, said, err)
		}
	}
}

// What a person sources sets exactly what the agent was given, whatever stands in the paths.
func TestTheEnvironmentOfADemoThatStaysUpIsWhatTheCommandsNeed(t *testing.T) {
	d := testDemo(t)
	shell := exec.CommandContext(t.Context(), "sh", "-ec", d.environment()+"env")
	shell.Env = []string{"PATH=" + os.Getenv("PATH")}
	said, err := shell.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PATH=/it's/bin:", "DEMO=" + d.dir + "\n", "ICHOR_STATE=s3://fleet/state\n", "ICHOR_STATE_ENDPOINT=http://" + bucketAddress + "\n",
		"ICHOR_STATE_REGION=us-east-1\n", "ICHOR_STATE_CREDENTIALS=" + d.path("bucket", "s3-credentials.json") + "\n", "ICHOR_AGE_IDENTITY=" + d.path("age.key") + "\n",
		"ICHOR_KEY=" + d.path(operatorKey) + "\n", "ICHOR_ALLOWED_SIGNERS=" + d.path(signersFile) + "\n", "ICHOR_TIME_SCALE=10\n"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("%q is not in %s", want, said)
		}
	}
	text := d.whereabouts()
	for _, want := range []string{"    . " + d.path(environmentFile) + "\n", "    cd " + d.path("fleet") + "\n", "etcd delete " + precious + "\n", "ICHOR_STATE, ICHOR_AGE_IDENTITY and ICHOR_KEY,",
		"its log is " + d.path("agent.log") + ")"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if strings.ContainsAny(text, "{}") {
		t.Errorf("a place was left open in %s", text)
	}
}
