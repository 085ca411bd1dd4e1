package harness

import (
	"strings"
	"testing"
)

// controllers are those that pods, nodes and budgets depend on.
var controllers = []string{
	"deployment-controller", "replicaset-controller", "statefulset-controller", "daemonset-controller", "disruption-controller",
	"node-lifecycle-controller", "pod-garbage-collector-controller", "garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
}

// StartControllers starts a controller manager and a scheduler over the API at a URL. They wait for it when it goes away.
func StartControllers(t testing.TB, secrets *Secrets, url string) {
	t.Helper()
	dir := t.TempDir()
	start(t, dir, "kube-controller-manager",
		"--kubeconfig="+secrets.kubeconfig(t, dir, "system:kube-controller-manager", url),
		"--controllers="+strings.Join(controllers, ","), "--use-service-account-credentials=true",
		"--service-account-private-key-file="+write(t, dir, "service-account.key", secrets.bundle.Certs.K8sServiceAccount.Key),
		"--root-ca-file="+write(t, dir, "ca.crt", secrets.CA()), "--leader-elect=false", "--secure-port=0", "--profiling=false")
	start(t, dir, "kube-scheduler",
		"--kubeconfig="+secrets.kubeconfig(t, dir, "system:kube-scheduler", url), "--leader-elect=false", "--secure-port=0", "--profiling=false")
}
