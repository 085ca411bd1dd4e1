// Package safety judges what was done to simulated machines: over the journals of all of them (what each took) and the audit of their
// cluster's state (what was meant), it says which of the promises were broken.
//
//   - A cluster is bootstrapped once.
//   - What a machine took was meant: an intent of that kind, for that machine in that boot, was written before, and for one intent a machine
//     took one call at most. A call that no intent explains is somebody else's or one too many.
//   - What can't be taken back is done under the cluster lock, and nobody writes an intent whom another writer has replaced.
//   - One machine is disrupted at a time: from a reboot, shutdown or reset that it took until it answers in another boot (or, after a
//     shutdown, until the lock is free). A restore may wipe several at once, for it gives their etcd up.
//   - Control planes that are disrupted or removed leave the others a quorum, but for the wipes of a restore.
//   - A reset names what it wipes, and no boot of a machine is wiped twice.
//   - One machine recovers in a restore, with the snapshot that it was given in that boot; another only once that one was wiped again.
//
// [Check] is pure, for the end of a test; [Watch] looks again and again and tells the first broken promise at once. How many members
// etcd has isn't in the journals: quorum is counted over the control planes that are given.
package safety
