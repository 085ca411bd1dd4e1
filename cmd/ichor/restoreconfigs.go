package main

import (
	"fmt"
	"net/netip"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// recoveryConfigs gives the configs of a fleet's machines, each on the terms of the agent: only to a machine that someone vouched for, and only to
// a disk that is there and empty, or may be wiped.
func recoveryConfigs(comparer *reconcile.Comparer, machines map[string]*schema.TalosMachine, networks []netip.Prefix) func(string, talos.Observation) (recovery.Config, string) {
	return func(name string, seen talos.Observation) (recovery.Config, string) {
		m := machines[name]
		if m == nil {
			return recovery.Config{}, fmt.Sprintf("%s is in maintenance mode and not in the fleet checkout: no config can be made for it", name)
		}
		if !reconcile.Trusted(m, seen.Fingerprint, networks) {
			return recovery.Config{}, fmt.Sprintf("%s is in maintenance mode and shows the fingerprint %s, and neither is that its spec.fingerprint nor is %s in a trusted "+
				"network; compare it with the machine's console and set spec.fingerprint, or give --trust-maintenance-network", name, seen.Fingerprint, m.Spec.Endpoint)
		}
		view := comparer.View(m, seen)
		switch {
		case view.Problem != "":
			return recovery.Config{}, fmt.Sprintf("the config of %s can't be rendered: %s", name, view.Problem)
		case view.DiskProblem != "":
			return recovery.Config{}, fmt.Sprintf("%s is not installed: %s", name, view.DiskProblem)
		}
		rendered, err := comparer.Render(m, seen.Active, true)
		if err != nil {
			return recovery.Config{}, fmt.Sprintf("the config of %s can't be rendered: %s", name, err)
		}
		return recovery.Config{Bytes: rendered.Bytes, Digest: rendered.Digest}, ""
	}
}
