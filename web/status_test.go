package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

func sealer(t testing.TB) *statefile.Sealer {
	t.Helper()
	s, err := statefile.NewSealer("cluster id", "an encryption secret of the bundle", "")
	require.NoError(t, err)
	return s
}

// put stores a cluster's state as an agent does.
func (b *bench) put(r reconcile.ClusterReport) *statefile.State {
	b.t.Helper()
	handle, err := statefile.OpenCluster(b.store, statefile.Options{Name: r.Name, Sealer: sealer(b.t), WriterID: "a3f1", Clock: b.clock})
	require.NoError(b.t, err)
	require.NoError(b.t, handle.Create(b.t.Context(), r.State))
	state, err := handle.Load(b.t.Context())
	require.NoError(b.t, err)
	return state
}

// command is what `ichor status -o json` prints.
func (b *bench) command(clusters ...string) string {
	b.t.Helper()
	status, err := reconcile.StatusReader{Store: b.store,
		Sealer: func(string) (*statefile.Sealer, error) { return sealer(b.t), nil }}.Read(b.t.Context(), clusters)
	require.NoError(b.t, err)
	var text bytes.Buffer
	require.NoError(b.t, reconcile.WriteJSON(&text, status))
	return text.String()
}

func (b *bench) holdLease() statefile.LeaseStatus {
	b.t.Helper()
	lease, err := statefile.NewLease(b.store, statefile.LeaseOptions{Holder: "a3f1"})
	require.NoError(b.t, err)
	_, err = lease.Tick(b.t.Context())
	require.NoError(b.t, err)
	return lease.Status()
}

func TestTheAPIIsWhatTheCommandPrints(t *testing.T) {
	b := newBench(t, nil)
	report := prod()
	report.State = b.put(report)
	b.agent.report = working(report)
	b.agent.report.Clusters[0].Lease = b.holdLease()

	answer := b.get("/api/v1/status")
	require.Equal(t, http.StatusOK, answer.Code)
	require.Equal(t, "application/json", answer.Header().Get("Content-Type"))
	require.Equal(t, b.command("prod"), answer.Body.String())

	var whole reconcile.Status
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &whole))
	var one reconcile.ClusterStatus
	require.NoError(t, json.Unmarshal(b.get("/api/v1/clusters/prod").Body.Bytes(), &one))
	require.Equal(t, whole.Clusters[0], one)
	var machine reconcile.MachineStatus
	require.NoError(t, json.Unmarshal(b.get("/api/v1/clusters/prod/machines/w-1").Body.Bytes(), &machine))
	require.Equal(t, "Unreachable", machine.Reason)
}

func TestAnAgentThatStandsByShowsWhatTheOtherWrote(t *testing.T) {
	b := newBench(t, nil)
	b.put(prod())
	b.holdLease()
	standby := reconcile.ClusterReport{Name: "prod", Blocked: true, Lease: statefile.LeaseStatus{Holder: "a3f1", Token: 1},
		Ready: statefile.Condition{Reason: "Standby", Message: "the lease of shard 0 is held by agent a3f1: this one stands by"}}
	b.agent.report.Clusters = []reconcile.ClusterReport{standby}
	b.agent.report.Leases = []statefile.LeaseStatus{standby.Lease}
	want := strings.Replace(b.command("prod"), `"seal": "checked"`, `"seal": "not checked: this agent does not work for the cluster"`, 1)
	require.Equal(t, want, b.get("/api/v1/status").Body.String())
	require.Contains(t, b.get("/").Body.String(), "Standing by")
	require.Equal(t, "ok\n", b.get(pathReady).Body.String(), "who stands by is ready")
	require.NotContains(t, b.get("/metrics").Body.String(), `cluster="prod"`, "the metrics of a cluster are of who works for it")
}

