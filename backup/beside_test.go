package backup

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatIsWrittenBesideIsTheSameBytesInTheSameOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var got bytes.Buffer
		want := sha256.New()
		writer := beside(&got)
		total := 0
		for range random.IntN(20) {
			piece := make([]byte, random.IntN(3*besideBuffer))
			for n := range piece {
				piece[n] = byte(random.Uint32())
			}
			want.Write(piece)
			n, err := writer.Write(piece)
			require.NoError(t, err)
			require.Equal(t, len(piece), n)
			total += n
			clear(piece) // the caller uses it again
		}
		writer.wait()
		writer.wait()
		require.Equal(t, total, got.Len())
		sum := sha256.Sum256(got.Bytes())
		require.Equal(t, want.Sum(nil), sum[:])
	}
}
