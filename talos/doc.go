// Package talos is everything Ichor knows about Talos Linux: the secrets bundle and the short-lived certificates minted
// from it, the rendering of machine configs, their comparison and redacted diffs, and the client of the nodes' own API.
//
// The client looks at machines in two ways. Client.Observe reads what there is to read, bounded in time, and turns every
// failure into "unknown" with a sentence; it never changes anything. Client.Dial and Client.DialMaintenance give a
// Session: one TCP connection to the machine itself which never reconnects, so that a call made on it reaches the very
// boot that was looked at, or nothing. The calls that change a machine exist on Session only.
//
// Texts that come from a node pass the scrubber and lose their control characters before they leave this package; texts
// that may hold a whole machine config never leave it.
package talos
