// Package member runs the etcd process of a simulated control plane: a real embedded etcd behind two relays on the
// machine's own address (client port 2379, peer port 2380), so that the machine's cable can be pulled and its power cut.
//
// An etcd that would end its process (removed from its cluster, another cluster's ID, a log that lost entries) ends here as
// a member that is [Member.Done], never as the end of the test's process.
package member
