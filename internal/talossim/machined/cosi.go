package machined

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/internal/talossim/apid"
)

// newState makes a boot's resource state with the namespaces and types that Talos registers.
func newState(ctx context.Context) (state.State, error) {
	st := state.WrapCore(namespaced.NewState(func(ns string) state.CoreState {
		return inmem.NewStateWithOptions(
			inmem.WithHistoryInitialCapacity(8), inmem.WithHistoryMaxCapacity(1024), inmem.WithHistoryGap(4),
		)(ns)
	}))
	namespaces, types := registry.NewNamespaceRegistry(st), registry.NewResourceRegistry(st)
	if err := namespaces.RegisterDefault(ctx); err != nil {
		return nil, fmt.Errorf("registering the resource namespaces: %w", err)
	}
	if err := types.RegisterDefault(ctx); err != nil {
		return nil, fmt.Errorf("registering the resource types: %w", err)
	}
	for _, ns := range namespaceNames() {
		if err := namespaces.Register(ctx, ns, ns); err != nil {
			return nil, fmt.Errorf("registering resource namespace %s: %w", ns, err)
		}
	}
	for _, r := range resourceTypes() {
		if err := types.Register(ctx, r); err != nil {
			return nil, fmt.Errorf("registering resource type %T: %w", r, err)
		}
	}
	return st, nil
}

// accessPolicy is who may see what through the API (Talos: internal/app/resources/access.go).
func accessPolicy(st state.State) state.FilteringRule {
	return func(ctx context.Context, access state.Access) error {
		if !access.Verb.Readonly() {
			return status.Error(codes.PermissionDenied, "write access is not allowed")
		}
		rd, err := safe.StateGet[*meta.ResourceDefinition](ctx, st,
			resource.NewMetadata(meta.NamespaceName, meta.ResourceDefinitionType, strings.ToLower(access.ResourceType), resource.VersionUndefined))
		if state.IsNotFoundError(err) {
			return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", access.ResourceType)
		}
		if err != nil {
			return err
		}
		if rd.TypedSpec().Sensitivity == meta.Sensitive && !apid.IsAdmin(ctx) {
			return apid.NotAuthorized()
		}
		_, err = safe.StateGet[*meta.Namespace](ctx, st,
			resource.NewMetadata(meta.NamespaceName, meta.NamespaceType, access.ResourceNamespace, resource.VersionUndefined))
		if state.IsNotFoundError(err) {
			return status.Errorf(codes.PermissionDenied, "namespace %q is not supported", access.ResourceNamespace)
		}
		return err
	}
}

// put makes a resource be there with the given content. What is there already and equal stays untouched, as Talos's
// controllers leave it, unless bump asks for a new version all the same.
func put[T resource.Resource](ctx context.Context, st state.State, r T, bump bool) error {
	old, err := st.Get(ctx, r.Metadata())
	if state.IsNotFoundError(err) {
		if err := st.Create(ctx, r); err != nil {
			return fmt.Errorf("creating %s: %w", r.Metadata(), err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", r.Metadata(), err)
	}
	if !bump && reflect.DeepEqual(old.Spec(), r.Spec()) {
		return nil
	}
	r.Metadata().SetVersion(old.Metadata().Version())
	if err := st.Update(ctx, r, state.WithUpdateOwner(old.Metadata().Owner())); err != nil {
		return fmt.Errorf("updating %s: %w", r.Metadata(), err)
	}
	return nil
}

// drop makes a resource not be there.
func drop(ctx context.Context, st state.State, r resource.Resource) error {
	if err := st.Destroy(ctx, r.Metadata()); err != nil && !state.IsNotFoundError(err) {
		return fmt.Errorf("destroying %s: %w", r.Metadata(), err)
	}
	return nil
}

// get returns the content of a resource, nil when it isn't there.
func get[T resource.Resource](ctx context.Context, st state.State, r T) (T, bool) {
	found, err := safe.StateGet[T](ctx, st, r.Metadata())
	return found, err == nil
}
