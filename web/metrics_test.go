package web

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

func TestMetricsAreAsPrometheusWantsThem(t *testing.T) {
	b := newBench(t, nil)
	answer := b.get("/metrics")
	require.Equal(t, http.StatusOK, answer.Code)
	require.Contains(t, answer.Header().Get("Content-Type"), "text/plain")
	problems, err := promlint.New(strings.NewReader(answer.Body.String())).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	for line := range strings.Lines(answer.Body.String()) {
		require.Regexp(t, `^(# (HELP|TYPE) )?ichor_[a-z_]+`, line)
	}
	for _, line := range []string{
		`ichor_ready 1`,
		`ichor_git_reachable 1`,
		`ichor_git_polls_total 7`,
		`ichor_git_fetches_total 3`,
		`ichor_git_clones_total 1`,
		`ichor_git_last_poll_timestamp_seconds 1.79603998e+09`,
		`ichor_lease_held{shard="0"} 1`,
		`ichor_hook_requests_total{result="refused"} 0`,
		`ichor_cluster_ready{cluster="prod"} 0`,
		`ichor_cluster_pass_whole{cluster="prod"} 1`,
		`ichor_cluster_pass_duration_seconds_sum{cluster="prod"} 6`,
		`ichor_cluster_pass_duration_seconds_count{cluster="prod"} 12`,
		`ichor_cluster_last_pass_timestamp_seconds{cluster="prod"} 1.796039997e+09`,
		`ichor_cluster_revision_refused{cluster="prod"} 0`,
		`ichor_machine_ready{cluster="prod",machine="cp-1"} 1`,
		`ichor_machine_ready{cluster="prod",machine="w-1"} 0`,
		`ichor_machine_last_reconciled_timestamp_seconds{cluster="prod",machine="cp-1"} 1.796039997e+09`,
		`ichor_machine_last_reconciled_timestamp_seconds{cluster="prod",machine="cp-2"} 1.7960364e+09`,
		`ichor_etcd_backup_ready{backup="hourly",cluster="prod"} 1`,
		`ichor_etcd_backup_ready{backup="offsite",cluster="prod"} 0`,
		`ichor_etcd_backup_last_success_timestamp_seconds{backup="hourly",cluster="prod"} 1.7960364e+09`,
		`ichor_etcd_backup_failures_total{backup="hourly",cluster="prod"} 3`,
		`ichor_etcd_backup_size_bytes{backup="hourly",cluster="prod"} 5.0331648e+07`,
		`ichor_etcd_backup_duration_seconds{backup="hourly",cluster="prod"} 12.5`,
		`ichor_etcd_backup_snapshots{backup="hourly",cluster="prod"} 2`,
		`ichor_etcd_backup_last_drill_timestamp_seconds{backup="hourly",cluster="prod"} 1.7960112e+09`,
		`ichor_etcd_backup_last_drill_passed{backup="hourly",cluster="prod"} 1`,
		`ichor_etcd_backup_last_drill_passed{backup="offsite",cluster="prod"} 0`,
	} {
		require.Contains(t, answer.Body.String(), line+"\n")
	}
	require.NotContains(t, answer.Body.String(), `last_success_timestamp_seconds{backup="offsite"`)
	require.NotContains(t, answer.Body.String(), `last_reconciled_timestamp_seconds{cluster="prod",machine="w-1"}`, "what never was has no time")
}

func TestRequestsToBucketsAreCounted(t *testing.T) {
	requests := &statefile.Requests{}
	b := newBench(t, func(c *Config) { c.Requests = requests })
	require.NotContains(t, b.get("/metrics").Body.String(), "ichor_s3_requests_total")
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	store, err := statefile.OpenS3(t.Context(), statefile.S3Config{Endpoint: empty.URL, Bucket: "state", Requests: requests, Use: statefile.BucketOfState,
		Credentials: &statefile.S3Credentials{AccessKeyID: "access", SecretAccessKey: "a-secret-of-some-length"}})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	_, err = store.Get(t.Context(), "prod/state.json", "")
	require.Error(t, err)
	require.Regexp(t, `(?m)^ichor_s3_requests_total\{bucket="state",operation="GetObject"\} [1-9]`, b.get("/metrics").Body.String())
}

