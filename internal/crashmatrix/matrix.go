// Package crashmatrix keeps the count of the tests that kill processes at every point of a procedure: how many points they found, how often
// something was killed, and what came of it.
//
// The points are never listed by hand: a test meets them, by standing between the process and the world. Run by `make crash` each test
// kills at all of them and its row goes into the table of docs/reliability.md. In an ordinary run a test takes a sample, drawn by lot with
// the seed that it names, and logs "n of N".
package crashmatrix

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// What the environment says: Full asks for all points, File is where each procedure's row goes, one line of JSON each.
const (
	envFull = "ICHOR_CRASH_FULL"
	envFile = "ICHOR_CRASH_MATRIX"
)

// Row is what is known of one procedure.
type Row struct {
	Procedure string `json:"procedure"`
	// World is what it was tried on.
	World string `json:"world"`
	// Points is how many were found, Killed at how many of them a process died, Runs how many processes died.
	Points int `json:"points"`
	Killed int `json:"killed"`
	Runs   int `json:"runs"`
	// Failures counts the runs that did not end right.
	Failures int `json:"failures"`
	// Seed is what the sample, and the pairs of deaths, were drawn with; zero where nothing was.
	Seed uint64 `json:"seed"`
}

// The worlds.
const (
	Modelled  = "modelled machines"
	Simulated = "simulated machines, a real etcd in each"
)

// Full says whether all points are wanted.
func Full() bool { return os.Getenv(envFull) != "" }

// Count counts for one procedure. It is no use to several tests at the same time.
type Count struct {
	t   testing.TB
	row Row
}

// Of begins to count for a test. When that ends its row is logged, and written where the environment says.
func Of(t testing.TB, procedure, world string) *Count {
	t.Helper()
	c := &Count{t: t, row: Row{Procedure: procedure, World: world}}
	t.Cleanup(func() {
		if t.Failed() && c.row.Failures == 0 {
			c.row.Failures = 1
		}
		t.Logf("%s: killed at %d of %d points, %d times (seed %d)", procedure, c.row.Killed, c.row.Points, c.row.Runs, c.row.Seed)
		if err := c.write(os.Getenv(envFile)); err != nil {
			t.Errorf("the row of %s could not be written: %s", procedure, err)
		}
	})
	return c
}

func (c *Count) write(file string) error {
	if file == "" || c.t.Skipped() {
		return nil
	}
	line, err := json.Marshal(c.row)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// Found says that there are so many points more.
func (c *Count) Found(points int) { c.row.Points += points }

// Killed says that processes died at so many points more, in so many runs.
func (c *Count) Killed(points, runs int) {
	c.row.Killed += points
	c.row.Runs += runs
}

// Random draws what isn't tried in full, the same with the same seed.
func (c *Count) Random(seed uint64) *rand.Rand {
	c.row.Seed = seed
	return rand.New(rand.NewPCG(seed, seed))
}

// Each kills at each of so many points, counted from zero, in a run of its own that is a subtest; in an ordinary run at a sample of at most
// so many, drawn with the seed. Points that must be among them are.
func (c *Count) Each(t *testing.T, points, most int, seed uint64, must []int, kill func(t *testing.T, point int)) {
	t.Helper()
	c.Found(points)
	chosen := sample(points, most, seed, must)
	if len(chosen) < points {
		c.row.Seed = seed
	}
	for _, point := range chosen {
		c.Killed(1, 1)
		if !t.Run(fmt.Sprintf("point %d of %d", point+1, points), func(t *testing.T) { kill(t, point) }) {
			c.row.Failures++
		}
	}
}

// Once gives what says of points, as they are met, whether a process dies there: at each that wasn't met before, once; in an ordinary run at
// one in so many of them, drawn by their names and the seed, and at those that must be among them. A point in met was met before, and those
// that are met are put into it. It counts.
func (c *Count) Once(met map[string]bool, oneIn int, seed uint64, must ...string) func(point string) bool {
	if !Full() {
		c.row.Seed = seed
	}
	return func(point string) bool {
		if met[point] {
			return false
		}
		met[point] = true
		c.Found(1)
		if !Full() && !slices.ContainsFunc(must, func(one string) bool { return strings.HasPrefix(point, one) }) && hash(point, seed)%uint64(oneIn) != 0 {
			return false
		}
		c.Killed(1, 1)
		return true
	}
}

func hash(point string, seed uint64) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", seed, point)
	return h.Sum64() >> 16 // its low bits are the last letter's
}

// sample gives the numbers of the points at which a test kills: all, or in an ordinary run at most so many of them.
func sample(points, most int, seed uint64, must []int) []int {
	all := rand.New(rand.NewPCG(seed, seed)).Perm(points)
	if !Full() && most < points {
		all = all[:most]
		for _, point := range must {
			if !slices.Contains(all, point) {
				all = append(all, point)
			}
		}
	}
	slices.Sort(all)
	return all
}
