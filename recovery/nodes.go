package recovery

import "ichor.maesh.dev/talos"

// TalosNodes reaches machines by the Talos API.
func TalosNodes(client *talos.Client) Nodes {
	return talos.MachinesOf(client, func(s *talos.Session) Session { return s })
}
