package talossim_test

import (
	"testing"
	"time"

	"ichor.maesh.dev/internal/talossim"
)

func TestOneControlPlaneComesUpFromMaintenance(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.1", ControlPlanes: 1})
	n := b.farm.Nodes()[0]
	started := time.Now()
	b.configure(n)
	t.Logf("configured after %s", time.Since(started))
	b.bootstrap(n)
	t.Logf("bootstrapped after %s", time.Since(started))
	b.voters(n, 1)
	b.ready(n)
	t.Logf("ready after %s, %d boots", time.Since(started), n.Boots())
}

func TestThreeControlPlanesAndAWorkerComeUp(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.11", ControlPlanes: 3, Workers: 1})
	nodes := b.farm.Nodes()
	started := time.Now()
	b.configure(nodes...)
	t.Logf("configured after %s", time.Since(started))
	b.bootstrap(nodes[0])
	t.Logf("bootstrapped after %s", time.Since(started))
	b.voters(nodes[0], 3)
	t.Logf("joined after %s", time.Since(started))
	b.ready(nodes...)
	t.Logf("ready after %s", time.Since(started))
}

func TestAHurriedFarmComesUpInSeconds(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.141", ControlPlanes: 3, Workers: 1, TimeScale: 100, LooseMembership: true})
	nodes := b.farm.Nodes()
	started := time.Now()
	b.configure(nodes...)
	b.bootstrap(nodes[0])
	b.voters(nodes[0], 3)
	b.ready(nodes...)
	t.Logf("ready after %s", time.Since(started))
}
