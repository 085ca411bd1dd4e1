package kube

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// attached gives the names of the volumes that are attached to a node and belong to no pod that stays there. A DaemonSet's
// pod keeps its volume for as long as it runs, and a drain that waited for it would never end.
func (c *Client) attached(ctx context.Context, node string) ([]string, error) {
	attachments, err := pages(ctx, c, func(ctx context.Context, options metav1.ListOptions) ([]storagev1.VolumeAttachment, string, error) {
		page, err := c.api.StorageV1().VolumeAttachments().List(ctx, options)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	attachments = slices.DeleteFunc(attachments, func(a storagev1.VolumeAttachment) bool { return a.Spec.NodeName != node })
	if len(attachments) == 0 {
		return nil, nil
	}
	staying, err := c.volumesInUse(ctx, node)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, attachment := range attachments {
		name := attachment.Name
		if volume := attachment.Spec.Source.PersistentVolumeName; volume != nil {
			if staying[*volume] {
				continue
			}
			name = *volume
		}
		names = append(names, clean(name))
	}
	slices.Sort(names)
	return names, nil
}

// volumesInUse gives the names of the PersistentVolumes that the pods on a node use.
func (c *Client) volumesInUse(ctx context.Context, node string) (map[string]bool, error) {
	pods, err := pages(ctx, c, func(ctx context.Context, options metav1.ListOptions) ([]corev1.Pod, string, error) {
		page, err := c.api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for i := range pods {
		for _, claim := range claimsOf(&pods[i]) {
			volume, err := c.volumeOf(ctx, pods[i].Namespace, claim)
			if err != nil {
				return nil, err
			}
			used[volume] = true
		}
	}
	return used, nil
}

// claimsOf gives the names of the claims that a pod uses, those made for it alone included.
func claimsOf(pod *corev1.Pod) []string {
	var claims []string
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.PersistentVolumeClaim != nil:
			claims = append(claims, volume.PersistentVolumeClaim.ClaimName)
		case volume.Ephemeral != nil:
			claims = append(claims, pod.Name+"-"+volume.Name)
		}
	}
	return claims
}

// volumeOf gives the volume that a claim is bound to, empty when there is none.
func (c *Client) volumeOf(ctx context.Context, namespace, claim string) (string, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	found, err := c.api.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return found.Spec.VolumeName, nil
}
