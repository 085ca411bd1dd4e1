// Package conformance says what a Talos node does, as tests that run against any nodes: simulated ones, or real ones.
//
//	go test ./internal/talossim/conformance
//	go test ./internal/talossim/conformance -args -talosconfig FILE -nodes 10.0.0.11,10.0.0.12,10.0.0.13,10.0.0.21
//
// Without arguments the suite starts simulated machines of its own and takes them through everything. Against given nodes it
// runs what they can be asked without disturbing them; -destructive adds what reboots, wipes and breaks them. What it can't
// ask of the given nodes it skips, saying what is missing. docs/conformance.md lists every expectation, where it comes from, and
// whether real nodes were seen to do so or only Talos's source says it; it is written by -update.
// With CONFORMANCE_CONSOLE set in the environment the simulated machines' consoles are shown.
package conformance
