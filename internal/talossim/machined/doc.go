// Package machined is the operating system of a simulated Talos machine: one [Machine] is one boot, from the kernel to
// whatever ends it.
//
// What a machine remembers follows Talos's lifetimes: the process (the [Machine] itself: events, resource versions, the
// apply flag, the timer of a tried config), the partitions EPHEMERAL, STATE and META ([Store]), and the world outside
// (etcd with Kubernetes' objects in it, discovery). The sequences, their phases, the table of who may interrupt whom, the
// services and their states, the checks of each call and the texts of its errors are Talos 1.13's.
//
// Deliberately coarse: what a phase does besides its order and its length, what runs in Kubernetes (package kubeapi has its API, and the
// kubelet here does to it what a kubelet does), and everything about the network but addresses and names.
package machined
