package recovery

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/statefile"
)

// lost gives control planes in every shape that a total loss leaves: one in maintenance mode, one configured and empty, one with old data.
func lost() *world {
	w := newWorld("cp-1", "cp-2", "cp-3")
	w.machines["cp-2"].maintenance = true
	w.runOld("gone-1", "gone-2", "cp-3")
	return w
}

func TestAClusterComesBackFromNothing(t *testing.T) {
	for name, w := range map[string]*world{
		"three that are configured and empty": newWorld("cp-1", "cp-2", "cp-3"),
		"one":                                 newWorld("cp-1"),
		"five":                                newWorld("cp-1", "cp-2", "cp-3", "cp-4", "cp-5"),
		"every shape":                         lost(),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, w, "cp-3")
			m, _, err := s.run(0)
			require.NoError(t, err, s.said)
			s.requireWhole(m)
			require.Equal(t, 1, w.count("recover"))
			require.Equal(t, 1, w.count("upload"))
			require.Contains(t, m.Recovered.Verified, "42 keys")
		})
	}
}

func TestKilledAtEveryWriteAndEveryCallTheNextRunEndsItRight(t *testing.T) {
	_, points, err := newStage(t, lost(), "cp-3").run(0)
	require.NoError(t, err)
	require.Greater(t, points, 30)
	crashmatrix.Of(t, "recovery of a lost etcd", crashmatrix.Modelled).Each(t, points, points, 0, nil, func(t *testing.T, n int) {
		s := newStage(t, lost(), "cp-3")
		_, _, err := s.run(n + 1)
		if err == nil { // it died with its last write done
			require.Equal(t, points, n+1)
		}
		m, _, err := s.run(0)
		require.NoError(t, err, s.said)
		s.requireWhole(m)
		require.Equal(t, 1, s.count("recover"), s.accepted)
		require.Equal(t, 1, s.count("reset"), s.accepted)
		require.Equal(t, 1, s.count("config"), s.accepted)
		require.LessOrEqual(t, s.count("upload"), 2, s.accepted)
	})
}

func TestKilledTwiceTheThirdRunEndsItRight(t *testing.T) {
	count := crashmatrix.Of(t, "recovery of a lost etcd, two deaths", crashmatrix.Modelled)
	for first := 3; first < 40; first += 5 {
		for second := 1; second < 30; second += 3 {
			count.Killed(0, 2)
			s := newStage(t, lost(), "cp-3")
			_, _, _ = s.run(first)
			_, _, _ = s.run(second)
			m, _, err := s.run(0)
			require.NoError(t, err, "killed at %d and %d: %s", first, second, s.said)
			s.requireWhole(m)
			require.Equal(t, 1, s.count("recover"), "killed at %d and %d: %s", first, second, s.accepted)
		}
	}
}

// TestProcessesThatDieBeforeTheirCallsDoNotUseUpTheTries kills more processes before one call than it is ever made: that says nothing about the
// machine.
func TestProcessesThatDieBeforeTheirCallsDoNotUseUpTheTries(t *testing.T) {
	for call, begin := range map[string]func(t *testing.T) *stage{
		"recover": func(t *testing.T) *stage { return newStage(t, lost(), "cp-3") },
		"leave":   working,
	} {
		t.Run(call, func(t *testing.T) {
			s := begin(t)
			s.resumed = true // so many deaths take hours
			for n := range 3 * maxLeaves {
				r, p, ctx := s.process(0)
				p.before = call
				require.NoError(t, s.begin(ctx, r))
				_, err := r.Go(ctx)
				require.ErrorIs(t, err, context.Canceled, "process %d: %s", n, s.said)
			}
			require.Zero(t, s.count(call))
			m, _, err := s.run(0)
			require.NoError(t, err, s.said)
			s.requireWhole(m)
			require.Equal(t, 1, s.count("recover"), s.accepted)
		})
	}
}

func TestWhatGoesWrongOnTheWayIsGotOver(t *testing.T) {
	for name, test := range map[string]struct {
		spoil               func(w *world)
		recoveries, uploads int
		resets              int
	}{
		"a reset is dropped":                   {func(w *world) { w.machines["cp-3"].dropResets = 1 }, 1, 1, 2},
		"a reset takes long":                   {func(w *world) { w.machines["cp-3"].slow = 100 }, 1, 1, 1},
		"a recovery is dropped":                {func(w *world) { w.machines["cp-1"].dropRecoveries = 1 }, 2, 2, 1},
		"a recovery is refused for a while":    {func(w *world) { w.machines["cp-1"].refuseRecoveries = 20 }, 1, 1, 1},
		"uploads break":                        {func(w *world) { w.machines["cp-1"].breakUploads = 5 }, 1, 1, 1},
		"an upload is damaged":                 {func(w *world) { w.machines["cp-1"].damageUploads = 1 }, 2, 2, 2},
		"an upload is gone when it is needed":  {func(w *world) { w.machines["cp-1"].tearUploads = 1 }, 2, 2, 1},
		"one has given up joining":             {func(w *world) { w.machines["cp-2"].maintenance = false; w.machines["cp-2"].serve(w, "Failed", "join") }, 1, 1, 1},
		"the target has given up joining, too": {func(w *world) { w.machines["cp-1"].serve(w, "Failed", "join") }, 1, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := lost()
			test.spoil(w)
			s := newStage(t, w, "cp-3")
			m, _, err := s.run(0)
			require.NoError(t, err, s.said)
			s.requireWhole(m)
			require.Equal(t, test.recoveries, s.count("recover"), s.accepted)
			require.Equal(t, test.uploads, s.count("upload"), s.accepted)
			require.Equal(t, test.resets, s.count("reset"), s.accepted)
		})
	}
}