func TestWhyAnAgentCanNotWorkForAClusterStandsInTheStatus(t *testing.T) {
	b := newBench(t, nil)
	b.put(prod())
	blocked := reconcile.ClusterReport{Name: "prod", Blocked: true,
		Ready: statefile.Condition{Reason: "WrongIdentity", Message: "the secrets bundle of prod can't be opened"}}
	b.agent.report = working(blocked)
	var one reconcile.ClusterStatus
	require.NoError(t, json.Unmarshal(b.get("/api/v1/clusters/prod").Body.Bytes(), &one))
	require.False(t, one.Ready)
	require.Equal(t, "WrongIdentity", one.Reason)
	require.Len(t, one.Machines, 4, "what the state says of its machines is shown all the same")
}

func TestAClusterThatOnlyTheStateKnowsIsShown(t *testing.T) {
	b := newBench(t, nil)
	old := prod()
	old.Name, old.State.Cluster.Name = "old", "old"
	b.put(old)
	require.Equal(t, http.StatusOK, b.get("/api/v1/clusters/old").Code)
	require.Equal(t, http.StatusOK, b.get("/clusters/old").Code)
	var status reconcile.Status
	require.NoError(t, json.Unmarshal(b.get("/api/v1/status").Body.Bytes(), &status))
	require.Equal(t, "old", status.Clusters[0].Name)
	require.Equal(t, "prod", status.Clusters[1].Name)
}

func TestAStateThatNoAgentWroteTakesTheAgentNotDown(t *testing.T) {
	for _, part := range []string{`"machines":{"cp-1":null}`, `"operations":[null]`, `"backups":{"nightly":null}`, `"joins":{"1f":null}`} {
		t.Run(part, func(t *testing.T) {
			b := newBench(t, nil)
			other, err := statefile.NewSealer("another cluster", "another secret", "")
			require.NoError(t, err)
			data, err := statefile.EncodeRecord(other, "mallory/state.json", 1, statefile.NewNonce(), []byte(`{"schemaVersion":1,`+
				`"cluster":{"name":"mallory","id":"","bundleFingerprint":""},"writer":{"id":"x","epoch":1},`+part+`}`))
			require.NoError(t, err)
			_, err = b.store.Put(t.Context(), "mallory/state.json", data, statefile.IfAbsent())
			require.NoError(t, err)
			var status reconcile.Status
			require.NoError(t, json.Unmarshal(b.get("/api/v1/status").Body.Bytes(), &status))
			require.Len(t, status.Clusters, 1, "who can write the store can't make a page of what no agent writes")
			require.Equal(t, "prod", status.Clusters[0].Name)
		})
	}
}

// trapStore panics over what it holds of a cluster.
type trapStore struct {
	statefile.Store
	key string
}

func (s *trapStore) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if key == s.key {
		panic("what stands in " + key + " is not understood")
	}
	return s.Store.Get(ctx, key, known)
}

func TestAClusterThatCannotBeReadForAFaultOfTheProgramTakesNoOtherWithIt(t *testing.T) {
	b := newBench(t, nil)
	for _, name := range []string{"old", "older"} {
		one := prod()
		one.Name, one.State.Cluster.Name = name, name
		b.put(one)
	}
	stored := newStored(&trapStore{b.store, "old/state.json"}, b.clock, b.storedFailed)
	stored.limit = time.Minute
	found := stored.get(t.Context(), nil, map[string]bool{"prod": true})
	require.Len(t, found, 1)
	require.Contains(t, found, "older")
	require.Contains(t, b.log.String(), "old/state.json is not understood")
}

// deadStore fails every call.
type deadStore struct {
	statefile.Store
	calls int
}

var errDead = errors.New("the store is down")

func (s *deadStore) Get(context.Context, string, string) (*statefile.Object, error) {
	s.calls++
	return nil, errDead
}

func (s *deadStore) List(context.Context, string, string, func(statefile.ObjectInfo) error) error {
	s.calls++
	return errDead
}

