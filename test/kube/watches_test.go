package kubetest

import (
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/test/kube/harness"
)

// watched is a watch of a namespace's ConfigMaps that a client holds, with the resource version that it has come to.
type watched struct {
	watch.Interface
	at string
}

// hold begins a watch where the API stands and hears its first event, so that it is known to be open.
func (w *world) hold(t *testing.T, namespace, name string) *watched {
	t.Helper()
	maps := w.api.CoreV1().ConfigMaps(namespace)
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	opened, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	t.Cleanup(opened.Stop)
	w.configMap(t, namespace, name)
	held := &watched{opened, list.ResourceVersion}
	event := held.next(t)
	require.Equal(t, watch.Added, event.Type)
	held.at = event.Object.(*corev1.ConfigMap).ResourceVersion
	return held
}

func (w *world) configMap(t *testing.T, namespace, name string) *corev1.ConfigMap {
	t.Helper()
	made, err := w.api.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return made
}

// ahead is how many revisions lie between a snapshot and what a watch has come to.
const ahead = 2000

// fill makes so many ConfigMaps, several at a time, and gives the highest revision of one.
func (w *world) fill(t *testing.T, namespace string, count int) int64 {
	t.Helper()
	var highest atomic.Int64
	var group errgroup.Group
	group.SetLimit(16)
	for range count {
		group.Go(func() error {
			made, err := w.api.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "filler-"}}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			at, err := strconv.ParseInt(made.ResourceVersion, 10, 64)
			for old := highest.Load(); at > old && !highest.CompareAndSwap(old, at); old = highest.Load() {
			}
			return err
		})
	}
	require.NoError(t, group.Wait())
	return highest.Load()
}

// next is what it hears next; the zero value is its end.
func (h *watched) next(t *testing.T) watch.Event {
	t.Helper()
	select {
	case event := <-h.ResultChan():
		return event
	case <-time.After(5 * time.Minute):
		require.Fail(t, "the watch hears nothing")
		panic("unreachable")
	}
}

// resume goes on after the API went away under the watch, from the resource version that it has come to, as every client of Kubernetes does.
// told is what the API says of that; nil: nothing is wrong.
func (w *world) resume(t *testing.T, namespace string, h *watched) (told error) {
	t.Helper()
	for event := h.next(t); event.Type != ""; event = h.next(t) {
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		h.at = event.Object.(metav1.Object).GetResourceVersion()
	}
	harness.Eventually(t, "the watch is taken up again", func() error {
		opened, err := w.api.CoreV1().ConfigMaps(namespace).Watch(t.Context(), metav1.ListOptions{ResourceVersion: h.at})
		if err == nil {
			t.Cleanup(opened.Stop)
			h.Interface = opened
		}
		if gone(err) {
			told = err
			return nil
		}
		return err
	})
	return told
}

// gone is 410: what was asked for is no more, so that its client reads everything anew.
func gone(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusGone
}

// requireTold wants a watch that is taken up again to be told that its resource version is gone, at once or with its first event.
func (w *world) requireTold(t *testing.T, namespace string, h *watched) {
	t.Helper()
	told := w.resume(t, namespace, h)
	if told == nil {
		event := h.next(t)
		require.Equal(t, watch.Error, event.Type, "%+v", event.Object)
		told = apierrors.FromObject(event.Object)
	}
	require.True(t, gone(told), "%v", told)
}

// TestWatchesAreToldOfARestoreWhereItRaisesTheRevision restores a cluster's only control plane three times from one snapshot under watches that
// are held open, first without raising the revision.
func TestWatchesAreToldOfARestoreWhereItRaisesTheRevision(t *testing.T) {
	t.Parallel()
	w, farm := startFarm(t, "127.0.75.80", "127.0.75.89", 1, 0)
	namespace, beside := w.namespace(t, "watched"), w.namespace(t, "beside")
	client := talos.NewClient(w.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = client.Close() })
	target := talos.Target{Name: "cp-1", Endpoint: farm.Node("cp-1").Address(), ControlPlane: true}
	w.configMap(t, namespace, "kept")
	taken := takeSnapshot(t, client, target)
	again := func(file string) {
		restore(t, client, farm.Node("cp-1"), target, file)
		harness.Eventually(t, "the API serves what was restored", func() error {
			list, err := w.api.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
			if err == nil && len(named(list.Items, "lost")) > 0 {
				err = errors.New("it serves what was lost")
			}
			if err == nil {
				require.Len(t, named(list.Items, "kept"), 1)
			}
			return err
		})
	}

	w.fill(t, beside, ahead) // so that what Kubernetes writes by itself after the restore doesn't come as far
	held := w.hold(t, namespace, "lost")
	again(taken)
	require.NoError(t, w.resume(t, namespace, held), "without it nobody is told")
	missed := w.configMap(t, namespace, "missed")
	reached, err := strconv.ParseInt(held.at, 10, 64)
	require.NoError(t, err)
	require.Less(t, revisionOf(t, missed), reached)
	for w.fill(t, beside, 100) <= reached { // until etcd has come past what the watch waits for
	}
	w.configMap(t, namespace, "heard")
	event := held.next(t)
	require.Equal(t, watch.Added, event.Type, "no error says that anything is wrong")
	require.Equal(t, "heard", event.Object.(metav1.Object).GetName(), "and what was written since the restore was not heard")
	_, err = w.api.CoreV1().ConfigMaps(namespace).Get(t.Context(), missed.Name, metav1.GetOptions{})
	require.NoError(t, err, "though it is there")

	held = w.hold(t, namespace, "lost")
	reachedNow, err := w.client(t).Revision(within(t))
	require.NoError(t, err)
	file, raised := raise(t, taken, revision.Known{APIServer: reachedNow})
	again(file)
	w.requireTold(t, namespace, held)

	// The same snapshot once more, with a watch that was opened in between.
	held = w.hold(t, namespace, "lost")
	at, err := strconv.ParseInt(held.at, 10, 64)
	require.NoError(t, err)
	require.Greater(t, at, raised)
	file, twice := raise(t, taken, revision.Known{LastRestore: raised})
	require.Greater(t, twice, at)
	again(file)
	w.requireTold(t, namespace, held)
	w.hold(t, namespace, "lost")
}

func named(items []corev1.ConfigMap, name string) (found []corev1.ConfigMap) {
	for _, item := range items {
		if item.Name == name {
			found = append(found, item)
		}
	}
	return found
}
