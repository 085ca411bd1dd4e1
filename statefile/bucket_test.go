package statefile_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
)

func openBucket(t *testing.T, server *s3gateway.Child, change ...func(*statefile.S3Config)) *statefile.Bucket {
	t.Helper()
	config := s3ConfigOf(server)
	for _, c := range change {
		c(&config)
	}
	bucket, err := statefile.OpenBucket(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bucket.Close()) })
	bucket.SetPart(5 << 20) // the least that S3 takes for a part that isn't the last
	return bucket
}

func randomBytes(n int) []byte {
	random := rand.NewChaCha8([32]byte{1})
	data := make([]byte, n)
	_, _ = random.Read(data)
	return data
}

func section(data []byte) *io.SectionReader {
	return io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data)))
}

func fetch(t *testing.T, bucket *statefile.Bucket, key string) []byte {
	t.Helper()
	body, stat, err := bucket.Download(t.Context(), key)
	require.NoError(t, err)
	defer func() { require.NoError(t, body.Close()) }()
	data, err := io.ReadAll(body)
	require.NoError(t, err)
	require.EqualValues(t, len(data), stat.Size)
	return data
}

func TestAnObjectOfAnySizeComesBackAsItWasSent(t *testing.T) {
	bucket := openBucket(t, startS3(t))
	for name, size := range map[string]int{"empty": 0, "small": 1000, "one-part": 5 << 20, "parts": 12<<20 + 7} {
		data := randomBytes(size)
		stat, err := bucket.Upload(t.Context(), name, section(data), map[string]string{"etcd-revision": "42"})
		require.NoError(t, err, name)
		require.EqualValues(t, size, stat.Size)
		require.Equal(t, "42", stat.Metadata["etcd-revision"])
		require.Equal(t, data, fetch(t, bucket, name), name)
	}
	_, err := bucket.Stat(t.Context(), "nothing")
	require.ErrorIs(t, err, statefile.ErrNotFound)
	_, _, err = bucket.Download(t.Context(), "nothing")
	require.ErrorIs(t, err, statefile.ErrNotFound)
}

func TestAnUploadNeverReplacesAnotherObject(t *testing.T) {
	bucket := openBucket(t, startS3(t))
	for _, size := range []int{100, 11 << 20} {
		key := map[bool]string{true: "large", false: "small"}[size > 1000]
		first, second := randomBytes(size), bytes.Repeat([]byte{7}, size)
		_, err := bucket.Upload(t.Context(), key, section(first), nil)
		require.NoError(t, err)
		_, err = bucket.Upload(t.Context(), key, section(first), nil)
		require.NoError(t, err, "the same again is what is there")
		_, err = bucket.Upload(t.Context(), key, section(second), nil)
		require.ErrorIs(t, err, statefile.ErrConflict)
		require.Equal(t, first, fetch(t, bucket, key))
	}
}

func TestAnUploadThroughABadConnectionIsDoneOnce(t *testing.T) {
	server := startS3(t)
	box := startMiddlebox(t, server)
	small, large := randomBytes(1000), randomBytes(11<<20)
	for name, spoil := range map[string]spoiled{"refused with 503": refuse503, "done and answered with 503": effectThen503,
		"done and cut off": effectThenHangUp, "cut off": hangUp, "too many requests": refuse429} {
		for _, data := range [][]byte{small, large} {
			for nth := 1; nth <= 5; nth++ { // begin, three parts, complete
				if len(data) == len(small) && nth > 1 {
					break
				}
				bucket := openBucket(t, server, through(box))
				changing := 0
				box.expect(func(method string, _ int) spoiled {
					if method == http.MethodPut || method == http.MethodPost {
						if changing++; changing == nth {
							return spoil
						}
					}
					return pass
				})
				key := fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(name, " ", "-"), nth, len(data))
				_, err := bucket.Upload(t.Context(), key, section(data), nil)
				require.NoError(t, err, "%s, request %d", name, nth)
				box.expect(nil)
				require.Equal(t, data, fetch(t, bucket, key))
			}
		}
	}
}

func TestAnUploadThatIsGivenUpLeavesNothing(t *testing.T) {
	server := startS3(t)
	box := startMiddlebox(t, server)
	bucket := openBucket(t, server, through(box))
	ctx, cancel := context.WithCancel(t.Context())
	box.expect(func(method string, n int) spoiled {
		if method == http.MethodPut && n == 2 {
			cancel()
			return hangUp
		}
		return pass
	})
	_, err := bucket.Upload(ctx, "large", section(randomBytes(11<<20)), nil)
	require.Error(t, err)
	box.expect(nil)
	require.NoError(t, bucket.List(t.Context(), "", "", func(o statefile.ObjectInfo) error {
		require.NotEqual(t, "large", o.Key)
		return nil
	}))
	_, err = bucket.Upload(t.Context(), "large", section(randomBytes(11<<20)), nil)
	require.NoError(t, err)
}

func TestADownloadGoesOnWhereItBrokeOff(t *testing.T) {
	server := startS3(t)
	box := startMiddlebox(t, server)
	bucket := openBucket(t, server, through(box))
	data := randomBytes(3 << 20)
	_, err := bucket.Upload(t.Context(), "a", section(data), nil)
	require.NoError(t, err)
	box.expect(func(method string, n int) spoiled {
		if method == http.MethodGet && n < 4 {
			return cutShort
		}
		return pass
	})
	require.Equal(t, data, fetch(t, bucket, "a"))
	require.Equal(t, 4, box.count(http.MethodGet))

	box.expect(func(method string, _ int) spoiled {
		if method == http.MethodGet {
			return refuse503
		}
		return pass
	})
	_, _, err = bucket.Download(t.Context(), "a")
	require.ErrorIs(t, err, statefile.ErrUnavailable)
}

func TestADownloadNeverMixesTwoObjects(t *testing.T) {
	server := startS3(t)
	box := startMiddlebox(t, server)
	bucket := openBucket(t, server, through(box))
	_, err := bucket.Upload(t.Context(), "a", section(randomBytes(3<<20)), nil)
	require.NoError(t, err)
	box.expect(func(method string, n int) spoiled {
		if method == http.MethodGet && n == 1 {
			return cutShort
		}
		return pass
	})
	body, _, err := bucket.Download(t.Context(), "a")
	require.NoError(t, err)
	defer func() { require.NoError(t, body.Close()) }()
	_, err = io.ReadFull(body, make([]byte, 1000))
	require.NoError(t, err)
	require.NoError(t, bucket.Delete(t.Context(), "a"))
	_, err = bucket.Upload(t.Context(), "a", section(bytes.Repeat([]byte{9}, 3<<20)), nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, body)
	require.ErrorIs(t, err, statefile.ErrConflict)
}

func TestRemovingIsDoneOnceAndMoreOftenIsNoError(t *testing.T) {
	bucket := openBucket(t, startS3(t))
	_, err := bucket.Upload(t.Context(), "a", section([]byte("x")), nil)
	require.NoError(t, err)
	require.NoError(t, bucket.Remove(t.Context(), "a"))
	require.NoError(t, bucket.Remove(t.Context(), "a"))
	_, err = bucket.Stat(t.Context(), "a")
	require.ErrorIs(t, err, statefile.ErrNotFound)
}
