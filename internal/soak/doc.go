// Package soak drives whole clusters through random histories, and judges what the agents did to them.
//
// What is real: the agents as a command starts them (their loop, the fold over Git's commits, the validator, the rendering of configs, the
// decisions, the gate, the leases, signed operations), the sealed state and its audit. What is modelled: the machines, their etcd and their
// Kubernetes, each a value in memory that changes in the way and at the pace of Talos ([World]); the network between agents, machines and the
// store; the store's bucket; Git.
//
// Time is the fake clock of testing/synctest: it stands still while anybody computes and leaps when all wait, so that hours pass in a second.
// Every call into the world takes a time of its own, drawn from the seed, so that no two things happen at once and one seed always gives one
// history. A process is killed by letting nothing of it reach the world any more, and frozen (as by SIGSTOP) by letting it wait at its next
// call into the world, while its deadlines pass.
//
// A history ([Run]) is a list of events drawn from the seed: pushes good and bad, signed and forged operations, power, partitions, a store that
// loses answers, agents that die or freeze, clocks that jump. The monitor judges each call that a machine accepts and each write of a state at
// its very moment. After the events the faults stop, a person does what the status asks a person to do, and everything has to converge.
//
// The tests of this package run a sample; make soak SEEDS=n [FIRST=s] runs as many as one likes.
package soak
