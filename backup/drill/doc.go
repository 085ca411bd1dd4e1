// Package drill proves a snapshot by restoring it: into an etcd data folder, with etcd's own restore code, whose key space is then walked
// and counted.
//
// What opens a database file runs in a child process, this program started again ([RunIfChild]): a page that lies takes down the child,
// and the drill has failed. The child reads the file through a memory map and keeps no more than hashes of some of the keys at a time, so
// that its own memory doesn't grow with the snapshot.
package drill