func TestAStoreThatIsDownTakesNoPageWithIt(t *testing.T) {
	b := newBench(t, nil)
	dead := &deadStore{Store: b.store}
	blocked := prod()
	blocked.Blocked, blocked.Ready = true, statefile.Condition{Reason: "StateUnavailable", Message: "nothing is done for prod: the store is down"}
	b.agent.report = working(blocked)
	b.agent.report.Leases[0].Problem = "the store is down"
	b.sources.Store(&sources{agent: b.agent, git: b.sources.Load().git, stored: newStored(dead, b.clock, b.storedFailed)})
	for range 50 {
		page := b.get("/").Body.String()
		require.Contains(t, page, "StateUnavailable")
		require.Contains(t, page, "cp-1", "what the agent knew last is shown")
	}
	require.LessOrEqual(t, dead.calls, 3, "a store that is down is not asked for each page")
	require.Equal(t, "state: the store is down\n", b.get(pathReady).Body.String())
}

// heldStore answers no read before it is let go.
type heldStore struct {
	statefile.Store
	let chan struct{}
}

func (s *heldStore) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	select {
	case <-s.let:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.Store.Get(ctx, key, known)
}

func TestAStoreThatIsSlowerThanAPageWaitsIsShownByTheNextPage(t *testing.T) {
	b := newBench(t, nil)
	b.put(prod())
	old := prod()
	old.Name, old.State.Cluster.Name = "old", "old"
	b.put(old)
	held := &heldStore{Store: b.store, let: make(chan struct{})}
	slow := newStored(held, b.clock, b.storedFailed)
	slow.limit = time.Millisecond
	require.Empty(t, slow.get(t.Context(), []string{"prod"}, nil))
	close(held.let)
	slow.limit = time.Minute
	found := slow.get(t.Context(), []string{"prod"}, nil)
	require.Len(t, found, 2, "those that Git names, and those that only the state knows")
	require.Len(t, slow.get(t.Context(), nil, map[string]bool{"prod": true}), 1, "what the agent itself works for it knows better")
}

func TestClustersThatCouldNotBeListedAreListedWithTheNextReading(t *testing.T) {
	b := newBench(t, nil)
	old := prod()
	old.Name, old.State.Cluster.Name = "old", "old"
	b.put(old)
	lists, fault := 0, storetest.Unavailable
	stored := newStored(storetest.NewFaulty(b.store, func(call storetest.Call) storetest.Fault {
		if call.Op != storetest.List {
			return storetest.None
		}
		lists++
		return fault
	}), b.clock, b.storedFailed)
	stored.limit = time.Minute
	require.Empty(t, stored.get(t.Context(), nil, nil))
	fault = storetest.None
	require.Empty(t, stored.get(t.Context(), nil, nil), "however many look, the store is read at most once in a while")
	require.Equal(t, 1, lists)
	b.clock.Step(storedAge)
	require.Len(t, stored.get(t.Context(), nil, nil), 1)
	asked := lists
	b.clock.Step(storedAge)
	require.Len(t, stored.get(t.Context(), nil, nil), 1)
	require.Equal(t, asked, lists, "a list that is there serves for longer")
}

func TestReadinessSaysWhyNot(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*bench)
		want   string
	}{
		"all is well": {func(*bench) {}, "ok\n"},
		"the repository can't be read": {func(b *bench) { b.agent.report.Git = "connection refused" },
			"git: the repository can't be read: connection refused\n"},
		"the repository was not read yet": {func(b *bench) { b.agent.report.Newest = nil }, "git: the repository was not read yet\n"},
		"the state can't be reached":      {func(b *bench) { b.agent.report.Leases[0].Problem = "access denied" }, "state: access denied\n"},
		"whose the lease is isn't known": {func(b *bench) { b.agent.report.Leases[0] = statefile.LeaseStatus{} },
			"leases: whose the lease of shard 0 is isn't known yet\n"},
		"two things": {func(b *bench) { b.agent.report.Git, b.agent.report.Leases[0].Problem = "refused", "denied" },
			"git: the repository can't be read: refused\nstate: denied\n"},
		"the agent is starting":          {func(b *bench) { b.sources.Store(nil) }, "state: the agent is starting\n"},
		"the agent waits for its state":  {func(b *bench) { b.sources.Store(nil); b.Waiting("the agent waits for its state: \x1b[31mno") }, "state: the agent waits for its state: no\n"},
		"a cluster that isn't Ready":     {func(b *bench) { b.agent.report.Clusters[0].Ready.Reason = "EtcdUnhealthy" }, "ok\n"},
		"control characters in a reason": {func(b *bench) { b.agent.report.Git = "a\x1b[2Jb\nc" }, "git: the repository can't be read: ab c\n"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			c.change(b)
			answer := b.get(pathReady)
			require.Equal(t, c.want, answer.Body.String())
			require.Equal(t, c.want == "ok\n", answer.Code == http.StatusOK)
			require.Equal(t, "ok\n", b.get(pathLive).Body.String(), "the process lives whatever it can't reach")
		})
	}
}

