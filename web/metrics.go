package web

import (
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

// metricsHandler is /metrics. Each scrape is made from the agent's report alone, so it reads no store and no repository, and
// what is gone from the fleet is gone from the metrics.
func (s *Server) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newCollector(s))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4, Timeout: writeTimeout - 5*time.Second,
		ErrorLog: metricsLog{s},
	})
}

// metricsLog takes what promhttp has to say.
type metricsLog struct{ server *Server }

func (l metricsLog) Println(v ...any) {
	l.server.config.Log.Error("metrics are not whole", "problem", v)
}

// collector makes metrics of a report.
type collector struct {
	server *Server
	all    []*prometheus.Desc

	build, ready                                                    *prometheus.Desc
	gitReachable, gitPoll, gitPolls, gitFetches, gitClones          *prometheus.Desc
	lease, hooks, s3Requests                                        *prometheus.Desc
	clusterReady, clusterWorked, refused, lastPass, passes          *prometheus.Desc
	pending, locked                                                 *prometheus.Desc
	operations, operationsRefusedMore, operationStarted             *prometheus.Desc
	machineReady, machineReconciled                                 *prometheus.Desc
	backupReady, backupSuccess, backupFailures, backupSize          *prometheus.Desc
	backupDuration, backupSnapshots, backupDrill, backupDrillPassed *prometheus.Desc
}

func newCollector(server *Server) *collector {
	c := &collector{server: server}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc("ichor_"+name, help, labels, nil)
		c.all = append(c.all, d)
		return d
	}
	c.build = desc("build_info", "The version of ichor and of Go that runs; always 1.", "version", "goversion")
	c.ready = desc("ready", "1 when the agent can do its work: Git and the state answer, and who holds each lease is known.")
	c.gitReachable = desc("git_reachable", "1 when the repository answered when it was last asked.")
	c.gitPoll = desc("git_last_poll_timestamp_seconds", "When the repository last answered.")
	c.gitPolls = desc("git_polls_total", "How often the repository was asked where its branch stands.")
	c.gitFetches = desc("git_fetches_total", "How often objects were asked of the repository, clones included.")
	c.gitClones = desc("git_clones_total", "How often the whole history was asked of the repository.")
	c.lease = desc("lease_held", "1 when this agent holds the lease of the shard, and so works for its clusters.", "shard")
	c.hooks = desc("hook_requests_total", "Requests to the Git webhook by what became of them.", "result")
	c.s3Requests = desc("s3_requests_total", "Requests that were sent to S3 servers, by what the bucket is for and S3's name for what was asked.", "bucket", "operation")
	c.clusterReady = desc("cluster_ready", "1 when the cluster is Ready. Only the agent that works for a cluster has this.", "cluster")
	c.clusterWorked = desc("cluster_pass_whole", "1 when the last pass over the cluster came to a decision, 0 when something kept it from that.", "cluster")
	c.refused = desc("cluster_revision_refused", "1 when the newest revision is refused for the cluster, which stays on the last good one.", "cluster")
	c.lastPass = desc("cluster_last_pass_timestamp_seconds", "When a pass over the cluster last came to a decision.", "cluster")
	c.passes = desc("cluster_pass_duration_seconds", "How long passes over the cluster took.", "cluster")
	c.pending = desc("cluster_call_pending", "1 when a call to a machine was begun and its end was not seen yet.", "cluster")
	c.locked = desc("cluster_locked", "1 when something disruptive holds the cluster's lock.", "cluster")
	c.operations = desc("operations", "The signed operations that the state remembers, by phase: Paused waits for a person.", "cluster", "phase")
	c.operationsRefusedMore = desc("operations_refused_more", "Refused operations beyond the 100 that the state names.", "cluster")
	c.operationStarted = desc("operation_started_timestamp_seconds", "When the operation that is being carried out was begun.", "cluster", "operation")
	c.backupReady = desc("etcd_backup_ready", "1 when the backup is Ready: its newest snapshot is young enough and nothing is wrong with it.", "cluster", "backup")
	c.backupSuccess = desc("etcd_backup_last_success_timestamp_seconds", "When the newest snapshot that was stored was begun.", "cluster", "backup")
	c.backupFailures = desc("etcd_backup_failures_total", "Attempts to take a snapshot and store it that failed.", "cluster", "backup")
	c.backupSize = desc("etcd_backup_size_bytes", "The size of the newest snapshot before it is sealed.", "cluster", "backup")
	c.backupDuration = desc("etcd_backup_duration_seconds", "How long the last attempt that succeeded took.", "cluster", "backup")
	c.backupSnapshots = desc("etcd_backup_snapshots", "How many snapshots are stored, as far as the state remembers them (at most 500).", "cluster", "backup")
	c.backupDrill = desc("etcd_backup_last_drill_timestamp_seconds", "When a snapshot was last restored into a throw-away etcd, whatever came of it.", "cluster", "backup")
	c.backupDrillPassed = desc("etcd_backup_last_drill_passed", "1 when the last drill passed, 0 when it failed.", "cluster", "backup")
	c.machineReady = desc("machine_ready", "1 when the machine is as Git wants it and ready.", "cluster", "machine")
	c.machineReconciled = desc("machine_last_reconciled_timestamp_seconds", "When the machine was last compared with what Git wants.", "cluster", "machine")
	return c
}

// Describe is for prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.all {
		ch <- d
	}
}

