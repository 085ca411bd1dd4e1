package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	talosclient "github.com/siderolabs/talos/pkg/machinery/client"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// pace is how many times as fast the simulated machines live: as real ones, because what calls wait for has times of its own. round is what a
// promotion round of Talos takes them.
const pace = 1

const round = 15 * time.Second / pace

// turns is how often each restore is measured.
const turns = 2

// each is how long either restore may take on a very busy machine.
const each = 20 * time.Minute

// restoreFarm is three simulated control planes with a real etcd each, and a snapshot of it.
type restoreFarm struct {
	*testing.B
	farm     *talossim.Farm
	bundle   *talos.Bundle
	client   *talos.Client
	snapshot string
}

func newRestoreFarm(b *testing.B) *restoreFarm {
	b.Helper()
	f := &restoreFarm{B: b}
	var err error
	if f.bundle, err = talos.GenerateBundle("v1.13"); err != nil {
		b.Fatal(err)
	}
	if f.farm, err = talossim.Start(b.Context(), talossim.Options{Dir: b.TempDir(), First: "127.0.100.1", ControlPlanes: 3, TimeScale: pace}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.farm.Close() })
	f.client = talos.NewClient(f.bundle, talos.ClientOptions{})
	b.Cleanup(func() { _ = f.client.Close() })
	cluster := &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}, Spec: schema.ClusterSpec{
		Endpoint: "https://127.0.100.1:6443", TalosVersion: "v1.13.6", KubernetesVersion: "v1.36.2", Contract: "v1.13",
		ControlPlane: schema.ControlPlaneSpec{Count: 3}, Install: schema.InstallSpec{Disk: "/dev/sda"},
	}}
	for _, node := range f.farm.Nodes() {
		machine := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: node.Name()}, Spec: schema.MachineSpec{
			ClusterRef: schema.ClusterRef{Name: "prod"}, Role: schema.RoleControlPlane, Endpoint: node.Address(), UUID: node.UUID(), Hostname: node.Name(), Approved: true}}
		rendered, err := talos.Render(cluster, machine, f.bundle, talos.RenderOptions{})
		if err != nil {
			b.Fatal(err)
		}
		target := talos.Target{Name: node.Name(), Endpoint: node.Address()}
		f.until(node.Name()+" takes its config", func(ctx context.Context) error {
			seen := f.client.Observe(ctx, target)
			session, err := f.client.DialMaintenance(ctx, target, seen.Fingerprint)
			if err != nil {
				return err
			}
			defer func() { _ = session.Close() }()
			return session.ApplyConfig(ctx, talos.ApplyRequest{Config: rendered.Bytes, Mode: talos.ApplyNoReboot})
		})
	}
	f.until("the bootstrap", func(ctx context.Context) error {
		return f.session(ctx, func(s *talos.Session) error { return s.Bootstrap(ctx) })
	})
	f.until("every control plane has joined", f.joined)
	f.until("the snapshot", func(ctx context.Context) error {
		return f.session(ctx, func(s *talos.Session) error {
			stream, err := s.EtcdSnapshot(ctx)
			if err != nil {
				return err
			}
			content, err := io.ReadAll(stream)
			f.snapshot = filepath.Join(b.TempDir(), "snapshot")
			return errors.Join(err, stream.Close(), os.WriteFile(f.snapshot, content, 0o600))
		})
	})
	return f
}

func (f *restoreFarm) session(ctx context.Context, do func(*talos.Session) error) error {
	session, err := f.client.Dial(ctx, talos.Target{Name: "cp-1", Endpoint: f.farm.Node("cp-1").Address(), ControlPlane: true}, talos.RoleAdmin)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	return do(session)
}

// joined wants three voters.
func (f *restoreFarm) joined(ctx context.Context) error {
	return f.session(ctx, func(s *talos.Session) error {
		members, err := s.Members(ctx)
		voters := 0
		for _, m := range members {
			if !m.Learner && m.Name != "" {
				voters++
			}
		}
		if err == nil && voters != 3 {
			err = fmt.Errorf("%d voters", voters)
		}
		return err
	})
}

