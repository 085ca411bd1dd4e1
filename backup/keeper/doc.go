// Package keeper takes a cluster's backups when they are due, prunes and drills them, and remembers in the cluster's state what it did.
//
// A [Keeper] runs each TalosEtcdBackup by itself, apart from the passes over the machines: a backup is a read, needs no lock, and never
// delays a pass. A member or a bucket that hangs delays other clusters only where as many hang as snapshots are taken at once ([Limits]),
// and then until its deadline. What to do next is the pure function (decide) of what Git
// asks for, what the state remembers and the time, so that a restart neither skips nor doubles anything. Each step is in the state
// before it is done: the attempt before a member is asked, the snapshot as it will be listed before anything is stored, what will be
// pruned before it goes. What a process that died left open is ended by the next one, and no attempt is lost from the record.
//
// Its verdict (judge) makes of it all the one sentence that the status shows.
package keeper
