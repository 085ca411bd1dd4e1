package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// attempts is how often a write that names no revision is decided again when the object has changed meanwhile
// (Kubernetes: staging/src/k8s.io/apiserver/pkg/endpoints/handlers/patch.go).
const attempts = 5

// errStale is a write that the object's revision has left behind (Kubernetes: pkg/registry/generic/registry/store.go).
var errStale = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// parseObject reads an object that a caller sends.
func (s *Server) parseObject(res *resource, body []byte) (object, error) {
	kind := res.groupVersionKind()
	decoded, got, err := s.codecs.UniversalDeserializer().Decode(body, &kind, res.empty())
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	o, ok := decoded.(object)
	if !ok || *got != kind {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in the body, where %s is expected", got, kind))
	}
	return o, nil
}

func (s *Server) create(ctx context.Context, req *request, body []byte, dry bool) (object, error) {
	res := req.resource
	o, err := s.parseObject(res, body)
	if err != nil {
		return nil, err
	}
	if res.namespaced {
		if req.namespace == "" {
			return nil, apierrors.NewMethodNotSupported(res.groupResource(), req.verb)
		}
		if o.GetNamespace() != "" && o.GetNamespace() != req.namespace {
			return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
		}
		o.SetNamespace(req.namespace)
		if _, _, err := s.load(ctx, s.resource("namespaces"), "", req.namespace); err != nil {
			return nil, err
		}
	}
	if o.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + rand.String(5))
	}
	o.SetUID(types.UID(uuid.NewString()))
	o.SetCreationTimestamp(metav1.NewTime(s.cfg.Clock.Now()).Rfc3339Copy())
	o.SetDeletionTimestamp(nil)
	o.SetGeneration(1)
	born(o)
	if err := check(res, o); err != nil {
		return nil, err
	}
	return s.put(ctx, res, o, 0, dry, apierrors.NewAlreadyExists(res.groupResource(), o.GetName()))
}

// check judges an object's metadata.
func check(res *resource, o object) error {
	if problems := validation.ValidateObjectMetaAccessor(o, res.namespaced, validation.NameIsDNSSubdomain, field.NewPath("metadata")); len(problems) > 0 {
		return apierrors.NewInvalid(res.groupVersionKind().GroupKind(), o.GetName(), problems)
	}
	return nil
}

// put stores an object whose revision is still the given one; lost is the answer when it isn't.
func (s *Server) put(ctx context.Context, res *resource, o object, was int64, dry bool, lost error) (object, error) {
	data, err := res.encode(o)
	if err != nil {
		return nil, err
	}
	if !dry {
		revision, ok, err := s.store.swap(ctx, res.key(o.GetNamespace(), o.GetName()), was, data)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, lost
		}
		was = revision
	}
	res.mark(o, was)
	return o, s.present(ctx, o)
}

func (s *Server) update(ctx context.Context, req *request, body []byte, dry bool) (object, error) {
	return s.change(ctx, req, dry, func(object) (object, error) { return s.parseObject(req.resource, body) })
}

// change makes an object what f makes of it. When the object changes meanwhile it is decided again, unless f's object names a revision.
func (s *Server) change(ctx context.Context, req *request, dry bool, f func(now object) (object, error)) (object, error) {
	res := req.resource
	stale := apierrors.NewConflict(res.groupResource(), req.name, errStale)
	for range attempts {
		now, revision, err := s.load(ctx, res, req.namespace, req.name)
		if err != nil {
			return nil, err
		}
		next, err := f(now.DeepCopyObject().(object))
		if err != nil {
			return nil, err
		}
		named := next.GetResourceVersion()
		if err := s.admit(req, now, next); err != nil {
			return nil, err
		}
		if named != "" && named != now.GetResourceVersion() {
			return nil, stale
		}
		changed, err := s.settle(ctx, res, now, next, revision, dry, stale)
		if err == stale && named == "" { //nolint:errorlint // this very one
			continue
		}
		return changed, err
	}
	return nil, stale
}

// admit judges a new version of an object, and keeps what a caller doesn't change.
func (s *Server) admit(req *request, now, next object) error {
	res := req.resource
	if next.GetName() != req.name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", next.GetName(), req.name))
	}
	if next.GetNamespace() != req.namespace && next.GetNamespace() != "" {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if uid := next.GetUID(); uid != "" && uid != now.GetUID() {
		return apierrors.NewConflict(res.groupResource(), req.name, preconditionError(res, now, fmt.Sprintf("UID in precondition: %s, UID in object meta: %s", uid, now.GetUID())))
	}
	if next.GetResourceVersion() == "" && !res.blind && req.verb == "update" {
		return apierrors.NewInvalid(res.groupVersionKind().GroupKind(), req.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), "", "must be specified for an update"),
		})
	}
	next.SetNamespace(now.GetNamespace())
	next.SetUID(now.GetUID())
	next.SetCreationTimestamp(now.GetCreationTimestamp())
	next.SetDeletionTimestamp(now.GetDeletionTimestamp())
	next.SetDeletionGracePeriodSeconds(now.GetDeletionGracePeriodSeconds())
	next.SetGeneration(now.GetGeneration())
	if res.status {
		if req.part == "status" {
			copyPart(next, now, "Spec")
		} else {
			copyPart(next, now, "Status")
		}
	}
	if !samePart(next, now, "Spec") {
		next.SetGeneration(now.GetGeneration() + 1)
	}
	return check(res, next)
}

