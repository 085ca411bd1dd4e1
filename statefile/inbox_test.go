package statefile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

func TestAnOperationInTheInboxIsReadAsItWasPut(t *testing.T) {
	ctx, store := context.Background(), storetest.NewMemory()
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "b-reboot", []byte("file b"), []byte("signature b")))
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "a-reboot", []byte("file a"), []byte("signature a")))
	require.NoError(t, statefile.PutInbox(ctx, store, "staging", "c-reboot", []byte("file c"), []byte("signature c")))

	files, more, err := statefile.ReadInbox(ctx, store, "prod")
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, files, 2)
	require.Equal(t, "a-reboot", files[0].Name)
	require.Equal(t, "prod/inbox/b-reboot.yaml", files[1].Key)
	require.Equal(t, "file b", string(files[1].Data))
	require.Equal(t, "signature b", string(files[1].Signature))
}

func TestANameInTheInboxIsTakenOnce(t *testing.T) {
	ctx, store := context.Background(), storetest.NewMemory()
	put := func(data, signature string) error {
		return statefile.PutInbox(ctx, store, "prod", "reboot", []byte(data), []byte(signature))
	}
	require.NoError(t, put("one", "signed"))
	require.NoError(t, put("one", "signed"), "the same again is as good")
	require.ErrorIs(t, put("two", "signed too"), statefile.ErrInInbox)
	require.NoError(t, put("one", "signed by another"), "it is there")
	files, _, err := statefile.ReadInbox(ctx, store, "prod")
	require.NoError(t, err)
	require.Equal(t, "one", string(files[0].Data))
	require.Equal(t, "signed", string(files[0].Signature), "nothing was replaced")
}

func TestAFileIsNeverSeenInTheInboxBeforeItsSignature(t *testing.T) {
	ctx := context.Background()
	store := &stopping{Memory: storetest.NewMemory(), left: 1}
	require.Error(t, statefile.PutInbox(ctx, store, "prod", "reboot", []byte("file"), []byte("signature")))
	files, _, err := statefile.ReadInbox(ctx, store, "prod")
	require.NoError(t, err)
	require.Empty(t, files)
	store.left = 3
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "reboot", []byte("file"), []byte("signature")), "it is taken up again")
}

// stopping is a store that dies after some writes.
type stopping struct {
	*storetest.Memory
	left int
}

func (s *stopping) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if s.left == 0 {
		return "", statefile.ErrUnavailable
	}
	s.left--
	return s.Memory.Put(ctx, key, data, cond)
}

func TestWhoCanWriteTheBucketCannotKeepTheAgentReading(t *testing.T) {
	ctx, store := context.Background(), storetest.NewMemory()
	put := func(key, data string) {
		_, err := store.Put(ctx, key, []byte(data), statefile.If{})
		require.NoError(t, err)
	}
	put("prod/inbox/y-oldest.yaml", "x")
	for n := range 600 {
		put(fmt.Sprintf("prod/inbox/f%04d.yaml", n), "x")
	}
	put("prod/inbox/a-large.yaml", strings.Repeat("x", 300<<10))
	put("prod/inbox/deep/er.yaml", "x")
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "z-newest", []byte("file"), []byte("signature")))
	files, more, err := statefile.ReadInbox(ctx, store, "prod")
	require.NoError(t, err)
	require.True(t, more)
	require.Len(t, files, 500)
	require.Equal(t, "a-large", files[0].Name)
	require.Contains(t, files[0].Problem, "at most")
	require.Empty(t, files[0].Data)
	require.Empty(t, files[1].Signature)
	require.Equal(t, "f0599", files[498].Name, "what is left out is what was put there first")
	require.Equal(t, "z-newest", files[499].Name)
	require.Equal(t, "signature", string(files[499].Signature))
}

// One object that nobody can read keeps nobody from reading the others, and no more is held in memory than is of use.
func TestASignatureThatIsTooLargeIsTheProblemOfItsFileAlone(t *testing.T) {
	ctx, store := context.Background(), &heavy{Memory: storetest.NewMemory()}
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "reboot", []byte("file"), []byte("signature")))
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "swollen", []byte("file"), []byte("signature")))
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "thick", []byte("file"), make([]byte, 100<<10)))
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "wide", make([]byte, 100<<10), nil))
	files, _, err := statefile.ReadInbox(ctx, store, "prod")
	require.NoError(t, err)
	problems, read := map[string]string{}, 0
	for _, file := range files {
		problems[file.Name] = file.Problem
		read += len(file.Data) + len(file.Signature)
	}
	require.Equal(t, map[string]string{
		"reboot":  "",
		"swollen": "its signature has 16777217 bytes, and at most 65536 are read",
		"thick":   "its signature has 102400 bytes, and at most 65536 are read",
		"wide":    "it has 102400 bytes, and at most 65536 are read",
	}, problems)
	require.Less(t, read, 1<<10)
}

// heavy is a store in which the signature of one operation has grown since it was listed.
type heavy struct{ *storetest.Memory }

func (h *heavy) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if key == "prod/inbox/swollen.yaml.sig" {
		return nil, statefile.ErrTooLarge
	}
	return h.Memory.Get(ctx, key, known)
}

func TestNamesThatAreNoLabelsDontReachTheInbox(t *testing.T) {
	for _, name := range []string{"", "../state", "a/b", "UPPER", ".hidden", strings.Repeat("x", 64), "a.yaml", "a\n"} {
		require.Error(t, statefile.PutInbox(context.Background(), storetest.NewMemory(), "prod", name, []byte("x"), []byte("y")), name)
		require.Error(t, statefile.PutInbox(context.Background(), storetest.NewMemory(), name, "reboot", []byte("x"), []byte("y")), name)
	}
}
