// Package statefile keeps what the agent must remember about each cluster, in an S3 bucket or in a folder.
//
// A [Store] is a flat set of small objects with conditional writes: [OpenS3] and [OpenFolder] give one, and [Probe] proves
// that one honours conditions. On top of it stand three things. A [Cluster] is the handle on one cluster's state.json: it is
// read with [Cluster.Load], changed only by compare-and-swap with [Cluster.Swap], sealed with a key that comes from the
// cluster's own secrets bundle, refused when it was forged or rolled back, and fenced by a writer that [Cluster.TakeOver]
// swaps in. Audit events travel inside the state until they are objects of their own, so that no crash can fork or gap their
// chain. A [Lease] spreads clusters over agents; it only spreads the work, the state is the fence.
//
// The format of every object is in docs/formats.md, with the promise of what stays compatible. An unknown newer version is
// refused, and never rewritten.
package statefile
