package schema

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// tree makes a repository from files by name.
func tree(files map[string]string) fs.FS {
	made := fstest.MapFS{}
	for name, text := range files {
		made[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return made
}

// load reads all of a repository.
func loadAll(files map[string]string) (*Fleet, []Problem) { return Load(tree(files), []string{"."}) }

// lines gives problems as they would be shown, one a line.
func lines(problems []Problem) string {
	var out strings.Builder
	for _, p := range problems {
		out.WriteString(line(p) + "\n")
	}
	return out.String()
}

func line(p Problem) string {
	text := p.File
	if p.Line > 0 {
		text += ":" + itoa(p.Line) + ":" + itoa(p.Column)
	}
	return text + ": [" + p.Cluster + "] " + p.Message
}

func requireClean(t *testing.T, problems []Problem) {
	t.Helper()
	require.Empty(t, problems, lines(problems))
}

const clusterYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: prod
spec:
  id: 1f3a9c0d2b4e6f78
  endpoint: https://10.0.0.10:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  controlPlane:
    count: 3
  secrets:
    file: secrets.age
`

const machineYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: cp-1
spec:
  clusterRef:
    name: prod
  role: controlplane
  endpoint: 10.0.0.11
  uuid: 4c4c4544-0039-3510-8052-b4c04f4e3732
`

const backupYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata:
  name: hourly
spec:
  clusterRef:
    name: prod
  destination:
    s3:
      endpoint: https://s3.example.com
      bucket: backups
`

const operationYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata:
  name: 20261129-reboot-w1
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: node
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  node:
    machineRef: {name: w-1, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3733}
    action: reboot
`

const policyYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: Policy
metadata:
  name: house
spec:
  rules:
  - name: prod-is-ha
    scope: cluster
    expr: "self.spec.controlPlane.count >= 3"
    message: "'prod needs three control planes'"
`

// edited replaces a part of a document that must be in it.
func edited(document, old, with string) string {
	if !strings.Contains(document, old) {
		panic("the document doesn't hold " + old)
	}
	return strings.Replace(document, old, with, 1)
}