func TestWhatAPersonMustLookAtStopsIt(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(w *world, s *stage)
		says  string
	}{
		"data that nobody said may be lost":   {func(_ *world, s *stage) { s.wipe = nil }, "cp-3 runs an etcd with data (member 48); if that may be lost, name it: --wipe cp-3"},
		"a snapshot that never comes whole":   {func(w *world, _ *stage) { w.machines["cp-1"].damageUploads = 99 }, "expected sha256 [1], got [2]"},
		"a target that never keeps an upload": {func(w *world, _ *stage) { w.machines["cp-1"].tearUploads = 99 }, "no such file or directory"},
		"recoveries that never arrive":        {func(w *world, _ *stage) { w.machines["cp-1"].dropRecoveries = 99 }, "was told to recover 5 times"},
		"one that never comes back":           {func(w *world, _ *stage) { w.machines["cp-2"].off = true }, "cp-2 doesn't answer"},
		"one that never joins":                {func(w *world, _ *stage) { w.machines["cp-2"].stuck = true }, "cp-2 joins"},
		"a reset that never has an effect":    {func(w *world, _ *stage) { w.machines["cp-3"].dropResets = 99 }, "cp-3 was reset 5 times"},
		"another machine at that address":     {func(w *world, s *stage) { s.uuids(map[string]string{"cp-2": "another"}) }, "has the UUID"},
		"an etcd that has not what it had":    {func(w *world, _ *stage) { w.held.Keys = 41 }, "it began with 41 keys, and the snapshot has 42"},
	} {
		t.Run(name, func(t *testing.T) {
			w := lost()
			s := newStage(t, w, "cp-3")
			test.spoil(w, s)
			m, _, err := s.run(0)
			var stopped *StoppedError
			require.ErrorAs(t, err, &stopped, s.said)
			require.ErrorContains(t, err, test.says)
			require.NotEqual(t, PhaseDone, m.Phase)
		})
	}
}

// uuids has machines show other UUIDs than the marker's.
func (s *stage) uuids(shown map[string]string) {
	r, _, ctx := s.process(0)
	require.NoError(s.t, s.begin(ctx, r))
	for name, uuid := range shown {
		s.machines[name].uuid = uuid
	}
}

func TestOneMachineUnderTwoNamesIsToldNothing(t *testing.T) {
	w := newWorld("cp-1", "cp-2")
	w.runOld("cp-1", "cp-9")
	s := newStage(t, w, "cp-1", "cp-2")
	r, _, ctx := s.process(0)
	w.machines["cp-2"] = w.machines["cp-1"]
	w.machines["cp-1"].dropResets = 1
	require.NoError(t, s.begin(ctx, r))
	_, err := r.Go(ctx)
	var stopped *StoppedError
	require.ErrorAs(t, err, &stopped)
	require.ErrorContains(t, err, "cp-1 (cp-1) and cp-2 (cp-2) are one machine")
	require.Empty(t, w.accepted, "it was reset twice in one boot, and counted as two that had joined")
}

func TestTheAPIHavingCompactedSinceIsSaidAndFailsNothing(t *testing.T) {
	w := lost()
	w.held.Keys, w.held.Compacted = 3, 1_000_000_500
	s := newStage(t, w, "cp-3")
	m, _, err := s.run(0)
	require.NoError(t, err)
	require.Contains(t, m.Recovered.Verified, "not compared")
}

func TestAMachineThatRebootsAfterItRecoveredIsNotRecoveredAgain(t *testing.T) {
	w := newWorld("cp-1")
	s := newStage(t, w)
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for w.count("recover") == 0 {
		require.NoError(t, r.step(ctx))
	}
	w.machines["cp-1"].rebooted(w)
	m, err := r.Go(ctx)
	require.NoError(t, err)
	s.requireWhole(m)
	require.Equal(t, 1, w.count("recover"))
}

func TestAMachineThatRebootsBetweenUploadAndRecoveryIsGivenTheSnapshotAgain(t *testing.T) {
	w := newWorld("cp-1")
	s := newStage(t, w)
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for w.count("upload") == 0 {
		require.NoError(t, r.step(ctx))
	}
	w.machines["cp-1"].rebooted(w)
	m, err := r.Go(ctx)
	require.NoError(t, err)
	s.requireWhole(m)
	require.Equal(t, 2, w.count("upload"))
}

