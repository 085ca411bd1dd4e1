package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// patch changes an object by a patch of one of Kubernetes' three kinds. Server-side apply isn't one of them.
func (s *Server) patch(ctx context.Context, req *request, contentType string, body []byte, dry bool) (object, error) {
	kind := types.PatchType(contentKind(contentType))
	return s.change(ctx, req, dry, func(now object) (object, error) {
		before, err := json.Marshal(now)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		// A patch names a revision only where it says so itself.
		after, err := patched(kind, before, body, req.resource)
		if err != nil {
			return nil, err
		}
		next := req.resource.empty()
		if err := json.Unmarshal(after, next); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if next.GetResourceVersion() == now.GetResourceVersion() {
			next.SetResourceVersion("")
		}
		return next, nil
	})
}

func patched(kind types.PatchType, before, body []byte, res *resource) (after []byte, err error) {
	switch kind {
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, body, res.empty())
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, body)
	case types.JSONPatchType:
		var steps jsonpatch.Patch
		if steps, err = jsonpatch.DecodePatch(body); err == nil {
			if after, err = steps.Apply(before); err != nil {
				invalid := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", res.groupResource(), "", err.Error(), 0, false)
				invalid.ErrStatus.Reason = metav1.StatusReasonInvalid
				return nil, invalid
			}
		}
	default:
		return nil, unsupported(kind)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return after, nil
}

// contentKind is a content type without its parameters.
func contentKind(header string) string {
	kind, _, _ := strings.Cut(header, ";")
	return strings.TrimSpace(kind)
}

func unsupported(kind types.PatchType) error {
	err := apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "", "", 0, true)
	err.ErrStatus.Message = fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s, %s, %s (%q was sent)",
		types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, kind)
	return err
}
