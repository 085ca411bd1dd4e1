package docs_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
)

// metrics are those of backups that docs/backups.md names; package web serves them.
var metrics = []string{
	"ichor_etcd_backup_duration_seconds", "ichor_etcd_backup_failures_total", "ichor_etcd_backup_last_drill_timestamp_seconds",
	"ichor_etcd_backup_last_success_timestamp_seconds", "ichor_etcd_backup_size_bytes",
}

func TestTheAlertRulesAskForMetricsThatThereAre(t *testing.T) {
	text, err := os.ReadFile("../examples/backup-rules.yaml")
	require.NoError(t, err)
	asked := regexp.MustCompile(`\bichor_\w+`).FindAllString(string(text), -1)
	slices.Sort(asked)
	require.Equal(t, metrics, slices.Compact(asked))
	page, err := os.ReadFile("backups.md")
	require.NoError(t, err)
	for _, metric := range metrics {
		require.Contains(t, string(page), "`"+metric+"`")
	}
}

// Prometheus's own reader is built for this, which takes a minute: where the whole is tested, and where it is asked for.
func TestPrometheusReadsTheAlertRules(t *testing.T) {
	if os.Getenv("CI") == "" && os.Getenv("ICHOR_TEST_TOOLS") == "" {
		t.Skip("set ICHOR_TEST_TOOLS=1 to build Prometheus's reader of rules and run this")
	}
	page, err := os.ReadFile("web.md")
	require.NoError(t, err)
	archive, err := txtar.ParseFile("testdata/checkrules.txtar")
	require.NoError(t, err)
	checker := t.TempDir()
	require.NoError(t, txtar.Write(archive, checker))
	for _, file := range []string{"backup-rules.yaml", "agent-rules.yaml"} {
		rules, err := filepath.Abs(filepath.Join("../examples", file))
		require.NoError(t, err)
		command := exec.Command("go", "run", ".", rules)
		command.Dir = checker
		// What is downloaded meanwhile is said on standard error.
		var said bytes.Buffer
		command.Stderr = &said
		out, err := command.Output()
		require.NoError(t, err, said.String())
		asked := strings.Fields(string(out))
		require.NotEmpty(t, asked)
		for _, metric := range asked {
			require.Contains(t, string(page), "\n| `"+metric+"` |", file)
		}
	}
}
