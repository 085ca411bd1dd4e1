package web

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

var update = flag.Bool("update", false, "write the golden pages anew")

// hostile is a text that would do something wherever it isn't escaped.
func hostile(what string) string {
	return what + `<script>alert("1")</script><img src=x onerror=alert(1)>{{.}}` + "\x1b[2J\x1b]0;owned\x07\u202etxt\u0000'\"&amp;\r\nnext"
}

func hostileReport() reconcile.Report {
	s := &statefile.State{SchemaVersion: 1, Cluster: statefile.ClusterIdentity{Name: hostile("prod"), ID: hostile("id")},
		Revision: statefile.RevisionState{Observed: hostile("observed"), Applied: hostile("applied"), Problem: hostile("problem"),
			NotYet: []string{hostile("notyet")}, Refused: &statefile.RefusedRevision{Commit: hostile("commit"), Findings: []string{hostile("finding")}}},
		Ready:  statefile.Condition{Reason: hostile("reason"), Message: hostile("message")},
		Intent: &statefile.Intent{Action: hostile("action"), Machine: hostile("target"), Outcome: statefile.Outcome(hostile("outcome")), At: noon.Add(-time.Minute)},
		Lock:   &statefile.Lock{Holder: hostile("holder"), Reason: hostile("lock"), Since: noon.Add(-time.Hour)},
		Machines: map[string]*statefile.MachineState{hostile("cp"): {Role: hostile("role"), Address: hostile("address"), TalosVersion: hostile("talos"),
			Ready: statefile.Condition{Reason: hostile("down"), Message: hostile("why")}}},
	}
	s.Backups = map[string]*statefile.BackupState{hostile("backup"): {Ready: statefile.Condition{Reason: hostile("stale"), Message: hostile("message")},
		LastError: hostile("error"), Drill: &statefile.BackupDrill{Snapshot: hostile("snapshot"), At: noon.Add(-time.Hour), Problem: hostile("drill"),
			Resources: map[string]int64{hostile("resource"): 1}},
		Snapshots: []statefile.BackupSnapshot{{Name: hostile("snapshot"), Time: noon.Add(-time.Hour), Size: 1, Drill: hostile("failed")}}}}
	s.Operations = []*statefile.OperationState{{Name: hostile("operation"), Digest: "ab", Kind: hostile("kind"), Action: hostile("act"), Target: hostile("machine"),
		Phase: statefile.OperationPaused, Pause: 1, Step: hostile("step"), Steps: []statefile.OperationStep{{Name: hostile("step"), At: noon.Add(-time.Minute)}},
		Signer: hostile("signer"), Message: hostile("says"), FailureReason: hostile("failure"), FirstSeen: noon.Add(-time.Hour), StartedAt: noon.Add(-time.Hour)}}
	s.RefusedMore = 3
	r := working(reconcile.ClusterReport{Name: s.Cluster.Name, Ready: s.Ready, State: s})
	r.Newest = &gitsource.Revision{Commit: hostile("newest"), Subject: hostile("subject"), Author: hostile("author")}
	r.Git = hostile("git")
	r.Leases = append(r.Leases, statefile.LeaseStatus{Holder: hostile("other"), Problem: hostile("lease")})
	return r
}

func TestAHostileStateIsOnlyTextOnThePage(t *testing.T) {
	b := newBench(t, nil)
	b.agent.report = hostileReport()
	answer := b.get("/")
	require.Equal(t, http.StatusOK, answer.Code)
	text := answer.Body.String()
	golden(t, "hostile.html", text)
	requireHarmless(t, text)
	require.Contains(t, text, "prod&lt;script&gt;")
	for _, path := range []string{"/api/v1/status", "/api/v1/agent", "/metrics", "/readyz"} {
		text := b.get(path).Body.String()
		require.NotContains(t, text, "\x1b", path)
		require.NotContains(t, text, "\x00", path)
	}
}

