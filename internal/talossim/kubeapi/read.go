package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// list is the answer to a list of any kind.
type list struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []object `json:"items"`
}

// decode reads an object as etcd has it.
func (r *resource) decode(kv *mvccpb.KeyValue) (object, error) {
	o := r.empty()
	if err := json.Unmarshal(kv.Value, o); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("decoding %s: %w", kv.Key, err))
	}
	r.mark(o, kv.ModRevision)
	return o, nil
}

// mark gives an object its kind and its revision.
func (r *resource) mark(o object, revision int64) {
	o.GetObjectKind().SetGroupVersionKind(r.groupVersionKind())
	o.SetResourceVersion(strconv.FormatInt(revision, 10))
}

// encode is an object as etcd has it: its revision is etcd's own.
func (r *resource) encode(o object) ([]byte, error) {
	copied := o.DeepCopyObject().(object)
	copied.SetResourceVersion("")
	copied.SetManagedFields(nil)
	copied.GetObjectKind().SetGroupVersionKind(r.groupVersionKind())
	data, err := json.Marshal(copied)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("encoding %s %s: %w", r.kind, o.GetName(), err))
	}
	return data, nil
}

// load returns an object as it is stored.
func (s *Server) load(ctx context.Context, res *resource, namespace, name string) (object, int64, error) {
	kv, _, err := s.store.get(ctx, res.key(namespace, name))
	if err != nil {
		return nil, 0, err
	}
	if kv == nil {
		return nil, 0, apierrors.NewNotFound(res.groupResource(), name)
	}
	o, err := res.decode(kv)
	return o, kv.ModRevision, err
}

func (s *Server) get(ctx context.Context, req *request) (object, error) {
	o, _, err := s.load(ctx, req.resource, req.namespace, req.name)
	if err != nil {
		return nil, err
	}
	return o, s.present(ctx, o)
}

// all returns the objects of a kind as of a revision (0: now), and the revision.
func (s *Server) all(ctx context.Context, res *resource, namespace string, at int64) ([]object, int64, error) {
	kvs, revision, err := s.store.list(ctx, res.under(namespace), at)
	if err != nil {
		return nil, 0, err
	}
	objects := make([]object, 0, len(kvs))
	for _, kv := range kvs {
		o, err := res.decode(kv)
		if err != nil {
			return nil, 0, err
		}
		objects = append(objects, o)
	}
	return objects, revision, nil
}

func (s *Server) list(ctx context.Context, r *http.Request, req *request) (*list, error) {
	opts, sel, err := listOptions(r, req.resource, "")
	if err != nil {
		return nil, err
	}
	revision, err := revisionOf(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	at := int64(0)
	if opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		at = revision
	}
	objects, now, err := s.all(ctx, req.resource, req.namespace, at)
	if err != nil {
		return nil, err
	}
	if revision > now {
		return nil, tooLarge(revision, now)
	}
	answer := &list{TypeMeta: metav1.TypeMeta{Kind: req.resource.kind + "List", APIVersion: req.resource.groupVersion().String()}, Items: []object{}}
	answer.ResourceVersion = strconv.FormatInt(now, 10)
	for _, o := range objects {
		if !req.resource.matches(o, sel) {
			continue
		}
		if err := s.present(ctx, o); err != nil {
			return nil, err
		}
		answer.Items = append(answer.Items, o)
	}
	return answer, nil
}

// revisionOf reads a resource version; none is 0.
func revisionOf(version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	revision, err := strconv.ParseInt(version, 10, 64)
	if err != nil || revision < 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("resourceVersion: Invalid value: %q: must be a number", version))
	}
	return revision, nil
}

// tooLarge is the answer to who has seen a revision that etcd hasn't reached.
func tooLarge(wanted, now int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", wanted, now), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}
