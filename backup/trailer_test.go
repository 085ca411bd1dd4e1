package backup

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// SnapshotOf puts the trailer behind a body, as Talos streams it.
func SnapshotOf(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(bytes.Clone(body), sum[:]...)
}

func TestOnlyAWholeSnapshotPasses(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	body := make([]byte, 16*pageAlign)
	for n := range body {
		body[n] = byte(random.Uint32())
	}
	whole := SnapshotOf(body)
	size, err := CheckTrailer(bytes.NewReader(whole))
	require.NoError(t, err)
	require.EqualValues(t, len(whole), size)
	_, err = CheckTrailer(iotest.OneByteReader(bytes.NewReader(whole)))
	require.NoError(t, err)
	_, err = CheckTrailer(iotest.HalfReader(bytes.NewReader(whole)))
	require.NoError(t, err)
	for _, cut := range []int{0, 1, 31, 32, 33, len(body), len(whole) - 1, len(whole) - pageAlign} {
		_, err := CheckTrailer(bytes.NewReader(whole[:cut]))
		require.ErrorIs(t, err, ErrTorn, "cut at %d", cut)
	}
	for _, at := range []int{0, len(body) - 1, len(body), len(whole) - 1} {
		flipped := bytes.Clone(whole)
		flipped[at] ^= 0x80
		_, err := CheckTrailer(bytes.NewReader(flipped))
		require.ErrorIs(t, err, ErrTorn, "flipped at %d", at)
	}
	odd := SnapshotOf(body[:len(body)-7])
	_, err = CheckTrailer(bytes.NewReader(odd))
	require.ErrorIs(t, err, ErrTorn, "its length can't be that of a database")
}

func TestHowAStreamIsCutIntoPiecesDoesNotMatter(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	whole := SnapshotOf(make([]byte, 4*pageAlign))
	for range 500 {
		check := newTrailer()
		for rest := whole; len(rest) > 0; {
			n := min(1+random.IntN(70), len(rest))
			_, _ = check.Write(rest[:n])
			rest = rest[n:]
		}
		require.NoError(t, check.check())
	}
}