func TestThePageOfAFleetInTrouble(t *testing.T) {
	b := newBench(t, nil)
	text := b.get("/").Body.String()
	golden(t, "trouble.html", text)
	requireHarmless(t, text)
	require.Equal(t, "15", b.get("/").Header().Get("Refresh"))
	require.Empty(t, b.get("/?refresh=off").Header().Get("Refresh"))
}

// golden compares with a page that was looked at in a browser.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "look at the page, and then run the test with -update")
}

func TestALargeFleetStandsOnOnePageByItsTroubles(t *testing.T) {
	b := newBench(t, nil)
	var clusters []reconcile.ClusterReport
	for n := range 20 {
		c := prod()
		c.Name = fmt.Sprintf("c-%02d", n)
		c.State.Cluster.Name = c.Name
		if n != 11 {
			c.State.Backups = nil
		}
		if n != 7 {
			c.State.Ready = ready(c.Name)
			delete(c.State.Machines, "w-1")
		}
		c.Ready = c.State.Ready
		clusters = append(clusters, c)
	}
	b.agent.report = working(clusters...)
	text := b.get("/").Body.String()
	require.Contains(t, text, "<h1>19 of 20 clusters Ready; a backup is not</h1>")
	require.Equal(t, 2, strings.Count(text, `<section class="cluster`), "only those in trouble stand there in full")
	require.Contains(t, text, "the bucket offsite refuses", "of a Ready cluster the backup that isn't")
	require.Less(t, strings.Index(text, ">c-07<"), strings.Index(text, ">c-00<"), "and it comes first")
	require.Contains(t, text, "w-1 does not answer")
	require.Contains(t, text, "3 more are Ready")
	require.Contains(t, text, `href="/clusters/c-00"`)
	require.Contains(t, b.get("/clusters/c-07").Body.String(), ">cp-1<", "its own page has all of it")
	require.Contains(t, b.get("/clusters/c-00").Body.String(), "<h1>c-00 is Ready</h1>")
}

func TestNoSecretStandsOnAnyPage(t *testing.T) {
	b := newBench(t, nil)
	const known = "a-secret-that-the-agent-knows"
	b.config.Scrubber.Add(known)
	b.agent.report.Git = "https://user:" + known + "@git.example.com: denied"
	b.agent.report.Clusters[0].State.Ready.Message = "the node said: " + known[:5] + "\x00" + known[5:] + " and " + known
	b.agent.report.Leases[0].Problem = "access denied for " + known
	for _, path := range append([]string{pathReady}, everything...) {
		require.NotContains(t, b.get(path).Body.String(), known, path)
	}
	require.Contains(t, b.get("/").Body.String(), "the node said: (hidden) and (hidden)")
}

func TestAgesAreInTheUnitThatSaysEnough(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "just now", 4 * time.Second: "just now", 70 * time.Second: "70 s ago", 3 * time.Minute: "3 min ago",
		119 * time.Minute: "119 min ago", 26 * time.Hour: "26 h ago", 72 * time.Hour: "3 days ago", -time.Hour: "60 min ahead"} {
		require.Equal(t, want, age(d), d)
	}
	require.Equal(t, instant{}, parsedInstant("not a time", noon))
	require.Equal(t, strings.Repeat("ä", longestText/2)+"…", shortened(strings.Repeat("ä", longestText)))
}

func TestEveryTextThatIsShownIsCleanedWhereverItStands(t *testing.T) {
	type inner struct{ Text string }
	shown := struct {
		Text    string
		Pointer *inner
		List    []inner
		Map     map[string]string
		Deep    map[string]inner
		None    *inner
	}{"a", &inner{"b"}, []inner{{"c"}, {"d"}}, map[string]string{"e": "f"}, map[string]inner{"g": {"h"}}, nil}
	eachText(reflect.ValueOf(&shown).Elem(), strings.ToUpper)
	require.Equal(t, "A", shown.Text)
	require.Equal(t, "B", shown.Pointer.Text)
	require.Equal(t, []inner{{"C"}, {"D"}}, shown.List)
	require.Equal(t, map[string]string{"E": "F"}, shown.Map)
	require.Equal(t, map[string]inner{"G": {"H"}}, shown.Deep)
}
