package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// broken is a store that breaks a promise: in the calls that are set, and in no other.
type broken struct {
	statefile.Store
	get  func(ctx context.Context, key, known string) (*statefile.Object, error)
	put  func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error)
	del  func(ctx context.Context, key string) error
	list func(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error
	end  func() error
}

func (b *broken) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if b.get != nil {
		return b.get(ctx, key, known)
	}
	return b.Store.Get(ctx, key, known)
}

func (b *broken) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if b.put != nil {
		return b.put(ctx, key, data, cond)
	}
	return b.Store.Put(ctx, key, data, cond)
}

func (b *broken) Delete(ctx context.Context, key string) error {
	if b.del != nil {
		return b.del(ctx, key)
	}
	return b.Store.Delete(ctx, key)
}

func (b *broken) List(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
	if b.list != nil {
		return b.list(ctx, prefix, after, fn)
	}
	return b.Store.List(ctx, prefix, after, fn)
}

func (b *broken) Close() error {
	if b.end != nil {
		return b.end()
	}
	return b.Store.Close()
}

// The names of the Suite's tests that a broken promise must fail.
const (
	readBack   = "what is written is read back, with the ETag that the write gave"
	absent     = "an absent object is not found, and deleting it is no error"
	createOnce = "an object is created once"
	swap       = "an object is swapped only by who knows its ETag"
	swapAbsent = "an absent object can't be swapped"
	createRace = "of eight that create one object, one succeeds"
	lostUpdate = "writers that swap one object lose no update"
	tornRead   = "a reader never sees half of a write"
	unchanged  = "a read of what is known is unchanged"
	listing    = "a listing shows what a prefix holds, in order, after a key"
	listMany   = "a listing goes past a thousand objects"
	tooLarge   = "an object larger than the limit is refused and nothing is written"
	badKeys    = "a key that is no key is refused"
	endedCtx   = "a call whose context has ended does nothing"
)

// brokenPromise is one way to be no store.
type brokenPromise struct {
	name string
	// broke changes a store that keeps every promise.
	broke func(b *broken)
	// fails are the tests of the Suite that must fail; others may fail with them.
	fails []string
}

var brokenPromises = slices.Concat(brokenReads, brokenWrites, brokenConditions, brokenListings, brokenRefusals)

// reading changes the objects that are read.
func reading(change func(*statefile.Object)) func(*broken) {
	return func(b *broken) {
		b.get = func(ctx context.Context, key, known string) (*statefile.Object, error) {
			object, err := b.Store.Get(ctx, key, known)
			if err == nil {
				change(object)
			}
			return object, err
		}
	}
}

var brokenReads = []brokenPromise{
	{"the end of a large object is missing", reading(func(o *statefile.Object) { o.Data = o.Data[:min(len(o.Data), 1<<16)] }), []string{readBack}},
	{"an object has no key", reading(func(o *statefile.Object) { o.Key = "" }), []string{readBack}},
	{"an object has another ETag than its write gave", reading(func(o *statefile.Object) { o.ETag = `"` + o.ETag + `"` }), []string{readBack, lostUpdate}},
	{"an object has no time", reading(func(o *statefile.Object) { o.Modified = time.Time{} }), []string{readBack}},
	{"what is absent is read as empty", func(b *broken) {
		b.get = func(ctx context.Context, key, known string) (*statefile.Object, error) {
			object, err := b.Store.Get(ctx, key, known)
			if errors.Is(err, statefile.ErrNotFound) {
				return &statefile.Object{Key: key}, nil
			}
			return object, err
		}
	}, []string{absent, swapAbsent, tooLarge}},
	{"what is known is read again", func(b *broken) {
		b.get = func(ctx context.Context, key, _ string) (*statefile.Object, error) { return b.Store.Get(ctx, key, "") }
	}, []string{unchanged}},
	{"whatever is known is unchanged", func(b *broken) {
		b.get = func(ctx context.Context, key, known string) (*statefile.Object, error) {
			if known != "" {
				return nil, statefile.ErrUnchanged
			}
			return b.Store.Get(ctx, key, "")
		}
	}, []string{unchanged}},
	{"a read shows half of a write", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			if len(data) > 1000 && strings.HasPrefix(key, "torn") {
				_, _ = b.Store.Put(ctx, key, data[:len(data)/2], cond)
				for range 100 {
					runtime.Gosched()
				}
			}
			return b.Store.Put(ctx, key, data, cond)
		}
	}, []string{tornRead}},
	{"what was read is the store's", func(b *broken) {
		last := map[string]*statefile.Object{}
		b.get = func(ctx context.Context, key, known string) (*statefile.Object, error) {
			object, err := b.Store.Get(ctx, key, known)
			if err != nil || key != "prod/state.json" {
				return object, err
			}
			if kept := last[key]; kept != nil && kept.ETag == object.ETag {
				return kept, nil
			}
			last[key] = object
			return object, nil
		}
	}, []string{readBack}},
}

