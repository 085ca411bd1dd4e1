// Package talossim runs simulated Talos machines in the process of a test, a demo or a benchmark.
//
// A [Farm] is a set of machines, each on its own loopback address, port 50000, with Talos's real gRPC services over
// mutual TLS, its disk kept as folders and a real embedded etcd in each control plane. A machine behaves as Talos does,
// the inconvenient parts above all: it answers before it acts, goes away without a goodbye, comes back with a new boot
// ID, joins an etcd by itself, and leaves behind what Talos leaves behind. docs/talossim.md lists those behaviours.
//
// Talos's own constants are kept and divided by [Options.TimeScale]; whatever waits, waits on [Options.Clock]. What is
// inside a real etcd (elections, its five-second health rule for a new member) isn't scaled.
package talossim
