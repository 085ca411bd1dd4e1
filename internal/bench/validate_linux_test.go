package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ichor.maesh.dev/internal/cputime"
)

// kubeconform is the peer: it checks each document against a JSON Schema, and knows nothing of other documents.
const kubeconform = "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0"

// BenchmarkValidateCommand runs the real command and its peer over the same files, each document in a file of its own. The
// time is that of the fastest of a few runs, since both are started while other things may run.
func BenchmarkValidateCommand(b *testing.B) {
	bin := b.TempDir()
	for _, program := range []string{"ichor.maesh.dev/cmd/ichor", kubeconform} {
		succeed(b, "GOBIN="+bin, "go", "install", program)
	}
	schemas := filepath.Join(bin, "schemas")
	succeed(b, "", filepath.Join(bin, "ichor"), "schema", "--dir", schemas)
	lowerNames(b, schemas)
	for _, documents := range []int{1_000, 10_000, 50_000} {
		fleet := b.TempDir()
		writeFleet(b, fleet, documents)
		succeed(b, "", "git", "init", "-q", fleet) // outside of a checkout ichor takes no folder of so many files for a fleet
		name := fmt.Sprintf("%d documents", documents)
		b.Run("ichor "+name, func(b *testing.B) {
			fastest(b, filepath.Join(bin, "ichor"), "validate", "--no-render", fleet)
		})
		b.Run("kubeconform "+name, func(b *testing.B) {
			fastest(b, filepath.Join(bin, "kubeconform"), "-schema-location", filepath.Join(schemas, "{{ .ResourceKind }}.json"),
				"-ignore-filename-pattern", "patches/", fleet)
		})
	}
}

func succeed(b *testing.B, environment string, name string, arguments ...string) {
	b.Helper()
	command := exec.Command(name, arguments...)
	command.Env = append(os.Environ(), environment)
	if out, err := command.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// lowerNames gives each schema the name under which the peer looks for it.
func lowerNames(b *testing.B, folder string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		b.Fatal(err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, strings.ToLower(entry.Name())), text, 0o600))
		if err != nil {
			b.Fatal(err)
		}
	}
}

// fastest runs a command, which must find nothing wrong, and reports the shortest of its times, and the most memory that
// it took.
func fastest(b *testing.B, name string, arguments ...string) {
	const runs = 3
	best, memory := time.Hour, int64(0)
	processor := time.Hour
	for b.Loop() {
		for range runs {
			var out bytes.Buffer
			command := exec.Command(name, arguments...)
			command.Stdout, command.Stderr = &out, &out
			began := time.Now()
			if err := command.Run(); err != nil {
				b.Fatalf("%s: %v\n%.2000s", name, err, out.String())
			}
			best = min(best, time.Since(began))
			usage, ok := command.ProcessState.SysUsage().(*syscall.Rusage)
			if !ok {
				b.Fatal("this system doesn't say what a process took")
			}
			processor = min(processor, time.Duration(usage.Utime.Nano()+usage.Stime.Nano()))
			memory = max(memory, usage.Maxrss>>10)
		}
	}
	b.ReportMetric(float64(best.Nanoseconds()), "ns/op")
	b.ReportMetric(float64(processor.Milliseconds()), cputime.Unit)
	b.ReportMetric(float64(memory), "MiB-peak")
}

const benchCluster = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata:
  name: cluster-%[1]d
spec:
  id: a%015[1]x
  endpoint: https://cluster-%[1]d.example.com:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  contract: v1.13
  controlPlane: {count: 3, schedulable: false}
  secrets: {file: secrets.age}
  install: {image: factory.talos.dev/installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba, disk: /dev/sda}
  patches: {all: [{file: patches/all.yaml}]}
`

const benchMachine = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata:
  name: m-%[2]d
  labels: {rack: r1}
spec:
  clusterRef: {name: cluster-%[1]d}
  role: %[3]s
  endpoint: 10.%[4]d.%[5]d.%[6]d
  uuid: %08[7]x-0039-4210-8052-b4c04f4d3132
  hostname: m-%[2]d
  approved: true
  approvalDecision: {at: 2026-11-29T10:00:00Z, by: alice@example.com}
`

// writeFleet writes so many documents: clusters with 99 machines each.
func writeFleet(b *testing.B, folder string, documents int) {
	write := func(name, text string) {
		name = filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	for n := range documents {
		cluster, machine := n/100, n%100
		here := fmt.Sprintf("clusters/cluster-%d/", cluster)
		if machine == 0 {
			write(here+"cluster.yaml", fmt.Sprintf(benchCluster, cluster))
			write(here+"secrets.age", "")
			write(here+"patches/all.yaml", "machine: {}\n")
			continue
		}
		role := "worker"
		if machine <= 3 {
			role = "controlplane"
		}
		write(fmt.Sprintf("%smachines/m-%d.yaml", here, machine),
			fmt.Sprintf(benchMachine, cluster, machine, role, n>>16&255, n>>8&255, n&255, n))
	}
}
