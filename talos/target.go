package talos

import "ichor.maesh.dev/schema"

// Target is the machine that is to be reached.
type Target struct {
	// Name is for texts.
	Name string
	// Endpoint is host or host:port as in TalosMachine.spec.endpoint; the port is 50000 unless given.
	Endpoint string
	// ControlPlane says that the machine is meant to be one: then its etcd is looked at.
	ControlPlane bool
}

// Address gives host:port.
func (t Target) Address() string { return schema.MachineSpec{Endpoint: t.Endpoint}.Address() }

// Host gives the host alone, without brackets.
func (t Target) Host() string { return schema.MachineSpec{Endpoint: t.Endpoint}.Host() }
