package statefile_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

func TestAStoreThatHonoursConditionsIsProved(t *testing.T) {
	server := startS3(t)
	folder, err := statefile.OpenFolder(t.TempDir(), statefile.FolderOptions{Agent: true})
	require.NoError(t, err)
	for name, store := range map[string]statefile.Store{"memory": storetest.NewMemory(), "folder": folder, "bucket": openS3(t, server)} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				result, err := statefile.Probe(t.Context(), store)
				require.NoError(t, err)
				require.True(t, result.Conditional)
				require.Empty(t, result.Missing)
				require.WithinDuration(t, time.Now(), result.StoreTime, time.Minute)
				require.WithinDuration(t, time.Now(), result.LocalTime, time.Minute)
			}
			var keys []string
			require.NoError(t, store.List(t.Context(), "", "", func(info statefile.ObjectInfo) error {
				keys = append(keys, info.Key)
				return nil
			}))
			require.Equal(t, []string{"leases/probe.json"}, keys)
		})
	}
}

// partly honours some conditions and not others.
type partly struct {
	*storetest.Memory
	ignores func(key string, cond statefile.If) bool
}

func (s partly) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if s.ignores(key, cond) {
		cond = statefile.If{}
	}
	return s.Memory.Put(ctx, key, data, cond)
}

func TestAStoreThatIgnoresAConditionIsRefused(t *testing.T) {
	for name, ignores := range map[string]func(string, statefile.If) bool{
		"all of them":            func(string, statefile.If) bool { return true },
		"If-None-Match":          func(_ string, cond statefile.If) bool { return cond.Absent() },
		"If-Match":               func(_ string, cond statefile.If) bool { return cond.ETag() != "" },
		"If-Match on what isn't": func(key string, cond statefile.If) bool { return cond.ETag() != "" && key != "leases/probe.json" },
	} {
		t.Run(name, func(t *testing.T) {
			store := partly{storetest.NewMemory(), ignores}
			result, err := statefile.Probe(t.Context(), store)
			require.ErrorIs(t, err, statefile.ErrNoConditions)
			require.False(t, result.Conditional)
			require.Len(t, store.Snapshot(), 1, "it leaves nothing but the probe's own object")
		})
	}
}

// denying refuses some calls.
type denying struct {
	statefile.Store
	denied []storetest.Op
}

func (s denying) refuse(op storetest.Op) error {
	if slices.Contains(s.denied, op) {
		return fmt.Errorf("%s: %w", op, statefile.ErrPermission)
	}
	return nil
}

func (s denying) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if err := s.refuse(storetest.Get); err != nil {
		return nil, err
	}
	object, err := s.Store.Get(ctx, key, known)
	if err != nil && s.refuse(storetest.List) != nil { // as S3 does, so as not to tell what is there
		return nil, s.refuse(storetest.List)
	}
	return object, err
}

func (s denying) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if err := s.refuse(storetest.Put); err != nil {
		return "", err
	}
	return s.Store.Put(ctx, key, data, cond)
}

func (s denying) Delete(ctx context.Context, key string) error {
	if err := s.refuse(storetest.Delete); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}

func (s denying) List(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
	if err := s.refuse(storetest.List); err != nil {
		return err
	}
	return s.Store.List(ctx, prefix, after, fn)
}

func TestTheMissingPermissionIsNamed(t *testing.T) {
	for _, test := range []struct {
		denied  []storetest.Op
		missing []string
		refused bool
	}{
		{[]storetest.Op{storetest.List}, []string{"list"}, true},
		{[]storetest.Op{storetest.Put}, []string{"write"}, true},
		{[]storetest.Op{storetest.Get}, []string{"read"}, true},
		{[]storetest.Op{storetest.Delete}, []string{"delete"}, false},
		{[]storetest.Op{storetest.List, storetest.Put}, []string{"list", "write"}, true},
		{[]storetest.Op{storetest.Put, storetest.Get}, []string{"write", "read"}, true},
	} {
		t.Run(fmt.Sprint(test.denied), func(t *testing.T) {
			result, err := statefile.Probe(t.Context(), denying{storetest.NewMemory(), test.denied})
			require.Equal(t, test.missing, result.Missing)
			if !test.refused {
				require.NoError(t, err)
				require.True(t, result.Conditional)
				return
			}
			require.ErrorIs(t, err, statefile.ErrPermission)
			for _, missing := range test.missing {
				require.ErrorContains(t, err, "to "+missing)
			}
		})
	}
}

func TestABucketThatIsReadOnlyIsFound(t *testing.T) {
	server := startS3(t, func(opts *s3gateway.Options) { opts.ReadOnly = true })
	result, err := statefile.Probe(t.Context(), openS3(t, server))
	require.ErrorIs(t, err, statefile.ErrPermission)
	require.Contains(t, result.Missing, "write")
	require.NotContains(t, result.Missing, "list")
}

func TestAgentsThatProbeAtTheSameTimeDoNotDisturbEachOther(t *testing.T) {
	store := storetest.NewMemory()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 10 {
				if _, err := statefile.Probe(t.Context(), store); err != nil {
					t.Errorf("probing: %v", err)
				}
			}
		})
	}
	group.Wait()
}
