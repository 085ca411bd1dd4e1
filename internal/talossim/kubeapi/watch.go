package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// watchTimeout is how long a watch lasts whose caller doesn't say (Kubernetes: half an hour to an hour, --min-request-timeout).
const watchTimeout = 30 * time.Minute

// event is one line of a watch.
type event struct {
	Type   watch.EventType `json:"type"`
	Object any             `json:"object"`
}

// watcher is one watch: where its events go, and which objects it is about.
type watcher struct {
	server   *Server
	resource *resource
	sel      selectors
	send     func(event) error
}

func (s *Server) serveWatch(w http.ResponseWriter, r *http.Request, req *request) {
	opts, sel, err := listOptions(r, req.resource, req.name)
	if err == nil && opts.SendInitialEvents != nil && (opts.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan || !opts.AllowWatchBookmarks) {
		err = apierrors.NewBadRequest("sendInitialEvents needs resourceVersionMatch NotOlderThan and allowWatchBookmarks")
	}
	var revision int64
	if err == nil {
		revision, err = revisionOf(opts.ResourceVersion)
	}
	if err != nil {
		fail(w, err)
		return
	}
	lasts := watchTimeout
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		lasts = time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(r.Context(), lasts)
	defer cancel()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	_ = out.Flush() // an error shows at the first event
	lines := json.NewEncoder(w)
	watching := &watcher{server: s, resource: req.resource, sel: sel, send: func(e event) error {
		if err := lines.Encode(e); err != nil {
			return err
		}
		return out.Flush()
	}}
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents || revision == 0
	if err := watching.run(ctx, req.namespace, revision, initial, opts.SendInitialEvents != nil); err != nil && ctx.Err() == nil {
		_ = watching.send(event{watch.Error, statusOf(err)}) // nobody is there any more
	}
}

// run sends the objects that there are, where those are asked for, and then what happens to them.
func (w *watcher) run(ctx context.Context, namespace string, revision int64, initial, marked bool) error {
	prefix := w.resource.under(namespace)
	if initial {
		reading, cancel := context.WithTimeout(ctx, w.server.cfg.RequestTimeout)
		defer cancel()
		kvs, now, err := w.server.store.list(reading, prefix, 0)
		if err != nil {
			return err
		}
		if revision > now {
			return tooLarge(revision, now)
		}
		revision = now
		for _, kv := range kvs {
			if err := w.one(ctx, kv, nil); err != nil {
				return err
			}
		}
		if marked {
			if err := w.bookmark(revision); err != nil {
				return err
			}
		}
	}
	return w.follow(ctx, prefix, revision)
}

// bookmark says that the objects that there were have all been sent.
func (w *watcher) bookmark(revision int64) error {
	o := w.resource.empty()
	w.resource.mark(o, revision)
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return w.send(event{watch.Bookmark, o})
}

// follow is etcd's own watch. A revision that etcd hasn't reached is waited for, as etcd does.
func (w *watcher) follow(ctx context.Context, prefix string, after int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := w.server.store.etcd.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(after+1))
	for resp := range events {
		if resp.CompactRevision != 0 {
			return tooOld(after, resp.CompactRevision)
		}
		if err := resp.Err(); err != nil {
			return etcdError(ctx, err)
		}
		for _, e := range resp.Events {
			kv := e.Kv
			if e.Type == clientv3.EventTypeDelete {
				kv = nil
			}
			if !e.IsCreate() && e.PrevKv == nil { // compacted at this very moment
				return apierrors.NewInternalError(fmt.Errorf("etcd event received with PrevKv=nil (key=%q, modRevision=%d, type=%s)", e.Kv.Key, e.Kv.ModRevision, e.Type))
			}
			if err := w.change(ctx, kv, e.PrevKv, e.Kv.ModRevision); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *watcher) one(ctx context.Context, kv, before *mvccpb.KeyValue) error {
	return w.change(ctx, kv, before, kv.ModRevision)
}

// change sends what a change is to a watch with selectors: an object that no longer matches is gone for it.
func (w *watcher) change(ctx context.Context, kv, before *mvccpb.KeyValue, revision int64) error {
	was, err := w.matching(before)
	if err != nil {
		return err
	}
	is, err := w.matching(kv)
	if err != nil {
		return err
	}
	kind, o := watch.Modified, is
	switch {
	case was == nil && is == nil:
		return nil
	case was == nil:
		kind = watch.Added
	case is == nil:
		kind, o = watch.Deleted, was
		w.resource.mark(o, revision)
	}
	if err := w.server.present(ctx, o); err != nil {
		return err
	}
	return w.send(event{kind, o})
}

// matching is the object in a key's value, if the watch is about it.
func (w *watcher) matching(kv *mvccpb.KeyValue) (object, error) {
	if kv == nil {
		return nil, nil
	}
	o, err := w.resource.decode(kv)
	if err != nil || !w.resource.matches(o, w.sel) {
		return nil, err
	}
	return o, nil
}

// tooOld is the end of a watch whose past etcd no longer has.
func tooOld(wanted, compacted int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", wanted, compacted))
}