// until asks again and again, as often as the restores look.
func (f *restoreFarm) until(what string, condition func(ctx context.Context) error) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), each)
	defer cancel()
	look := time.NewTicker(recovery.DefaultTiming().Scaled(pace).Look)
	defer look.Stop()
	for {
		call, stop := context.WithTimeout(ctx, 10*time.Second)
		err := condition(call)
		stop()
		if err == nil {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			f.Fatalf("%s: %v", what, err)
		}
	}
}

// calls counts what the machines took that changes them.
func (f *restoreFarm) calls() int {
	n := 0
	for _, node := range f.farm.Nodes() {
		for _, method := range []string{"Reset", "Reboot", "EtcdLeaveCluster", "EtcdRecover", "Bootstrap", "ServiceRestart", "ApplyConfiguration", "EtcdRemoveMemberByID"} {
			n += len(node.Accepted(method))
		}
	}
	return n
}

// byHand is Talos's own procedure as a script does it with the machinery's client: wipe all, wait, upload, recover, wait until all have joined.
func (f *restoreFarm) byHand() {
	f.Helper()
	machines := map[string]*talosclient.Client{}
	boots := map[string]string{}
	for _, node := range f.farm.Nodes() {
		certificate, err := f.bundle.Mint(talos.RoleAdmin, time.Hour, time.Now())
		if err != nil {
			f.Fatal(err)
		}
		client, err := talosclient.New(f.Context(), talosclient.WithEndpoints(node.Address()),
			talosclient.WithTLSConfig(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true})) //nolint:gosec // simulated machines
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { _ = client.Close() })
		machines[node.Name()], boots[node.Name()] = client, node.BootID()
	}
	for name, client := range machines {
		f.until("the reset of "+name, func(ctx context.Context) error {
			_, err := client.MachineClient.Reset(ctx, &machineapi.ResetRequest{Reboot: true, Mode: machineapi.ResetRequest_SYSTEM_DISK,
				SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{{Label: "EPHEMERAL", Wipe: true}}})
			return err
		})
	}
	for name, client := range machines {
		f.until(name+" waits", func(ctx context.Context) error {
			if f.farm.Node(name).BootID() == boots[name] {
				return errors.New("it has not rebooted")
			}
			services, err := client.ServiceInfo(ctx, "etcd")
			if err == nil && (len(services) != 1 || services[0].Service.GetState() != "Preparing") {
				err = errors.New("its etcd is not waiting")
			}
			return err
		})
	}
	content, err := os.ReadFile(f.snapshot)
	if err != nil {
		f.Fatal(err)
	}
	target := machines["cp-1"]
	f.until("the upload", func(ctx context.Context) error {
		_, err := target.EtcdRecover(ctx, bytes.NewReader(content))
		return err
	})
	f.until("the recovery", func(ctx context.Context) error {
		return target.Bootstrap(ctx, &machineapi.BootstrapRequest{RecoverEtcd: true})
	})
	f.until("all have joined", f.joined)
}