var brokenWrites = []brokenPromise{
	{"a write changes the content", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			return b.Store.Put(ctx, key, bytes.TrimSuffix(data, []byte("x")), cond)
		}
	}, []string{readBack}},
	{"a write gives no ETag", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			_, err := b.Store.Put(ctx, key, data, cond)
			return "", err
		}
	}, []string{readBack, swap}},
	{"equal content has another ETag", func(b *broken) {
		n, etags := 0, map[string]string{}
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			if strings.HasPrefix(key, "prod/") && cond == (statefile.If{}) {
				n++
				etag, err := b.Store.Put(ctx, key, data, cond)
				etags[key] = fmt.Sprint(etag, n)
				return etags[key], err
			}
			return b.Store.Put(ctx, key, data, cond)
		}
		b.get = func(ctx context.Context, key, known string) (*statefile.Object, error) {
			object, err := b.Store.Get(ctx, key, known)
			if err == nil && etags[key] != "" {
				object.ETag = etags[key]
			}
			return object, err
		}
	}, []string{readBack}},
	{"what was written is the caller's still", func(b *broken) {
		kept := map[string][]byte{}
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			if string(data) == "mine" {
				kept[key] = data
			}
			return b.Store.Put(ctx, key, data, cond)
		}
		b.get = func(ctx context.Context, key, known string) (*statefile.Object, error) {
			object, err := b.Store.Get(ctx, key, known)
			if err == nil && kept[key] != nil {
				object.Data = bytes.Clone(kept[key])
			}
			return object, err
		}
	}, []string{readBack}},
	{"a deletion leaves the object", func(b *broken) { b.del = func(context.Context, string) error { return nil } }, []string{absent, swapAbsent}},
	{"deleting what is absent is an error", func(b *broken) {
		b.del = func(ctx context.Context, key string) error {
			if _, err := b.Store.Get(ctx, key, ""); err != nil {
				return err
			}
			return b.Store.Delete(ctx, key)
		}
	}, []string{absent}},
	{"closing it fails", func(b *broken) { b.end = func() error { return errors.New("it is open still") } }, []string{readBack, endedCtx}},
}

// conditional replaces the conditions of writes.
func conditional(change func(b *broken, key string, data []byte, cond statefile.If) statefile.If) func(*broken) {
	return func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			return b.Store.Put(ctx, key, data, change(b, key, data, cond))
		}
	}
}

// looked is what becomes of a condition that is looked at before the write, instead of with it.
func looked(b *broken, key string, cond statefile.If) statefile.If {
	object, err := b.Store.Get(context.Background(), key, "")
	for range 100 {
		runtime.Gosched()
	}
	if cond.Absent() && err == nil || cond.ETag() != "" && (err != nil || object.ETag != cond.ETag()) {
		return statefile.IfMatch("no such ETag")
	}
	return statefile.If{}
}

