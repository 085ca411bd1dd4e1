// Package kube is the Kubernetes side of Ichor: what the API says of nodes, cordons, drains and the deletion of a Node.
//
// A Client knows several API servers, one a control plane, and goes on with another when one is gone. What can be asked
// again without harm, reading, is asked of the next one. A write is sent again only after a look has shown that the
// first one did not take effect, and each carries the UID, and where the object is changed the resource version, of what
// it was decided on, so that one that arrives late changes nothing.
//
// The Kubernetes API being away is an ordinary answer (ErrUnavailable): clusters are mended with it down.
//
// A drain is a series of rounds. Client.Evict asks for what is still to be asked for and says what is left and why; it
// waits for nothing. Which pods have to go is decided by kubectl's own drain package, whether one may go by the API server.
//
// Names and messages from the cluster were written by others. They have lost their control characters when they leave this
// package.
package kube
