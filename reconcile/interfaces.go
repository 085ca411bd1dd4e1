package reconcile

import (
	"context"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// Session is a connection with what the gate needs besides; *talos.Session is one. Its calls that change something are the gate's alone.
type Session interface {
	recovery.Connection
	ConfigDigests(ctx context.Context) (active, persistent string, err error)
	EtcdStatus(ctx context.Context) (talos.EtcdObservation, error)

	// The calls that change something.
	Bootstrap(ctx context.Context) error
	Shutdown(ctx context.Context, force bool) error
	Defragment(ctx context.Context) error
	ForfeitLeadership(ctx context.Context) error
}

// Nodes reaches the machines of one cluster.
type Nodes interface {
	talos.Machines[Session]
	// Member is the etcd of a configured control plane, to take a snapshot from. It sends nothing yet.
	Member(target talos.Target) backup.Node
	// Recovery is the same machines for a restore.
	Recovery() recovery.Nodes
	Close() error
}

// Kubernetes is the API of one cluster's Kubernetes; *kube.Client is one.
type Kubernetes interface {
	// Its calls that change something are the gate's, and a restore's.
	recovery.Kubernetes
	// Revision is the one that etcd has reached, as the API server sees it.
	Revision(ctx context.Context) (int64, error)

	// DeleteNode is the gate's alone.
	DeleteNode(ctx context.Context, name, uid string) error
}

// StateStore is the handle on one cluster's state; *statefile.Cluster is one.
type StateStore interface {
	Load(ctx context.Context) (*statefile.State, error)
	// Known is a copy of the state as this handle last read or wrote it, nil when it never did, and its generation.
	Known() (*statefile.State, uint64)
	Create(ctx context.Context, state *statefile.State, events ...statefile.Event) error
	TakeOver(ctx context.Context) (*statefile.State, error)
	Swap(ctx context.Context, change func(*statefile.State) error, events ...statefile.Event) error
	Traces(ctx context.Context) ([]string, error)
	// Begin makes the object that says that an operation was begun, with this nonce, unless it is there with another one.
	Begin(ctx context.Context, name, digest, nonce string) error
}

// Lease says how old one's own lease is, by the clock that says most; ok is false when it isn't held. *statefile.Lease is one.
type Lease interface {
	Age() (age time.Duration, ok bool)
}
