// Package revision makes a snapshot of etcd safe to restore under clients that live through the restore.
//
// A restore winds etcd's revision back. Who watches it (kubelets, kube-proxies, controllers) then waits for a revision that is still to
// come, hears nothing and is told nothing: its cache is wrong without an error. So before a snapshot is restored its revision is raised
// above every one that such a client can have seen, and marked as compacted: a watch from before is then told that its revision is gone,
// and its client reads everything anew. It is what `etcdutl snapshot restore --bump-revision --mark-compacted` does, done to the snapshot,
// since the machine that restores it does not.
//
// The database is opened in a child process, this program started again ([RunIfChild]). The snapshot that is given is never changed.
package revision