// byIchor is the same restore as Ichor drives it; it gives when all had joined.
func (f *restoreFarm) byIchor() (joined time.Time) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), each)
	defer cancel()
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	spool, err := backup.OpenSpool(filepath.Join(f.TempDir(), "spool"))
	must(err)
	file, err := os.Open(f.snapshot)
	must(err)
	defer func() { _ = file.Close() }()
	ready, err := revision.Prepare(ctx, file, 1<<20, spool, func(own int64) (int64, error) { return revision.Target(revision.Known{Snapshot: own}) })
	must(err)
	defer func() { _ = ready.Close() }()
	store, err := statefile.OpenFolder(f.TempDir(), statefile.FolderOptions{})
	must(err)
	defer func() { _ = store.Close() }()
	material := f.bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	must(err)
	m := &recovery.Marker{ID: recovery.NewID(), Cluster: recovery.Cluster{Name: "prod", ID: material.ClusterID}, Target: "cp-1",
		Snapshot: recovery.Snapshot{Name: "file", Revision: ready.Before.Revision, Keys: ready.Before.Keys}}
	m.Snapshot.Raise(ready.After.Revision, 0)
	var servers []string
	for _, node := range f.farm.Nodes() {
		m.Machines = append(m.Machines, recovery.Machine{Name: node.Name(), Endpoint: node.Address(), UUID: node.UUID()})
		m.Wipe, servers = append(m.Wipe, node.Name()), append(servers, node.Address())
	}
	api, err := reconcile.OpenKubernetes(time.Now)(f.bundle, servers)
	must(err)
	run := &recovery.Run{Nodes: recovery.TalosNodes(f.client), Marker: backup.NewMarker(store, sealer), Fence: recovery.NoFence{}, Kubernetes: api, Prepared: ready,
		Count: recovery.CountIn(spool), Say: func(string) {}, Clock: clock.RealClock{}, Clocks: statefile.SystemClocks(), Timing: recovery.DefaultTiming().Scaled(pace), Scrubber: scrub.New()}
	_, err = run.Marker.Read(ctx)
	must(err)
	must(run.Begin(ctx, m))
	look := time.NewTicker(run.Timing.Look)
	defer look.Stop()
	for said := ""; ; {
		now, says, err := run.Advance(ctx)
		must(err)
		if joined.IsZero() && (now.Phase == recovery.PhaseReconciling || now.Phase == recovery.PhaseDone) {
			joined = time.Now()
		}
		if now.Phase == recovery.PhaseDone {
			return joined
		}
		if waits := says == said; !waits { // something was done: it looks again at once
			said = says
			continue
		}
		<-look.C
	}
}

// BenchmarkRestoreByHand restores the same machines from the same snapshot, in turns as a script does it and as Ichor does, and gives the fastest of
// each. It fails when Ichor has made more calls until all have joined.
func BenchmarkRestoreByHand(b *testing.B) {
	f := newRestoreFarm(b)
	hand, joined, whole := each, each, each
	handCalls, ichorCalls := 0, 0
	for range turns {
		before, began := f.calls(), time.Now()
		f.byHand()
		hand, handCalls = min(hand, time.Since(began)), f.calls()-before
		f.settle()
		before, began = f.calls(), time.Now()
		at := f.byIchor()
		whole, joined, ichorCalls = min(whole, time.Since(began)), min(joined, at.Sub(began)), f.calls()-before
		f.settle()
	}
	report := func(name string, took time.Duration, calls int, more map[string]float64) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() { // it was measured above, in turns
				b.ReportMetric(float64(took.Nanoseconds()), "ns/op")
			}
			b.ReportMetric(float64(calls), "calls")
			for unit, value := range more {
				b.ReportMetric(value, unit)
			}
		})
	}
	report("by hand", hand, handCalls, nil)
	report("ichor", whole, ichorCalls, map[string]float64{"s-until-joined": joined.Seconds(), "rounds-behind": float64(joined-hand) / float64(round)})
	if ichorCalls > handCalls {
		b.Fatalf("Ichor made %d calls, and by hand it took %d", ichorCalls, handCalls)
	}
}

// settle waits until the machines are ready for the next restore.
func (f *restoreFarm) settle() {
	for _, node := range f.farm.Nodes() {
		f.until(node.Name()+" is ready", func(ctx context.Context) error {
			seen := f.client.Observe(ctx, talos.Target{Name: node.Name(), Endpoint: node.Address(), ControlPlane: true})
			if seen.Etcd.ServiceHealthy != talos.Yes || seen.NodeReady != talos.Yes {
				return errors.New(seen.Problem)
			}
			return nil
		})
	}
}
