// Package e2e holds tests of the whole: the ichor program as a child process, simulated Talos machines with a real etcd
// each, a real S3 server, and a Git server that asks for a token. They try what goes wrong around the agent (what it needs
// is away, full, forged or another's), what happens to the agent itself (stopped, frozen, killed), and that no secret
// leaves it. What counts is what the machines' journals, the bucket and the printed texts show.
package e2e