// Collect is for prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	out := output{ch}
	from, report := c.server.reported()
	out.gauge(c.build, 1, c.server.config.Version, runtime.Version())
	out.counter(c.hooks, float64(c.server.hook.accepted.Load()), "accepted")
	out.counter(c.hooks, float64(c.server.hook.refused.Load()), "refused")
	for _, count := range c.server.config.Requests.Counts() {
		out.counter(c.s3Requests, float64(count.Sent), count.Bucket, count.Operation)
	}
	ready := true
	for _, check := range c.server.checks(report) {
		ready = ready && check.problem == ""
	}
	out.truth(c.ready, ready)
	if report == nil {
		return
	}
	git := from.git()
	out.truth(c.gitReachable, report.Git == "" && report.Newest != nil)
	out.moment(c.gitPoll, git.LastSuccess)
	out.counter(c.gitPolls, float64(git.Polls))
	out.counter(c.gitFetches, float64(git.Fetches))
	out.counter(c.gitClones, float64(git.Clones))
	for n, lease := range report.Leases {
		out.truth(c.lease, lease.Held, strconv.Itoa(n))
	}
	for _, cluster := range report.Clusters {
		// Of what another agent works for, or nobody has looked at yet, nothing is known here.
		if reason := cluster.Ready.Reason; reason != "Standby" && reason != "Starting" {
			c.cluster(out, cluster)
		}
	}
}

// cluster gives the metrics of a cluster that this agent works for.
func (c *collector) cluster(out output, r reconcile.ClusterReport) {
	out.truth(c.clusterReady, r.Ready.Status, r.Name)
	out.truth(c.clusterWorked, !r.Blocked, r.Name)
	out.moment(c.lastPass, r.Passes.LastWhole, r.Name)
	out.summary(c.passes, r.Passes.Count, r.Passes.Spent, r.Name)
	if r.State == nil {
		return
	}
	out.truth(c.refused, r.State.Revision.Refused != nil, r.Name)
	out.truth(c.pending, r.State.Intent != nil, r.Name)
	out.truth(c.locked, r.State.Lock != nil, r.Name)
	c.operationsOf(out, r)
	for name, b := range r.State.Backups {
		c.backup(out, b, r.Name, name)
	}
	for name, m := range r.State.Machines {
		out.truth(c.machineReady, m.Ready.Status, r.Name, name)
		compared := r.Compared[name]
		if m.LastReconciled.After(compared) {
			compared = m.LastReconciled
		}
		out.moment(c.machineReconciled, compared, r.Name, name)
	}
}

// operationsOf counts a cluster's operations, in every phase, so that an alert sees a phase that becomes empty.
func (c *collector) operationsOf(out output, r reconcile.ClusterReport) {
	counts := map[statefile.OperationPhase]int{}
	for _, op := range r.State.Operations {
		counts[op.Phase]++
		if op.Phase == statefile.OperationRunning || op.Phase == statefile.OperationShutDown {
			out.moment(c.operationStarted, op.StartedAt, r.Name, op.Name)
		}
	}
	for _, phase := range statefile.OperationPhases() {
		out.gauge(c.operations, float64(counts[phase]), r.Name, string(phase))
	}
	out.gauge(c.operationsRefusedMore, float64(r.State.RefusedMore), r.Name)
}

// backup gives the metrics of one TalosEtcdBackup. What never was is left out.
func (c *collector) backup(out output, b *statefile.BackupState, labels ...string) {
	out.truth(c.backupReady, b.Ready.Status, labels...)
	out.moment(c.backupSuccess, b.LastSuccess, labels...)
	out.counter(c.backupFailures, float64(b.Failures), labels...)
	if took, err := time.ParseDuration(b.LastDuration); err == nil {
		out.gauge(c.backupDuration, took.Seconds(), labels...)
	}
	out.gauge(c.backupSnapshots, float64(len(b.Snapshots)), labels...)
	if len(b.Snapshots) > 0 {
		out.gauge(c.backupSize, float64(b.Snapshots[0].Size), labels...)
	}
	if b.Drill != nil {
		out.moment(c.backupDrill, b.Drill.At, labels...)
		out.truth(c.backupDrillPassed, b.Drill.Passed, labels...)
	}
}

// output writes metrics. What can't be one is reported as such by the registry, and takes no other with it.
type output struct{ ch chan<- prometheus.Metric }

func (o output) send(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels []string) {
	metric, err := prometheus.NewConstMetric(d, kind, value, clean(labels)...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(d, err)
	}
	o.ch <- metric
}

func (o output) gauge(d *prometheus.Desc, value float64, labels ...string) {
	o.send(d, prometheus.GaugeValue, value, labels)
}

func (o output) counter(d *prometheus.Desc, value float64, labels ...string) {
	o.send(d, prometheus.CounterValue, value, labels)
}

func (o output) truth(d *prometheus.Desc, is bool, labels ...string) {
	value := 0.0
	if is {
		value = 1
	}
	o.gauge(d, value, labels...)
}

// moment leaves out what never was: an alert on an age would else be about 1970.
func (o output) moment(d *prometheus.Desc, at time.Time, labels ...string) {
	if !at.IsZero() {
		o.gauge(d, float64(at.UnixMilli())/1000, labels...)
	}
}

func (o output) summary(d *prometheus.Desc, count uint64, sum time.Duration, labels ...string) {
	metric, err := prometheus.NewConstSummary(d, count, sum.Seconds(), nil, clean(labels)...)
	if err != nil {
		metric = prometheus.NewInvalidMetric(d, err)
	}
	o.ch <- metric
}

// clean makes labels out of whatever a name is.
func clean(labels []string) []string {
	list := make([]string, len(labels))
	for n, label := range labels {
		list[n] = printable.Text(label)
	}
	return list
}
