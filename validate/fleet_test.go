package validate

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// morning is when everything in these tests was made, unless they say otherwise.
var morning = time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)

// fleetOf makes a fleet of lines like these; a machine's address and UUID follow from its cluster and name:
//
//	cluster prod count=3 schedulable=false
//	machine prod/cp-1 controlplane approved
//	remove  prod/cp-1 gone made=2h
//	backup  prod/hourly prefix=a
func fleetOf(t *testing.T, text string) *schema.Fleet {
	t.Helper()
	f := &schema.Fleet{Tree: fstest.MapFS{"secrets.age": {}}}
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		require.Greater(t, len(words), 1, line)
		settings := map[string]string{}
		for _, word := range words[2:] {
			name, value, _ := strings.Cut(word, "=")
			settings[name] = value
		}
		cluster, name, _ := strings.Cut(words[1], "/")
		switch words[0] {
		case "cluster":
			f.Clusters = append(f.Clusters, clusterOf(t, cluster, settings))
		case "machine":
			f.Machines = append(f.Machines, machineOf(t, cluster, name, settings))
		case "remove":
			f.Operations = append(f.Operations, removeOf(t, cluster, name, settings))
		case "backup":
			f.Backups = append(f.Backups, backupOf(t, cluster, name, settings))
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return f
}

// take gives a setting and forgets it, so that a misspelt one is noticed.
func take(settings map[string]string, name, otherwise string) string {
	value, ok := settings[name]
	if !ok {
		return otherwise
	}
	delete(settings, name)
	return value
}

func takeFlag(settings map[string]string, name string) bool {
	_, ok := settings[name]
	delete(settings, name)
	return ok
}

func meta(settings map[string]string, name string) schema.ObjectMeta {
	m := schema.ObjectMeta{Name: name}
	if takeFlag(settings, "allow-delete") {
		m.Annotations = map[string]string{schema.AnnotationAllowDelete: name}
	}
	if other := take(settings, "allow-delete-of", ""); other != "" {
		m.Annotations = map[string]string{schema.AnnotationAllowDelete: other}
	}
	return m
}

func source(settings map[string]string, file string) schema.Source {
	return schema.Source{Position: schema.Position{File: take(settings, "file", file), Line: 1, Column: 1}}
}

func clusterOf(t *testing.T, name string, settings map[string]string) *schema.TalosCluster {
	c := &schema.TalosCluster{
		APIVersion: schema.APIVersion, Kind: schema.KindCluster, Metadata: meta(settings, name),
		Source: source(settings, "clusters/"+name+"/cluster.yaml"),
	}
	_, err := fmt.Sscan(take(settings, "count", "3"), &c.Spec.ControlPlane.Count)
	require.NoError(t, err)
	if schedulable := take(settings, "schedulable", ""); schedulable != "" {
		is := schedulable == "true"
		c.Spec.ControlPlane.Schedulable = &is
	}
	c.Spec.ID = take(settings, "id", "id-of-"+name)
	c.Spec.Endpoint = take(settings, "endpoint", "https://"+name+".example.com:6443")
	listed := func(name string) []string {
		if value := take(settings, name, ""); value != "" {
			return strings.Split(value, ",")
		}
		return nil
	}
	c.Spec.Network.PodSubnets, c.Spec.Network.ServiceSubnets = listed("pods"), listed("services")
	c.Spec.Network.DNSDomain = take(settings, "domain", "")
	c.Spec.TalosVersion = take(settings, "talos", "v1.13.6")
	c.Spec.KubernetesVersion = take(settings, "kubernetes", "v1.36.2")
	c.Spec.Contract = take(settings, "contract", "")
	c.Spec.Rollout.Reboots = schema.RebootPolicy(take(settings, "reboots", ""))
	open, err := time.ParseDuration(take(settings, "open", "1h"))
	require.NoError(t, err)
	if schedule := take(settings, "window", ""); schedule != "" {
		c.Spec.Rollout.Windows = []schema.Window{{Schedule: strings.ReplaceAll(schedule, "_", " "), Duration: schema.Duration(open)}}
	}
	require.Empty(t, settings, name)
	return c
}

func machineOf(t *testing.T, cluster, name string, settings map[string]string) *schema.TalosMachine {
	m := &schema.TalosMachine{
		APIVersion: schema.APIVersion, Kind: schema.KindMachine, Metadata: meta(settings, name),
		Source: source(settings, "clusters/"+cluster+"/machines/"+name+".yaml"),
	}
	m.Spec.ClusterRef.Name = cluster
	m.Spec.Role = schema.RoleWorker
	if takeFlag(settings, "controlplane") {
		m.Spec.Role = schema.RoleControlPlane
	}
	takeFlag(settings, "worker")
	m.Spec.Approved = takeFlag(settings, "approved")
	m.Spec.Endpoint = take(settings, "endpoint", name+"."+cluster+".example.com")
	m.Spec.UUID = take(settings, "uuid", uuidOf(cluster, name))
	m.Spec.Hostname = take(settings, "hostname", "")
	if decided := take(settings, "decided", ""); decided != "" {
		after, err := time.ParseDuration(decided)
		require.NoError(t, err)
		m.Spec.ApprovalDecision = &schema.ApprovalDecision{At: morning.Add(after)}
	}
	if patch := take(settings, "patch", ""); patch != "" {
		m.Spec.Patches = []schema.Patch{{File: patch}}
	}
	require.Empty(t, settings, name)
	return m
}

func uuidOf(cluster, name string) string {
	sum := sha256.Sum256([]byte(cluster + "/" + name))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

func removeOf(t *testing.T, cluster, machine string, settings map[string]string) *schema.TalosOperation {
	name := take(settings, "name", "remove-"+machine)
	o := &schema.TalosOperation{
		APIVersion: schema.APIVersion, Kind: schema.KindOperation, Metadata: meta(settings, name),
		Source: source(settings, "operations/"+name+".yaml"),
	}
	o.Spec.ClusterRef = schema.ClusterRef{Name: cluster, ID: take(settings, "id", "id-of-"+cluster)}
	o.Spec.Kind = schema.OperationNode
	made, err := time.ParseDuration(take(settings, "made", "0s"))
	require.NoError(t, err)
	o.Spec.CreatedAt, o.Spec.ExpiresAt = morning.Add(made), morning.Add(made+time.Hour)
	o.Spec.Node = &schema.NodeOperation{
		Action:     take(settings, "action", "remove"),
		Gone:       takeFlag(settings, "gone"),
		MachineRef: schema.MachineRef{Name: machine, UUID: take(settings, "uuid", uuidOf(cluster, machine))},
	}
	require.Empty(t, settings, name)
	return o
}

func backupOf(t *testing.T, cluster, name string, settings map[string]string) *schema.TalosEtcdBackup {
	b := &schema.TalosEtcdBackup{
		APIVersion: schema.APIVersion, Kind: schema.KindBackup, Metadata: meta(settings, name),
		Source: source(settings, "clusters/"+cluster+"/backup.yaml"),
	}
	b.Spec.ClusterRef.Name = cluster
	b.Spec.Destination.S3 = &schema.S3Destination{
		Endpoint: take(settings, "endpoint", "https://s3.example.com"), Bucket: take(settings, "bucket", "backups"),
		Prefix: take(settings, "prefix", cluster),
	}
	require.Empty(t, settings, name)
	return b
}
