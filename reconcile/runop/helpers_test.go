package runop_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/schema"
)

var now = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

func clusterYAML(name, id string, count int) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: "%s"}
spec:
  id: "%s"
  endpoint: https://%s.example.com:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  controlPlane: {count: %d, schedulable: false}
  secrets: {file: secrets.age}
  install: {image: factory.talos.dev/installer/abc, disk: /dev/sda}
`, name, id, strings.Trim(name, "."), count)
}

func machineYAML(cluster, name, role, uuid string, rest ...string) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: "%s"}
spec: {clusterRef: {name: "%s"}, role: %s, endpoint: %s.%s.example.com, uuid: "%s", approved: true%s}
`, name, cluster, role, name, cluster, uuid, strings.Join(append([]string{""}, rest...), ", "))
}

func uuid(n int) string { return fmt.Sprintf("4c4c4544-0039-3510-8052-b4c04f4e%04d", n) }

// files are a fleet of prod (three control planes, a worker, a backup) and staging (one control plane, a machine called w-1 too).
func files() fstest.MapFS {
	tree := fstest.MapFS{}
	add := func(name, text string) { tree[name] = &fstest.MapFile{Data: []byte(text)} }
	add("prod/cluster.yaml", clusterYAML("prod", "1f3a9c0d2b4e6f78", 3))
	add("prod/secrets.age", "")
	add("staging/secrets.age", "")
	add("staging/cluster.yaml", clusterYAML("staging", "1234567890123456", 1))
	for n := 1; n <= 3; n++ {
		add(fmt.Sprintf("prod/cp-%d.yaml", n), machineYAML("prod", fmt.Sprintf("cp-%d", n), "controlplane", uuid(n)))
	}
	add("prod/w-1.yaml", machineYAML("prod", "w-1", "worker", uuid(4)))
	add("prod/w-2.yaml", machineYAML("prod", "w-2", "worker", uuid(5)))
	add("staging/cp.yaml", machineYAML("staging", "cp", "controlplane", uuid(6)))
	add("staging/w-1.yaml", machineYAML("staging", "w-1", "worker", uuid(7)))
	add("prod/backup.yaml", `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec: {clusterRef: {name: prod}, destination: {s3: {endpoint: "https://s3.example.com", bucket: etcd, prefix: prod}}}
`)
	return tree
}

func load(t *testing.T, tree fstest.MapFS) *schema.Fleet {
	t.Helper()
	fleet, problems := schema.Load(tree, []string{"."})
	require.Empty(t, problems)
	return fleet
}

func request(kind schema.OperationKind, action, target string, change ...func(*runop.Request)) runop.Request {
	r := runop.Request{Kind: kind, Action: action, Target: target, Life: runop.DefaultLife}
	if action == schema.ActionRemove {
		r.Confirm = target
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func node(action, target string, change ...func(*runop.Request)) runop.Request {
	return request(schema.OperationNode, action, target, change...)
}

func of(cluster string) func(*runop.Request) { return func(r *runop.Request) { r.Cluster = cluster } }

// write finds what a request means in a fleet, and writes it.
func write(fleet *schema.Fleet, r runop.Request, change ...func(*runop.Options)) (*runop.Draft, error) {
	target, err := runop.Find(fleet, "abc", r)
	if err != nil {
		return nil, err
	}
	options := runop.Options{Now: now, Folder: "operations"}
	for _, c := range change {
		c(&options)
	}
	return runop.Write(target, r, options)
}
