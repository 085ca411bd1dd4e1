package kubeapi

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// store is etcd as Kubernetes uses it: an object a key, swapped by revision.
type store struct{ etcd *clientv3.Client }

// get returns a key's value, nil when there is none, and etcd's revision.
func (s store) get(ctx context.Context, key string) (*mvccpb.KeyValue, int64, error) {
	resp, err := s.etcd.Get(ctx, key)
	if err != nil {
		return nil, 0, etcdError(ctx, err)
	}
	if len(resp.Kvs) == 0 {
		return nil, resp.Header.Revision, nil
	}
	return resp.Kvs[0], resp.Header.Revision, nil
}

// list returns what is under a prefix, as of a revision (0: now), and the revision of the answer.
func (s store) list(ctx context.Context, prefix string, at int64) ([]*mvccpb.KeyValue, int64, error) {
	resp, err := s.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(at))
	if err != nil {
		return nil, 0, etcdError(ctx, err)
	}
	if at != 0 {
		return resp.Kvs, at, nil
	}
	return resp.Kvs, resp.Header.Revision, nil
}

// swap writes a key whose revision is still the given one (0: there is none yet), and says whether it was.
func (s store) swap(ctx context.Context, key string, was int64, value []byte) (int64, bool, error) {
	return s.commit(ctx, key, was, clientv3.OpPut(key, string(value)))
}

// remove removes a key whose revision is still the given one, and says whether it was.
func (s store) remove(ctx context.Context, key string, was int64) (int64, bool, error) {
	return s.commit(ctx, key, was, clientv3.OpDelete(key))
}

func (s store) commit(ctx context.Context, key string, was int64, op clientv3.Op) (int64, bool, error) {
	resp, err := s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", was)).Then(op).Commit()
	if err != nil {
		return 0, false, etcdError(ctx, err)
	}
	return resp.Header.Revision, resp.Succeeded, nil
}

// etcdError is what the API answers when etcd doesn't do what it was asked for.
func etcdError(ctx context.Context, err error) error {
	if errors.Is(err, rpctypes.ErrCompacted) {
		return apierrors.NewResourceExpired("The provided resource version is too old.")
	}
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	return apierrors.NewInternalError(err)
}
