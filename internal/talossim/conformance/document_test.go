package conformance_test

import (
	"fmt"
	"strings"
)

const documentHead = `# What simulated Talos nodes are held to

<!-- Written by: go test ./internal/talossim/conformance -run TestDocument -args -update -->

Ichor is tested against simulated Talos nodes (` + "`internal/talossim`" + `, binary ` + "`talossim`" + `). What passes there must pass on
real nodes, so the simulator is held to the expectations below, Talos v1.13's behaviour, each with the place in Talos's source
that says so. The same suite runs against real nodes:

    go test ./internal/talossim/conformance -args -talosconfig FILE -nodes 10.0.0.11,10.0.0.12,10.0.0.13,10.0.0.21

That asks the nodes and changes nothing that matters; ` + "`-destructive`" + ` adds the phases *changing* and *disruptive*, which
reboot, wipe and break the nodes, etcd's data included. What the given nodes can't be asked is skipped, by name. Nodes in
maintenance mode may be among those given; they serve the expectations of that phase. Without arguments the suite starts simulated
nodes of its own, with Talos's times divided by 20 (by 400 where half an hour must pass), and takes them through everything.

*Known* says how far an expectation can be trusted: "seen on real nodes" was watched on Talos v1.13.6 (three control planes and a
worker, container platform with reboots and EPHEMERAL resets made to follow the metal phases); "from source" was read in Talos's
source and not yet seen. An expectation counts as seen only where all that its sentence says was.

Phases: *maintenance*, a machine without a config; *maintenance, power*, the same, and it gets its config or loses its power; *configured*, before the bootstrap; *bootstrapped*, a healthy cluster, only read;
*changing*, configs and services are changed and changed back; *disruptive*, nodes go away; *power*, somebody must push the power button
or turn the clock, so simulated machines only; *container*, nodes on the container platform.

`

// document renders the table of expectations, in the order in which they run.
func document(list []expectation) string {
	var b strings.Builder

	b.WriteString(documentHead)

	counts := map[origin]int{}
	for _, x := range list {
		counts[x.known]++
	}

	fmt.Fprintf(&b, "%d expectations: %d seen on real nodes, %d from source.\n\n", len(list), counts[seen], counts[fromSource])
	b.WriteString("| No. | A node … | Phase | Source | Known |\n|---|---|---|---|---|\n")

	for _, x := range list {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", x.id, x.sentence, x.needs, x.source, x.known)
	}

	return b.String()
}
