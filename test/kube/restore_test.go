package kubetest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/test/kube/harness"
)

func TestMain(m *testing.M) {
	revision.RunIfChild() // a snapshot is opened in a child process, which is this program
	os.Exit(m.Run())
}

// TestControllersThatLiveThroughARestoreAreRight winds etcd back under controllers that go on running, with a snapshot that
// was made safe for them, and sees that they act on what is there then.
func TestControllersThatLiveThroughARestoreAreRight(t *testing.T) {
	t.Parallel()
	w, farm := startFarm(t, "127.0.75.40", "127.0.75.49", 1, 1)
	w.joinPool(t, "web", "w-1")
	namespace := w.namespace(t, "web")
	w.deployment(t, namespace, "web", 2)
	deployments := w.api.AppsV1().Deployments(namespace)
	before, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)

	client := talos.NewClient(w.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = client.Close() })
	target := talos.Target{Name: "cp-1", Endpoint: farm.Node("cp-1").Address(), ControlPlane: true}
	taken := takeSnapshot(t, client, target)

	// What comes after the snapshot, and is seen by every controller.
	require.NoError(t, deployments.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	harness.Eventually(t, "the pods are gone", func() error {
		if left := w.podsOn(t, namespace, "w-1"); len(left) > 0 {
			return fmt.Errorf("%d pods", len(left))
		}
		return nil
	})
	after, err := w.api.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	reached, err := w.client(t).Revision(within(t))
	require.NoError(t, err)
	require.GreaterOrEqual(t, reached, revisionOf(t, after))
	raised, _ := raise(t, taken, revision.Known{APIServer: reached})
	restore(t, client, farm.Node("cp-1"), target, raised)
	harness.Eventually(t, "the API serves what was restored", func() error {
		found, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil {
			require.Equal(t, before.UID, found.UID)
		}
		return err
	})
	_, err = w.api.CoreV1().ConfigMaps(namespace).Get(t.Context(), "after", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
	_, err = deployments.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	w.available(t, namespace, 3)
	made, err := w.api.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Greater(t, revisionOf(t, made), revisionOf(t, after), "nothing that a client has seen comes again")
}

func revisionOf(t *testing.T, object metav1.Object) int64 {
	t.Helper()
	var revision int64
	_, err := fmt.Sscan(object.GetResourceVersion(), &revision)
	require.NoError(t, err)
	return revision
}

// joinPool gives a node the label by which pods of a pool are placed, once it is there.
func (w *world) joinPool(t *testing.T, pool, node string) {
	t.Helper()
	harness.Eventually(t, node+" joins the pool "+pool, func() error {
		_, err := w.api.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(`{"metadata":{"labels":{"pool":"`+pool+`"}}}`), metav1.PatchOptions{})
		return err
	})
}

// takeSnapshot stores a snapshot of a control plane's etcd in a file.
func takeSnapshot(t *testing.T, client *talos.Client, target talos.Target) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot")
	file, err := os.Create(path)
	require.NoError(t, err)
	err = dialled(t, client, target, talos.RoleEtcdBackup, func(s *talos.Session) error {
		stream, err := s.EtcdSnapshot(within(t))
		if err != nil {
			return err
		}
		_, err = io.Copy(file, stream)
		return errors.Join(err, stream.Close())
	})
	require.NoError(t, errors.Join(err, file.Close()))
	return path
}

// raise makes a snapshot safe to restore: its revision is raised above all that is known.
func raise(t *testing.T, snapshot string, known revision.Known) (path string, raised int64) {
	t.Helper()
	contents, err := revision.Look(within(t), snapshot)
	require.NoError(t, err)
	known.Snapshot, path = contents.Revision, filepath.Join(t.TempDir(), "safe")
	raised, err = revision.Target(known)
	require.NoError(t, err)
	_, err = revision.Rewrite(within(t), snapshot, path, raised)
	require.NoError(t, err)
	return path, raised
}

// restore wipes the only control plane and recovers its etcd from a file.
func restore(t *testing.T, client *talos.Client, node *talossim.Node, target talos.Target, snapshot string) {
	t.Helper()
	boot := node.BootID()
	call := func(do func(*talos.Session) error) error {
		return dialled(t, client, target, talos.RoleAdmin, do)
	}
	if err := call(func(s *talos.Session) error {
		return s.Reset(within(t), talos.ResetRequest{Partitions: []string{"EPHEMERAL"}, Reboot: true})
	}); err != nil {
		t.Logf("the reset cut off its own answer, and is seen below: %v", err)
	}
	harness.Eventually(t, "cp-1 is wiped", func() error {
		return call(func(s *talos.Session) error {
			now, err := s.BootID(within(t))
			if err == nil && now == boot {
				err = errors.New("it is still in the old boot")
			}
			if err != nil {
				return err
			}
			if data, err := s.EtcdData(within(t)); err != nil || data != talos.No {
				return fmt.Errorf("data %v: %w", data, err)
			}
			return nil
		})
	})
	harness.Eventually(t, "the snapshot is taken", func() error {
		return call(func(s *talos.Session) error {
			file, err := os.Open(snapshot)
			if err != nil {
				return err
			}
			defer file.Close() //nolint:errcheck // it was read
			return s.UploadSnapshot(within(t), file)
		})
	})
	harness.Eventually(t, "etcd recovers", func() error { return call(func(s *talos.Session) error { return s.RecoverEtcd(within(t)) }) })
}
