package harness

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// controllers are those that pods, nodes and budgets depend on.
var controllers = []string{
	"deployment-controller", "replicaset-controller", "statefulset-controller", "daemonset-controller", "disruption-controller",
	"node-lifecycle-controller", "pod-garbage-collector-controller", "garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
}

// StartControllers starts a controller manager and a scheduler over the API at a URL. One that ends, because the API was not there or gave it no
// rights yet, is started again, as a static pod is.
func StartControllers(t testing.TB, secrets *Secrets, url string) {
	t.Helper()
	dir := t.TempDir()
	keep(t, dir, "kube-controller-manager",
		"--kubeconfig="+secrets.kubeconfig(t, dir, "system:kube-controller-manager", url),
		"--controllers="+strings.Join(controllers, ","), "--use-service-account-credentials=true",
		"--service-account-private-key-file="+write(t, dir, "service-account.key", secrets.bundle.Certs.K8sServiceAccount.Key),
		"--root-ca-file="+write(t, dir, "ca.crt", secrets.CA()), "--leader-elect=false", "--secure-port=0", "--profiling=false")
	keep(t, dir, "kube-scheduler",
		"--kubeconfig="+secrets.kubeconfig(t, dir, "system:kube-scheduler", url), "--leader-elect=false", "--secure-port=0", "--profiling=false")
}

// keep starts a server, and starts it again whenever it has ended, until the test does.
func keep(t testing.TB, dir, name string, args ...string) {
	t.Helper()
	current := start(t, dir, name, args...)
	var mu sync.Mutex
	over := make(chan struct{})
	t.Cleanup(func() {
		close(over)
		mu.Lock()
		defer mu.Unlock()
		current.kill()
	})
	go func() {
		again := time.NewTicker(time.Second)
		defer again.Stop()
		for {
			select {
			case <-over:
				return
			case <-again.C:
			}
			mu.Lock()
			if next := relaunch(over, current, dir, name, args); next != nil {
				current = next
			}
			mu.Unlock()
		}
	}()
}

// relaunch starts a server that has ended; nil where it runs, can't be started now, or isn't needed any more.
func relaunch(over <-chan struct{}, current *process, dir, name string, args []string) *process {
	select {
	case <-over:
		return nil
	default:
	}
	if !current.ended() {
		return nil
	}
	next, err := launch(current.cmd.Path, dir, name, args...)
	if err != nil {
		return nil
	}
	return next
}
