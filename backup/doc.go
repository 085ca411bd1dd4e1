// Package backup takes, keeps and proves snapshots of a cluster's etcd.
//
// A snapshot is what Talos streams: the bbolt file of one member and its 32-byte SHA-256 trailer. [Take] asks one control plane
// after the other until a stream came whole, sealing it into a private file on disk while it passes; nothing reaches the bucket
// before the trailer matched. What is stored is an age file that opens with a passphrase computed from the cluster's secrets bundle,
// so the bundle and one object are enough to get the cluster back, with the plain age command.
//
// The format of what is stored never changes: docs/backups.md describes it byte for byte. Decisions (which member is asked first, what is
// due, what is pruned) are pure functions over plain values; buckets and nodes are reached through small interfaces.
package backup