var brokenConditions = []brokenPromise{
	{"every condition is met", conditional(func(_ *broken, _ string, _ []byte, _ statefile.If) statefile.If { return statefile.If{} }),
		[]string{createOnce, swap, swapAbsent, createRace}},
	{"what is there can be created again with the same content", conditional(func(b *broken, key string, data []byte, cond statefile.If) statefile.If {
		if object, err := b.Store.Get(context.Background(), key, ""); err == nil && bytes.Equal(object.Data, data) {
			return statefile.If{}
		}
		return cond
	}), []string{createOnce}},
	{"whoever names an ETag swaps", conditional(func(_ *broken, _ string, _ []byte, cond statefile.If) statefile.If {
		if cond.ETag() != "" {
			return statefile.If{}
		}
		return cond
	}), []string{swap, swapAbsent}},
	{"what is absent has any ETag", conditional(func(b *broken, key string, _ []byte, cond statefile.If) statefile.If {
		if _, err := b.Store.Get(context.Background(), key, ""); err != nil {
			return statefile.If{}
		}
		return cond
	}), []string{swapAbsent}},
	{"that an object is absent is looked at before the write", conditional(func(b *broken, key string, _ []byte, cond statefile.If) statefile.If {
		if cond.Absent() {
			return looked(b, key, cond)
		}
		return cond
	}), []string{createRace}},
	{"the ETag is looked at before the write", conditional(func(b *broken, key string, _ []byte, cond statefile.If) statefile.If {
		if cond.ETag() != "" {
			return looked(b, key, cond)
		}
		return cond
	}), []string{lostUpdate}},
	{"no swap is ever won", conditional(func(_ *broken, _ string, _ []byte, cond statefile.If) statefile.If {
		if cond.ETag() != "" {
			return statefile.IfMatch("no such ETag")
		}
		return cond
	}), []string{swap, lostUpdate}},
	{"a write whose condition isn't met is done and refused", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			etag, err := b.Store.Put(ctx, key, data, cond)
			if errors.Is(err, statefile.ErrConflict) {
				_, _ = b.Store.Put(ctx, key, data, statefile.If{})
			}
			return etag, err
		}
	}, []string{createOnce, swap, swapAbsent}},
	{"a conflict is told as a refusal", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			etag, err := b.Store.Put(ctx, key, data, cond)
			if errors.Is(err, statefile.ErrConflict) {
				err = statefile.ErrPermission
			}
			return etag, err
		}
	}, []string{createOnce, swap, swapAbsent}},
}

// listed changes what a listing shows.
func listed(change func(infos []statefile.ObjectInfo) []statefile.ObjectInfo) func(*broken) {
	return func(b *broken) {
		b.list = func(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
			var infos []statefile.ObjectInfo
			if err := b.Store.List(ctx, prefix, after, func(info statefile.ObjectInfo) error {
				infos = append(infos, info)
				return nil
			}); err != nil {
				return err
			}
			for _, info := range change(infos) {
				if err := fn(info); err != nil {
					return err
				}
			}
			return nil
		}
	}
}

// eachListed changes each entry of a listing.
func eachListed(change func(*statefile.ObjectInfo)) func(*broken) {
	return listed(func(infos []statefile.ObjectInfo) []statefile.ObjectInfo {
		for i := range infos {
			change(&infos[i])
		}
		return infos
	})
}

// listedAs asks for another listing than the one that was asked for.
func listedAs(change func(prefix, after string) (string, string)) func(*broken) {
	return func(b *broken) {
		b.list = func(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
			prefix, after = change(prefix, after)
			return b.Store.List(ctx, prefix, after, fn)
		}
	}
}