func TestTheAgentsOwnStatus(t *testing.T) {
	b := newBench(t, nil)
	var status AgentStatus
	require.NoError(t, json.Unmarshal(b.get("/api/v1/agent").Body.Bytes(), &status))
	require.Equal(t, AgentStatus{Version: "v1.2.3", Ready: true, Problems: []string{},
		Git:    GitStatus{Commit: "7d1e5ca0c0ffee", Subject: "More workers", Author: "Alice", LastPoll: noon.Add(-20 * time.Second).Format(time.RFC3339)},
		Leases: []LeaseStatus{{Held: true, Holder: "a3f1"}}}, status)
	b.sources.Store(nil)
	require.JSONEq(t, `{"version":"v1.2.3","ready":false,"problems":["the agent is starting"],"git":{"commit":"","subject":"","author":"","lastPoll":"","problem":""},"leases":[]}`,
		b.get("/api/v1/agent").Body.String())
	require.JSONEq(t, `{"clusters":[]}`, b.get("/api/v1/status").Body.String())
}

func TestOddPathsAreAnsweredWithASentence(t *testing.T) {
	b := newBench(t, nil)
	for _, path := range []string{"/nowhere", "/api", "/api/v1", "/api/v1/", "/api/v1/clusters", "/api/v1/clusters/", "/api/v1/clusters/nope",
		"/api/v1/clusters/%2e%2e", "/api/v1/clusters/..%2f..%2fetc%2fpasswd", "/api/v1/clusters/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
		"/api/v1/clusters/a%00b", "/api/v1/clusters/%1b%5b31m", "/api/v1/clusters/%ff%fe", "/api/v1/clusters/prod/machines", "/api/v1/clusters/prod/machines/",
		"/api/v1/clusters/prod/machines/nope", "/api/v1/clusters/prod/machines/%3Cimg%20src=x%20onerror=alert(1)%3E", "/api/v1/clusters/PROD",
		"/api/v1/clusters/" + strings.Repeat("x", 8000), "/clusters/nope", "/clusters/", "/clusters/%3Cscript%3E", "/metrics/", "/healthz/", "/hooks",
		"/style.css/x", "/page.html", "/.git/config", "/debug/pprof/", "/%2e%2e/%2e%2e/etc/passwd"} {
		answer := b.get(path)
		require.Equal(t, http.StatusNotFound, answer.Code, path)
		kind := answer.Header().Get("Content-Type")
		if strings.HasPrefix(path, "/api/") {
			require.Equal(t, "application/json", kind)
			var body apiError
			require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &body), path)
			require.NotEmpty(t, body.Error)
		} else {
			require.Equal(t, "text/plain; charset=utf-8", kind, path)
		}
		require.NotContains(t, answer.Body.String(), "\x1b")
		require.NotContains(t, answer.Body.String(), "\x00")
		require.Less(t, answer.Body.Len(), 500, path)
	}
	for path, to := range map[string]string{"//evil.example/..": "/", "/clusters/../api/v1/status": "/api/v1/status"} {
		answer := b.get(path)
		require.Contains(t, []int{http.StatusMovedPermanently, http.StatusTemporaryRedirect}, answer.Code, path)
		require.Equal(t, to, answer.Header().Get("Location"), "a redirect never leaves this server")
	}
}