// settle stores a new version of an object, or removes it when it was only kept by finalizers that are gone now.
func (s *Server) settle(ctx context.Context, res *resource, now, next object, revision int64, dry bool, stale error) (object, error) {
	before, err := res.encode(now)
	if err != nil {
		return nil, err
	}
	after, err := res.encode(next)
	if err != nil {
		return nil, err
	}
	if string(before) == string(after) { // nothing is written, and the revision stays
		res.mark(next, revision)
		return next, s.present(ctx, next)
	}
	grace := next.GetDeletionGracePeriodSeconds()
	if next.GetDeletionTimestamp() != nil && grace != nil && *grace == 0 && len(now.GetFinalizers()) > 0 && len(next.GetFinalizers()) == 0 {
		return next, s.erase(ctx, res, next, revision, dry)
	}
	return s.put(ctx, res, next, revision, dry, stale)
}

// copyPart takes a part of an object, its Spec or Status, from another of its kind.
func copyPart(to, from object, part string) {
	if field := reflect.ValueOf(to).Elem().FieldByName(part); field.IsValid() {
		field.Set(reflect.ValueOf(from.DeepCopyObject()).Elem().FieldByName(part))
	}
}

func samePart(a, b object, part string) bool {
	field := reflect.ValueOf(a).Elem().FieldByName(part)
	return !field.IsValid() || reflect.DeepEqual(field.Interface(), reflect.ValueOf(b).Elem().FieldByName(part).Interface())
}

// preconditionError is what Kubernetes' store says of a write whose precondition doesn't hold.
func preconditionError(res *resource, o object, problem string) error {
	return fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: %s",
		res.key(o.GetNamespace(), o.GetName()), problem)
}

// deleteOptions reads how something is to be deleted, from the body or the query.
func (s *Server) deleteOptions(r *http.Request, body []byte) (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	query := r.URL.Query()
	if len(body) == 0 {
		if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&query, opts, nil); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return opts, nil
	}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}
	if _, _, err := s.codecs.UniversalDeserializer().Decode(body, &kind, opts); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return opts, nil
}

// holds says why the preconditions of a delete don't hold.
func holds(res *resource, o object, want *metav1.Preconditions) error {
	switch {
	case want == nil:
		return nil
	case want.UID != nil && *want.UID != o.GetUID():
		return apierrors.NewConflict(res.groupResource(), o.GetName(),
			preconditionError(res, o, fmt.Sprintf("UID in precondition: %s, UID in object meta: %s", *want.UID, o.GetUID())))
	case want.ResourceVersion != nil && *want.ResourceVersion != o.GetResourceVersion():
		return apierrors.NewConflict(res.groupResource(), o.GetName(), preconditionError(res, o,
			fmt.Sprintf("ResourceVersion in precondition: %s, ResourceVersion in object meta: %s", *want.ResourceVersion, o.GetResourceVersion())))
	}
	return nil
}

// remove deletes an object: at once, or marked for who has to finish with it.
func (s *Server) remove(ctx context.Context, req *request, opts *metav1.DeleteOptions) (any, error) {
	res := req.resource
	dry := len(opts.DryRun) > 0
	stale := apierrors.NewConflict(res.groupResource(), req.name, errStale)
	for range attempts {
		o, revision, err := s.load(ctx, res, req.namespace, req.name)
		if err != nil {
			return nil, err
		}
		if err := holds(res, o, opts.Preconditions); err != nil {
			return nil, err
		}
		marked := o.DeepCopyObject().(object)
		var answer any = marked
		switch waits := s.markDeleted(marked, opts); {
		case !waits:
			answer = deleted(res, o)
			if err = s.erase(ctx, res, o, revision, dry); err == nil && !dry {
				err = s.collect(ctx, res, o)
			}
		default:
			answer, err = s.settle(ctx, res, o, marked, revision, dry, stale)
		}
		if apierrors.IsConflict(err) {
			continue
		}
		return answer, err
	}
	return nil, stale
}

// erase removes an object whose revision is still the given one.
func (s *Server) erase(ctx context.Context, res *resource, o object, revision int64, dry bool) error {
	if dry {
		return nil
	}
	_, ok, err := s.store.remove(ctx, res.key(o.GetNamespace(), o.GetName()), revision)
	if err == nil && !ok {
		return apierrors.NewConflict(res.groupResource(), o.GetName(), errStale)
	}
	return err
}

// collect removes what goes with its owner: a node's lease.
func (s *Server) collect(ctx context.Context, res *resource, o object) error {
	if res.plural != "nodes" {
		return nil
	}
	leases := s.resource("leases")
	lease, revision, err := s.load(ctx, leases, corev1.NamespaceNodeLease, o.GetName())
	if apierrors.IsNotFound(err) || err == nil && !slices.ContainsFunc(lease.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == o.GetUID() }) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.erase(ctx, leases, lease, revision, false); !apierrors.IsConflict(err) {
		return err
	}
	return nil // a kubelet renewed it at that moment
}

// deleted is the answer when an object has gone: the last that there was of a pod, for anything else that it has.
func deleted(res *resource, o object) any {
	if res.plural == "pods" {
		return o
	}
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: o.GetName(), Group: res.group, Kind: res.plural, UID: o.GetUID()},
	}
}
