package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/cputime"
	"ichor.maesh.dev/internal/etcdfile"
	"ichor.maesh.dev/talos"
)

// takeEnv makes this program take a snapshot from a file, sealing it into a folder, and end: "FILE\nBUNDLE\nFOLDER\nSEALED".
const takeEnv = "ICHOR_BENCH_TAKE"

// raiseEnv makes this program raise the revision of a snapshot, and end: "FROM\nTO".
const raiseEnv = "ICHOR_BENCH_RAISE"

func TestMain(m *testing.M) {
	revision.RunIfChild()
	if order := os.Getenv(raiseEnv); order != "" {
		from, to, _ := strings.Cut(order, "\n")
		if _, err := revision.Rewrite(context.Background(), from, to, 1_000_000_000); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if order := os.Getenv(uploadEnv); order != "" {
		if err := uploadAlone(strings.Split(order, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if order := os.Getenv(takeEnv); order != "" {
		if err := takeAlone(strings.Split(order, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func takeAlone(order []string) error {
	taken, err := takeFile(order[0], order[1], order[2])
	if err != nil {
		return err
	}
	defer taken.Close()
	if order[3] == "" {
		return nil
	}
	sealed, err := os.Create(order[3])
	if err != nil {
		return err
	}
	if _, err := io.Copy(sealed, taken.Sealed()); err != nil {
		return err
	}
	return sealed.Close()
}

// takeFile does what the agent does with a member's stream, up to the upload.
func takeFile(snapshot, bundle, folder string) (*backup.Taken, error) {
	_, owner, err := openBundle(bundle)
	if err != nil {
		return nil, err
	}
	spool, err := backup.OpenSpool(folder)
	if err != nil {
		return nil, err
	}
	return backup.Take(context.Background(), []backup.Node{fileMember(snapshot)}, spool, owner.Passphrase, clock.RealClock{})
}

// openBundle reads a bundle, and what seals its cluster's backups.
func openBundle(path string) (*talos.Bundle, backup.Owner, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, backup.Owner{}, err
	}
	bundle, err := talos.LoadBundle(text)
	if err != nil {
		return nil, backup.Owner{}, err
	}
	material := bundle.SealingMaterial()
	owner, err := backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
	return bundle, owner, err
}

// fileMember is a control plane whose etcd streams a file.
type fileMember string

func (fileMember) Name() string { return "cp-1" }

func (fileMember) EtcdStatus(context.Context) (backup.EtcdStatus, error) {
	return backup.EtcdStatus{MemberID: 2, Leader: 1}, nil
}

func (m fileMember) EtcdSnapshot(context.Context) (io.ReadCloser, error) { return os.Open(string(m)) }

// entrySize is of one key with its value and what bbolt adds, about.
const entrySize = 4 << 10

func makeSnapshot(b *testing.B, size int64) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "etcd.snapshot")
	if _, err := etcdfile.Write(path, etcdfile.Options{Keys: int(size / entrySize), ValueSize: entrySize - 150}); err != nil {
		b.Fatal(err)
	}
	return path
}

func makeBundle(b *testing.B) string {
	b.Helper()
	bundle, err := talos.GenerateBundle("v1.13")
	if err != nil {
		b.Fatal(err)
	}
	text, err := bundle.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "bundle.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// BenchmarkSealing runs over the same 512 MiB: what is done with a stream until it could be uploaded, and its parts.
func BenchmarkSealing(b *testing.B) {
	snapshot, bundle, folder := makeSnapshot(b, 512<<20), makeBundle(b), b.TempDir()
	info, err := os.Stat(snapshot)
	if err != nil {
		b.Fatal(err)
	}
	each := func(name string, do func(in *os.File) error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(info.Size())
			defer cputime.Of(b)()
			for b.Loop() {
				in, err := os.Open(snapshot)
				if err != nil {
					b.Fatal(err)
				}
				if err := do(in); err != nil {
					b.Fatal(err)
				}
				_ = in.Close()
			}
			b.ReportMetric(float64(info.Size())/(1<<20)*float64(b.N)/b.Elapsed().Seconds(), "MiB/s")
		})
	}
	each("sha256", func(in *os.File) error {
		_, err := io.Copy(sha256.New(), in)
		return err
	})
	each("age", func(in *os.File) error {
		out, err := os.CreateTemp(folder, "age-*")
		if err != nil {
			return err
		}
		defer os.Remove(out.Name())
		defer out.Close()
		recipient, err := age.NewScryptRecipient("a passphrase that is long enough")
		if err != nil {
			return err
		}
		recipient.SetWorkFactor(10)
		sealing, err := age.Encrypt(out, recipient)
		if err != nil {
			return err
		}
		if _, err := io.Copy(sealing, in); err != nil {
			return err
		}
		return sealing.Close()
	})
	each("take", func(*os.File) error {
		taken, err := takeFile(snapshot, bundle, folder)
		if err != nil {
			return err
		}
		return taken.Close()
	})
}

// growthLimit is how much anonymous memory may grow, in MiB, whatever the size of the snapshot.
const growthLimit = 64

// BenchmarkSnapshotMemory runs the real commands, and what the agent does with a stream, each in a process of its own, and compares the
// most anonymous memory that it and its children took with that of the same over a snapshot of 1 MiB.
func BenchmarkSnapshotMemory(b *testing.B) {
	folder := b.TempDir()
	succeed(b, "GOBIN="+folder, "go", "install", "ichor.maesh.dev/cmd/ichor")
	bundle, ichor := makeBundle(b), filepath.Join(folder, "ichor")
	small := measureAll(b, ichor, bundle, 1<<20)
	for _, size := range sizes {
		var large map[string]measured
		for _, operation := range operations {
			b.Run(fmt.Sprintf("%s %d MiB", operation, size>>20), func(b *testing.B) {
				for b.Loop() {
					if large == nil {
						large = measureAll(b, ichor, bundle, size)
					}
				}
				growth := (large[operation].anonymous - small[operation].anonymous) >> 10
				b.ReportMetric(float64(large[operation].took.Nanoseconds()), "ns/op")
				b.ReportMetric(float64(large[operation].processor.Milliseconds()), cputime.Unit)
				b.ReportMetric(float64(growth), "MiB-grown")
				b.ReportMetric(float64(large[operation].anonymous>>10), "MiB-anonymous")
				if growth >= growthLimit {
					b.Fatalf("%s of %d MiB grew by %d MiB", operation, size>>20, growth)
				}
			})
		}
	}
}

// BenchmarkRaisingMemory is the same for making a snapshot safe to restore.
func BenchmarkRaisingMemory(b *testing.B) {
	raise := func(size int64) measured {
		self, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		command := exec.Command(self)
		command.Env = append(os.Environ(), raiseEnv+"="+makeSnapshot(b, size)+"\n"+filepath.Join(b.TempDir(), "raised.db"))
		return watch(b, command)
	}
	small := raise(1 << 20)
	for _, size := range restored {
		b.Run(fmt.Sprintf("%d MiB", size>>20), func(b *testing.B) {
			var large measured
			for b.Loop() {
				large = raise(size)
			}
			growth := (large.anonymous - small.anonymous) >> 10
			b.ReportMetric(float64(large.took.Nanoseconds()), "ns/op")
			b.ReportMetric(float64(large.processor.Milliseconds()), cputime.Unit)
			b.ReportMetric(float64(growth), "MiB-grown")
			b.ReportMetric(float64(large.anonymous>>10), "MiB-anonymous")
			if growth >= growthLimit {
				b.Fatalf("raising the revision of %d MiB grew by %d MiB", size>>20, growth)
			}
		})
	}
}

type measured struct {
	anonymous       int64 // KiB
	took, processor time.Duration
}

func measureAll(b *testing.B, ichor, bundle string, size int64) map[string]measured {
	b.Helper()
	snapshot, dir := makeSnapshot(b, size), b.TempDir()
	sealed := filepath.Join(dir, "etcd.snapshot.age")
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	seal := exec.Command(self)
	seal.Env = append(os.Environ(), takeEnv+"="+strings.Join([]string{snapshot, bundle, dir, sealed}, "\n"))
	results := map[string]measured{"seal": watch(b, seal)}
	given := []string{"--bundle", bundle, "--file", sealed}
	results["verify"] = watch(b, exec.Command(ichor, append([]string{"backup", "verify"}, given...)...))
	results["get --decrypt"] = watch(b, exec.Command(ichor, append([]string{"backup", "get", "--decrypt", "--out", filepath.Join(dir, "plain")}, given...)...))
	results["drill"] = watch(b, exec.Command(ichor, append([]string{"backup", "drill", "--spool", filepath.Join(dir, "spool")}, given...)...))
	if err := os.RemoveAll(dir); err != nil {
		b.Fatal(err)
	}
	return results
}

// watch runs a command to its end and looks every few milliseconds at what it and its children hold.
func watch(b *testing.B, command *exec.Cmd) measured {
	b.Helper()
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	began := time.Now()
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- command.Wait() }()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	var most int64
	for {
		select {
		case err := <-done:
			if err != nil {
				b.Fatalf("%s: %v\n%s", command, err, out.String())
			}
			return measured{most, time.Since(began), command.ProcessState.UserTime() + command.ProcessState.SystemTime()}
		case <-look.C:
			most = max(most, anonymousOf(command.Process.Pid))
		}
	}
}

// anonymousOf is the anonymous memory of a process and its children in KiB.
func anonymousOf(pid int) int64 {
	var sum int64
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // it may have ended
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			sum += kib
		}
	}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				sum += anonymousOf(n)
			}
		}
	}
	return sum
}
