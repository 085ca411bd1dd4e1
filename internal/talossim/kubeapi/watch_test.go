package kubeapi_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/utils/clock"
)

// next is a watch's next event.
func (b *bench) next(w watch.Interface) watch.Event {
	b.Helper()
	select {
	case e, open := <-w.ResultChan():
		require.True(b, open, "the watch has ended")
		return e
	case <-time.After(patience):
		require.Fail(b, "no event comes")
	}
	return watch.Event{}
}

func (b *bench) label(name, value string) *corev1.Node {
	b.Helper()
	node, err := b.CoreV1().Nodes().Get(b.Context(), name, metav1.GetOptions{})
	require.NoError(b, err)
	node.Labels = map[string]string{"a": value}
	node, err = b.CoreV1().Nodes().Update(b.Context(), node, metav1.UpdateOptions{})
	require.NoError(b, err)
	return node
}

func TestAWatchSeesWhatHappensAfterItsRevision(t *testing.T) {
	b := newBench(t, "127.0.76.11", clock.RealClock{})
	first := b.node("w-1", map[string]string{"a": "1"})
	all, err := b.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: revision(first)})
	require.NoError(t, err)
	defer all.Stop()
	some, err := b.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: revision(first), LabelSelector: "a=1"})
	require.NoError(t, err)
	defer some.Stop()
	now, err := b.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=w-1"})
	require.NoError(t, err)
	defer now.Stop()
	require.Equal(t, watch.Added, b.next(now).Type, "without a revision what is there comes first")

	second := b.label("w-1", "2")
	third := b.label("w-1", "1")
	require.NoError(t, b.CoreV1().Nodes().Delete(t.Context(), "w-1", metav1.DeleteOptions{}))
	for _, c := range []struct {
		watch watch.Interface
		want  []watch.EventType
	}{
		{all, []watch.EventType{watch.Modified, watch.Modified, watch.Deleted}},
		{some, []watch.EventType{watch.Deleted, watch.Added, watch.Deleted}},
		{now, []watch.EventType{watch.Modified, watch.Modified, watch.Deleted}},
	} {
		for n, want := range c.want {
			e := b.next(c.watch)
			require.Equal(t, want, e.Type)
			if n < 2 {
				require.Equal(t, revision([]*corev1.Node{second, third}[n]), revision(e.Object.(*corev1.Node)))
			}
		}
	}
}

func TestAWatchFromACompactedRevisionIsGone(t *testing.T) {
	b := newBench(t, "127.0.76.12", clock.RealClock{})
	first := b.node("w-1", nil)
	b.label("w-1", "2")
	last := b.label("w-1", "3")
	at, err := strconv.ParseInt(revision(last), 10, 64)
	require.NoError(t, err)
	_, err = b.etcd.Compact(t.Context(), at)
	require.NoError(t, err)
	w, err := b.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: revision(first)})
	require.NoError(t, err)
	defer w.Stop()
	e := b.next(w)
	require.Equal(t, watch.Error, e.Type)
	gone := apierrors.FromObject(e.Object)
	require.True(t, apierrors.IsResourceExpired(gone), "%v", gone)
	require.ErrorContains(t, gone, "too old resource version: "+revision(first))
	_, err = b.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{ResourceVersion: revision(first), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	require.True(t, apierrors.IsResourceExpired(err), "%v", err)
}

func TestAWatchAheadOfEtcdNeverErrsAndSeesNothing(t *testing.T) {
	b := newBench(t, "127.0.76.13", clock.RealClock{})
	first := b.node("w-1", nil)
	at, err := strconv.ParseInt(revision(first), 10, 64)
	require.NoError(t, err)
	ahead := strconv.FormatInt(at+2, 10) // as after a restore that rewinds the revision
	w, err := b.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: ahead})
	require.NoError(t, err)
	defer w.Stop()
	b.label("w-1", "1")
	b.label("w-1", "2")
	seen := b.label("w-1", "3")
	require.Equal(t, revision(seen), revision(b.next(w).Object.(*corev1.Node)), "what happened before that revision is never told")
	_, err = b.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{ResourceVersion: strconv.FormatInt(at+1000, 10)})
	require.ErrorContains(t, err, "Too large resource version")
}

func TestAnInformerFollows(t *testing.T) {
	b := newBench(t, "127.0.76.14", clock.RealClock{})
	b.node("w-1", nil)
	factory := informers.NewSharedInformerFactory(b, 0)
	lister := factory.Core().V1().Nodes().Lister()
	synced := factory.Core().V1().Nodes().Informer().HasSynced
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	b.eventually("the informer has read", func(context.Context) error {
		if !synced() {
			return errNotYet
		}
		return nil
	})
	b.label("w-1", "7")
	b.node("w-2", nil)
	b.eventually("the informer knows both", func(context.Context) error {
		first, err := lister.Get("w-1")
		if err != nil {
			return err
		}
		if _, err := lister.Get("w-2"); err != nil {
			return err
		}
		if first.Labels["a"] != "7" {
			return errNotYet
		}
		return nil
	})
}
