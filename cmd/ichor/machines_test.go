package main

import (
	"context"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/talos"
)

// machines is a command for scripts: `machines N FIRST` starts simulated control planes in maintenance mode at FIRST and the
// addresses after it, and sets $UUID_1 and so on. They go with the script. Each script has a range of its own.
func machines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: machines N FIRST")
	}
	count, err := strconv.Atoi(args[0])
	ts.Check(err)
	_, err = netip.ParseAddr(args[1])
	ts.Check(err)
	farm, err := talossim.Start(context.Background(), talossim.Options{
		Dir: filepath.Join(ts.Getenv("WORK"), ".machines"), First: args[1], ControlPlanes: count, TimeScale: 20,
	})
	ts.Check(err)
	ts.Defer(func() { _ = farm.Close() })
	client := talos.NewClient(nil, talos.ClientOptions{})
	defer client.Close()
	for i, node := range farm.Nodes() {
		target := talos.Target{Name: node.Name(), Endpoint: node.Endpoint()}
		waiting, stop := context.WithTimeout(context.Background(), 5*time.Minute)
		defer stop()
		look := time.NewTicker(50 * time.Millisecond)
		defer look.Stop()
		for client.Observe(waiting, target).UUID == "" {
			select {
			case <-look.C:
			case <-waiting.Done():
				ts.Fatalf("%s does not come into maintenance mode", node.Name())
			}
		}
		ts.Setenv("UUID_"+strconv.Itoa(i+1), node.UUID())
	}
}