var brokenListings = []brokenPromise{
	{"a listing has no order", listed(func(infos []statefile.ObjectInfo) []statefile.ObjectInfo {
		slices.Reverse(infos)
		return infos
	}), []string{listing, listMany}},
	{"a listing is in the order of folders", listed(func(infos []statefile.ObjectInfo) []statefile.ObjectInfo {
		slices.SortFunc(infos, func(a, b statefile.ObjectInfo) int {
			return slices.Compare(strings.Split(a.Key, "/"), strings.Split(b.Key, "/"))
		})
		return infos
	}), []string{listing}},
	{"a listing ends at a thousand", listed(func(infos []statefile.ObjectInfo) []statefile.ObjectInfo { return infos[:min(len(infos), 1000)] }),
		[]string{listMany}},
	{"a listing shows no times", eachListed(func(info *statefile.ObjectInfo) { info.Modified = time.Time{} }), []string{listing}},
	{"a listing shows no sizes", eachListed(func(info *statefile.ObjectInfo) { info.Size = 0 }), []string{listing}},
	{"a listing shows other ETags", eachListed(func(info *statefile.ObjectInfo) { info.ETag = "other" }), []string{listing}},
	{"a listing begins with the key after which it should", listedAs(func(prefix, after string) (string, string) {
		return prefix, strings.TrimSuffix(after, ".json")
	}), []string{listing, listMany}},
	{"a listing begins at the beginning", listedAs(func(prefix, _ string) (string, string) { return prefix, "" }), []string{listing, listMany}},
	{"a listing shows what is beside its prefix", listedAs(func(prefix, after string) (string, string) {
		return strings.TrimSuffix(prefix, "/"), after
	}), []string{listing}},
	{"a listing takes its prefix for a folder", listedAs(func(prefix, after string) (string, string) {
		if prefix != "" && !strings.HasSuffix(prefix, "/") {
			prefix += "/"
		}
		return prefix, after
	}), []string{listing}},
	{"a listing goes on when it was told to end", func(b *broken) {
		b.list = func(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
			var first error
			err := b.Store.List(ctx, prefix, after, func(info statefile.ObjectInfo) error {
				if err := fn(info); err != nil && first == nil {
					first = err
				}
				return nil
			})
			return errors.Join(err, first)
		}
	}, []string{listing}},
	{"a listing that was told to end says that it is whole", func(b *broken) {
		b.list = func(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
			ended := errors.New("ended")
			err := b.Store.List(ctx, prefix, after, func(info statefile.ObjectInfo) error {
				if fn(info) != nil {
					return ended
				}
				return nil
			})
			if errors.Is(err, ended) {
				return nil
			}
			return err
		}
	}, []string{listing}},
}

// hidden stands for a key that the store behind would refuse.
func hidden(key string) string {
	if statefile.CheckKey(key) != nil {
		return fmt.Sprintf("bad/%x", key[:min(len(key), 100)])
	}
	return key
}

var brokenRefusals = []brokenPromise{
	{"an object may be of any size", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			return b.Store.Put(ctx, key, data[:min(len(data), statefile.MaxObject)], cond)
		}
	}, []string{tooLarge}},
	{"an object that is too large is refused once it is written", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			etag, err := b.Store.Put(ctx, key, data[:min(len(data), statefile.MaxObject)], cond)
			if len(data) > statefile.MaxObject {
				return "", statefile.ErrTooLarge
			}
			return etag, err
		}
	}, []string{tooLarge}},
	{"any key is written", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			return b.Store.Put(ctx, hidden(key), data, cond)
		}
	}, []string{badKeys}},
	{"any key is read", func(b *broken) {
		b.get = func(ctx context.Context, key, known string) (*statefile.Object, error) {
			if statefile.CheckKey(key) != nil {
				return &statefile.Object{Key: key}, nil
			}
			return b.Store.Get(ctx, key, known)
		}
	}, []string{badKeys}},
	{"any key is deleted", func(b *broken) {
		b.del = func(ctx context.Context, key string) error { return b.Store.Delete(ctx, hidden(key)) }
	}, []string{badKeys}},
	{"a write goes on when its context has ended", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			etag, err := b.Store.Put(context.WithoutCancel(ctx), key, data, cond)
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			return etag, err
		}
	}, []string{endedCtx}},
	{"a write that was not sent may have been done", func(b *broken) {
		b.put = func(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
			if ctx.Err() != nil {
				return "", fmt.Errorf("%w: %w", statefile.ErrUnacknowledged, ctx.Err())
			}
			return b.Store.Put(ctx, key, data, cond)
		}
	}, []string{endedCtx}},
	{"a read goes on when its context has ended", func(b *broken) {
		b.get = func(ctx context.Context, key, known string) (*statefile.Object, error) {
			return b.Store.Get(context.WithoutCancel(ctx), key, known)
		}
	}, []string{endedCtx}},
	{"a deletion goes on when its context has ended", func(b *broken) {
		b.del = func(ctx context.Context, key string) error { return b.Store.Delete(context.WithoutCancel(ctx), key) }
	}, []string{endedCtx}},
	{"a listing goes on when its context has ended", func(b *broken) {
		b.list = func(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
			return b.Store.List(context.WithoutCancel(ctx), prefix, after, fn)
		}
	}, []string{endedCtx}},
}

// breaking gives a store that breaks a promise, or none.
func breaking(promise string) statefile.Store {
	b := &broken{Store: storetest.NewMemory()}
	for _, one := range brokenPromises {
		if one.name == promise {
			one.broke(b)
		}
	}
	return b
}
