// Package keptport keeps a port for a server that tests, or the demo, take away and bring back at the same address.
//
// A port that nobody is bound to may go to any connection of the host meanwhile. A kept one is bound and not listened on: who
// calls there is refused, nobody else gets it, and a server may listen on it.
package keptport

import "os"

// Port is a port of 127.0.0.1 that is kept for as long as the value is there.
type Port struct {
	// Address is host:port.
	Address string
	socket  *os.File // nil where a port can't be kept; closed with the last reference
}
