package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
)

func testPassphrase(t *testing.T) Passphrase {
	t.Helper()
	p, err := NewPassphrase("example-cluster-id", "example-cluster-secret")
	require.NoError(t, err)
	return p
}

func sealAll(t *testing.T, p Passphrase, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := Seal(&out, p)
	require.NoError(t, err)
	_, err = w.Write(plain)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func openAll(sealed io.Reader, p Passphrase) ([]byte, error) {
	r, err := Open(sealed, p)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func TestThePassphraseIsComputedFromTheBundleAlone(t *testing.T) {
	// python3: hmac over the two steps of RFC 5869, see docs/backups.md
	require.Equal(t, "21d6f3a18a5e1dc9f44a60e2b79f96549c6ec51c4034c593d9c7bef407fd21b0", testPassphrase(t).Secret())
	_, err := NewPassphrase("", "x")
	require.ErrorContains(t, err, "lacks cluster.id or cluster.secret")
	require.NotContains(t, fmt.Sprintf("%v %s %+v %#v", testPassphrase(t), testPassphrase(t), testPassphrase(t), testPassphrase(t)), "21d6f3")
}

func TestWhatIsSealedOpensAndNothingElse(t *testing.T) {
	plain := bytes.Repeat([]byte("etcd"), 50_000)
	sealed := sealAll(t, testPassphrase(t), plain)
	got, err := openAll(bytes.NewReader(sealed), testPassphrase(t))
	require.NoError(t, err)
	require.Equal(t, plain, got)

	other, err := NewPassphrase("example-cluster-id", "another-secret")
	require.NoError(t, err)
	_, err = openAll(bytes.NewReader(sealed), other)
	require.ErrorIs(t, err, ErrOtherBundle)

	for _, cut := range []int{1, 21, 30, 150, len(sealed) / 2, len(sealed) - 1, len(sealed) - 16} {
		_, err := openAll(bytes.NewReader(sealed[:cut]), testPassphrase(t))
		require.ErrorIs(t, err, ErrDamaged, "cut at %d", cut)
	}
	for _, at := range []int{len(sealed) - 1, len(sealed) / 2, 260, 70_000} {
		flipped := bytes.Clone(sealed)
		flipped[at] ^= 1
		_, err := openAll(bytes.NewReader(flipped), testPassphrase(t))
		require.ErrorIs(t, err, ErrDamaged, "flipped at %d", at)
	}
	_, err = openAll(io.MultiReader(bytes.NewReader(sealed), strings.NewReader("x")), testPassphrase(t))
	require.ErrorIs(t, err, ErrDamaged, "something follows")
	for _, text := range []string{"", "hello, this is a text", "-----BEGIN AGE ENCRYPTED FILE-----\n"} {
		_, err := openAll(strings.NewReader(text), testPassphrase(t))
		require.Error(t, err, "%q", text)
	}
	broken := errors.New("the connection was reset")
	_, err = openAll(io.MultiReader(bytes.NewReader(sealed[:1000]), iotest.ErrReader(broken)), testPassphrase(t))
	require.ErrorIs(t, err, broken, "what can't be read isn't called damaged")
}

func TestAHeavierWorkFactorIsRefusedBeforeAnyWorkIsDone(t *testing.T) {
	for _, factor := range []int{11, 15} {
		recipient, err := age.NewScryptRecipient(testPassphrase(t).Secret())
		require.NoError(t, err)
		recipient.SetWorkFactor(factor)
		var out bytes.Buffer
		w, err := age.Encrypt(&out, recipient)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		_, err = Open(&out, testPassphrase(t))
		require.ErrorIs(t, err, ErrHeavier)
	}
}