func TestOfTwoRunsTheOlderStops(t *testing.T) {
	s := newStage(t, lost(), "cp-3")
	older, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, older))
	require.NoError(t, older.step(ctx))
	newer, _, ctx2 := s.process(0)
	require.NoError(t, s.begin(ctx2, newer))
	_, err := older.Go(ctx)
	require.ErrorIs(t, err, ErrOtherDriver)
	m, err := newer.Go(ctx2)
	require.NoError(t, err)
	s.requireWhole(m)
}

func TestARunThatWasFrozenBetweenIntentAndCallSendsNothing(t *testing.T) {
	s := newStage(t, newWorld("cp-1"))
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	frozen := &frozenMarker{MarkerFile: r.Marker, clock: s.clock}
	r.Marker = frozen
	for s.count("upload") == 0 {
		frozen.freeze = s.count("upload") == 0 && len(r.marker.Intents) == 0
		require.NoError(t, r.step(ctx))
	}
	require.True(t, frozen.frozen)
	first := r.marker.Intents[0]
	require.Contains(t, first.Message, "not sent: writing its intent took")
	require.Equal(t, 1, s.count("upload"))
}

// frozenMarker is a store that keeps a process waiting for a minute once.
type frozenMarker struct {
	MarkerFile
	clock          turned
	freeze, frozen bool
}

func (m *frozenMarker) Swap(ctx context.Context, content json.RawMessage) error {
	err := m.MarkerFile.Swap(ctx, content)
	if m.freeze && !m.frozen && strings.Contains(string(content), `"action":"upload"`) {
		m.frozen = true
		m.clock.Step(time.Minute)
	}
	return err
}

func TestAStoreThatIsAwayForTenMinutesIsWaitedFor(t *testing.T) {
	s := newStage(t, lost(), "cp-3")
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	back := s.clock.Now().Add(10 * time.Minute)
	r.Marker = awayMarker{r.Marker, s.clock, back}
	m, err := r.Go(ctx)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	require.True(t, s.clock.Now().After(back))
	require.Equal(t, 1, s.count("recover"))
	require.Equal(t, 1, s.count("reset"))
}

// awayMarker is a store that can't be reached until a time.
type awayMarker struct {
	MarkerFile
	clock turned
	until time.Time
}

func (m awayMarker) away() error {
	if m.clock.Now().Before(m.until) {
		return statefile.ErrUnavailable
	}
	return nil
}

func (m awayMarker) Read(ctx context.Context) (json.RawMessage, error) {
	if err := m.away(); err != nil {
		return nil, err
	}
	return m.MarkerFile.Read(ctx)
}

func (m awayMarker) Swap(ctx context.Context, content json.RawMessage) error {
	if err := m.away(); err != nil {
		return err
	}
	return m.MarkerFile.Swap(ctx, content)
}

func TestAMarkerThatThisIchorDoesNotUnderstandIsNotGoneOnFrom(t *testing.T) {
	for name, content := range map[string]string{
		"of another kind":                    `{"schemaVersion":1,"kind":"live","phase":"wiping"}`,
		"of a newer ichor":                   `{"schemaVersion":2,"kind":"recover-cluster","phase":"done"}`,
		"of a newer ichor with a field more": `{"schemaVersion":1,"kind":"recover-cluster","phase":"done","guard":true}`,
		"no JSON object":                     `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeMarker(json.RawMessage(content))
			require.Error(t, err)
		})
	}
}

func TestTimeCountsFromTheMarkerAndAnewFromAResume(t *testing.T) {
	w := newWorld("cp-1", "cp-2", "cp-3")
	w.machines["cp-2"].off = true
	s := newStage(t, w)
	began := s.clock.Now()
	// No process lives long: each is killed after ten minutes, and the next one goes on.
	ten := func() error {
		r, _, ctx := s.process(0)
		require.NoError(t, s.begin(ctx, r))
		for until := s.clock.Now().Add(10 * time.Minute); s.clock.Now().Before(until); {
			if err := r.step(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	processes := 0
	var stopped *StoppedError
	for err := error(nil); ; processes++ {
		if err = ten(); err != nil {
			require.ErrorAs(t, err, &stopped)
			require.ErrorContains(t, err, "cp-2 doesn't answer")
			break
		}
	}
	require.InDelta(t, DefaultTiming().Recover, s.clock.Now().Sub(began), float64(time.Minute))
	require.Equal(t, 6, processes)

	// Another process wins nothing; a resume does, and what passed while it was paused doesn't count.
	require.ErrorAs(t, ten(), &stopped)
	s.clock.Step(5 * time.Hour)
	r, _, ctx := s.process(0)
	content, err := r.Marker.Read(ctx)
	require.NoError(t, err)
	m, err := DecodeMarker(content)
	require.NoError(t, err)
	m.Resume(s.clock.Now(), 1)
	require.NoError(t, r.Begin(ctx, m))
	require.NoError(t, r.step(ctx))
	w.machines["cp-2"].off = false
	ended, err := r.Go(ctx)
	require.NoError(t, err, s.said)
	s.requireWhole(ended)
	require.Equal(t, 1, ended.Pause)
}
