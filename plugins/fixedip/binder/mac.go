// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/identity"
)

// setMAC writes the MAC address of the identity to its pod, if the pod asks for one, before the pod is bound: the agent
// reads it when it creates the interface. (The Binding could carry the annotation, Cilium fact 25, but only a Bind
// plugin creates the Binding.)
func (b *Binder) setMAC(ctx context.Context, pod *corev1.Pod, id identity.Identity, addrs []netip.Addr) error {
	wanted, err := identity.WantsMAC(pod)
	if err != nil || !wanted {
		return err
	}
	mac := id.MAC(addrs)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		// The UID in a patch is a precondition: a later pod of the name is not meant.
		"uid":         pod.UID,
		"annotations": map[string]string{identity.AnnotationCiliumMAC: mac.String()},
	}})
	if err != nil {
		return fmt.Errorf("encode the MAC address of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	_, err = b.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("write the MAC address %s to pod %s/%s: %w", mac, pod.Namespace, pod.Name, err)
	}
	return nil
}
