// Package apid is the front of a simulated Talos node: what listens on port 50000, as Talos's apid does on a real one.
//
// It speaks TLS 1.3, takes the caller's roles out of the client certificate, routes calls by the `node` and `nodes` metadata,
// and passes everything that is for its own node to the node's machine service ("machined") without decoding it. The
// machine service authorises the calls with [ServerOptions], which also write the [Journal]: every call the node got, with
// its caller, its answer and whether the node took it.
//
// In maintenance mode the same front shows a self-signed certificate, asks for no client certificate, ignores routing and
// calls everybody os:reader.
//
// A front is started, stopped gracefully (bounded, as Talos bounds it), or cut: a cut resets every connection without a
// goodbye, as a power failure or the end of a reboot does. [Link] is the node's network cable.
package apid