func TestWhatIsGoneFromTheFleetIsGoneFromTheMetrics(t *testing.T) {
	b := newBench(t, nil)
	require.Contains(t, b.get("/metrics").Body.String(), `machine="w-1"`)
	delete(b.agent.report.Clusters[0].State.Machines, "w-1")
	require.NotContains(t, b.get("/metrics").Body.String(), `machine="w-1"`)
	b.agent.report.Clusters = nil
	require.NotContains(t, b.get("/metrics").Body.String(), `cluster=`)
	b.sources.Store(nil)
	require.Contains(t, b.get("/metrics").Body.String(), "ichor_ready 0\n")
}

func TestANameThatIsNoLabelTakesNoOtherMetricWithIt(t *testing.T) {
	b := newBench(t, nil)
	machines := b.agent.report.Clusters[0].State.Machines
	machines["\xff\xfe\x00\"\n"] = &statefile.MachineState{}
	machines["a\x00"], machines["a"] = &statefile.MachineState{}, &statefile.MachineState{}
	text := b.get("/metrics").Body.String()
	require.Contains(t, text, `ichor_machine_ready{cluster="prod",machine="cp-1"} 1`)
	require.Contains(t, text, "ichor_ready 1\n")
}

func TestEveryMetricIsDocumentedAndEachThatARuleAsksForIsThere(t *testing.T) {
	page, err := os.ReadFile("../docs/web.md")
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc, 100)
	newCollector(newBench(t, nil).Server).Describe(descs)
	close(descs)
	name := regexp.MustCompile(`fqName: "([a-z0-9_]+)"`)
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)`").FindAllStringSubmatch(string(page), -1) {
		documented[match[1]] = true
	}
	there := map[string]bool{}
	for desc := range descs {
		match := name.FindStringSubmatch(desc.String())
		require.NotNil(t, match)
		require.True(t, documented[match[1]], match[1])
		delete(documented, match[1])
		there[match[1]] = true
	}
	for _, file := range []string{"../examples/agent-rules.yaml", "../examples/backup-rules.yaml"} {
		rules, err := os.ReadFile(file)
		require.NoError(t, err)
		asked := regexp.MustCompile(`\bichor_\w+`).FindAllString(string(rules), -1)
		require.NotEmpty(t, asked)
		for _, metric := range asked {
			require.True(t, there[metric], "%s asks for %s", file, metric)
		}
	}
	for name := range documented {
		require.False(t, strings.HasPrefix(name, "ichor_"), "%s is documented and isn't there", name)
	}
}

func TestOperationsAreCountedByPhase(t *testing.T) {
	b := newBench(t, nil)
	b.agent.report.Clusters[0].State.Operations = []*statefile.OperationState{
		{Name: "reboot-w1", Phase: statefile.OperationRunning, StartedAt: noon}, {Name: "reboot-w2", Phase: statefile.OperationPaused},
		{Name: "reboot-w3", Phase: statefile.OperationPaused}}
	b.agent.report.Clusters[0].State.RefusedMore = 7
	text := b.get("/metrics").Body.String()
	for _, line := range []string{
		`ichor_operations{cluster="prod",phase="Paused"} 2`,
		`ichor_operations{cluster="prod",phase="Running"} 1`,
		`ichor_operations{cluster="prod",phase="Refused"} 0`,
		`ichor_operations_refused_more{cluster="prod"} 7`,
		`ichor_operation_started_timestamp_seconds{cluster="prod",operation="reboot-w1"} 1.79604e+09`,
	} {
		require.Contains(t, text, line+"\n")
	}
	require.NotContains(t, text, `operation="reboot-w2"`)
}
