package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxTries bounds how often a write is decided again after the object changed under it or its answer was lost. The kubelet
// and the controllers write to a Node now and then, not all the time.
const maxTries = 5

// Cordon marks the node unschedulable in the name of owner, which is also the owner that lifts it. A node that has this
// owner's cordon already is left as it is. One that somebody else cordoned is left too, and the error is a *CordonedError.
func (c *Client) Cordon(ctx context.Context, node Node, owner string) error {
	if owner == "" {
		return errors.New("a cordon needs an owner")
	}
	_, err := c.change(ctx, "cordoning "+node.Name, node, func(object *corev1.Node) (*nodePatch, error) {
		by := object.Annotations[cordonAnnotation]
		switch {
		case object.Spec.Unschedulable && by == owner:
			return nil, nil
		case object.Spec.Unschedulable:
			return nil, &CordonedError{Node: clean(object.Name), By: clean(by)}
		}
		unschedulable := true
		return &nodePatch{unschedulable: &unschedulable, owner: &owner}, nil
	})
	return err
}

// Uncordon lifts the cordon if it is owner's, and says whether it did. A node that isn't cordoned, or is by somebody else,
// stays as it is; so does one that was uncordoned by hand, but that it loses the owner's mark.
func (c *Client) Uncordon(ctx context.Context, node Node, owner string) (bool, error) {
	if owner == "" {
		return false, errors.New("a cordon has an owner, and none is given")
	}
	lifted := false
	_, err := c.change(ctx, "uncordoning "+node.Name, node, func(object *corev1.Node) (*nodePatch, error) {
		if object.Annotations[cordonAnnotation] != owner {
			return nil, nil
		}
		if object.Spec.Unschedulable {
			lifted = true
		}
		return &nodePatch{}, nil
	})
	return lifted && err == nil, err
}

// nodePatch is the part of a Node that a cordon changes. A nil field takes the value away.
type nodePatch struct {
	unschedulable *bool
	owner         *string
}

// body gives the merge patch, tied to the object that it was decided on.
func (p *nodePatch) body(object *corev1.Node) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{
			"uid":             object.UID,
			"resourceVersion": object.ResourceVersion,
			"annotations":     map[string]any{cordonAnnotation: p.owner},
		},
		"spec": map[string]any{"unschedulable": p.unschedulable},
	})
}

// change looks at a node, lets decide say what is to be changed, and changes it, until decide says that nothing is. So each
// success was seen on the object, and a patch whose answer was lost is found done, not sent blindly again: a second one
// carries the newer resource version, with which a first one that arrives late can't be accepted.
func (c *Client) change(ctx context.Context, doing string, node Node, decide func(*corev1.Node) (*nodePatch, error)) (*corev1.Node, error) {
	var last error
	for range maxTries {
		object, err := c.node(ctx, node.Name)
		if err != nil {
			return nil, failure(doing, err)
		}
		if string(object.UID) != node.UID {
			return nil, failure(doing, replaced(object, node.UID))
		}
		patch, err := decide(object)
		if err != nil || patch == nil {
			return object, err
		}
		body, err := patch.body(object)
		if err != nil {
			return nil, failure(doing, err)
		}
		changed, err := c.patchNode(ctx, object.Name, body)
		if err == nil {
			return changed, nil
		}
		if !apierrors.IsConflict(err) && !uncertain(err) || ctx.Err() != nil {
			return nil, failure(doing, err)
		}
		last = err
	}
	return nil, failure(doing, last)
}

func (c *Client) patchNode(ctx context.Context, name string, body []byte) (*corev1.Node, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	return c.api.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
}

// replaced says that a node of this name is another object.
func replaced(object *corev1.Node, uid string) error {
	return fmt.Errorf("%w: the Node %s was made anew (its UID is %s and was %s)", ErrChanged, clean(object.Name), clean(string(object.UID)), clean(uid))
}
