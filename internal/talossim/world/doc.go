// Package world is what simulated machines share and none of them owns: the network between them, the discovery service,
// the trustd of the control planes, and which of them serve the Kubernetes API.
//
// It outlives every machine in it. A wiped machine's discovery entry stands until it expires.
package world
