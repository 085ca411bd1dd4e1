// Package harness runs Kubernetes's own API server, controller manager and scheduler for tests, over any etcd and with the
// authorities of a Talos secrets bundle, as Talos's control planes run them.
//
// The servers are processes of one file, which is built from test/kube/servers (a module of its own) by `make
// kube-servers`; Servers names it. A test takes an etcd (StartEtcd, or that of a simulated machine), starts API servers over
// it (StartAPIServer), a StartControllers where controllers are needed, and a StartKubelet for each node on which pods are
// to run. All of it ends with the test; a process ends with the test's process, however that ends.
//
// An API server is killed, frozen and started again as the machine under it would be: see APIServer.
package harness
