package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DeleteNode deletes the Node of this name and UID, and returns when it has seen that it is gone. One that isn't there is
// done. Another Node under the name is left, and the error says so (ErrChanged): a kubelet that still runs registers anew.
func (c *Client) DeleteNode(ctx context.Context, name, uid string) error {
	doing := "deleting the Node " + clean(name)
	if uid == "" {
		return errors.New(doing + ": its UID isn't known")
	}
	last := errors.New("it is still there after it was deleted")
	for range maxTries {
		object, err := c.node(ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return failure(doing, err)
		case string(object.UID) != uid:
			return failure(doing, replaced(object, uid))
		case object.DeletionTimestamp != nil:
			return failure(doing, waitsFor(object.Finalizers))
		}
		err = c.deleteNode(ctx, name, uid)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !uncertain(err) || ctx.Err() != nil {
			return failure(doing, err)
		}
		if err != nil {
			last = err
		}
	}
	return failure(doing, last)
}

// waitsFor says that an object was deleted and stays until others have done their part.
func waitsFor(finalizers []string) error {
	names := make([]string, 0, len(finalizers))
	for _, name := range finalizers {
		names = append(names, clean(name))
	}
	return fmt.Errorf("it was deleted and stays until those that put the finalizers on it take them off (%s)", strings.Join(names, ", "))
}

func (c *Client) deleteNode(ctx context.Context, name, uid string) error {
	ctx, cancel := c.call(ctx)
	defer cancel()
	precondition := types.UID(uid)
	return c.api.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &precondition}})
}
