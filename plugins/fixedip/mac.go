// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

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

// setMAC writes the identity's MAC address to its pod where it asks for one, before the bind: the
// agent reads it when it makes the interface.
func (p *Plugin) setMAC(ctx context.Context, pod *corev1.Pod, id identity.Identity, addrs []netip.Addr) error {
	wanted, err := identity.WantsMAC(pod)
	if err != nil || !wanted {
		return err
	}
	mac := id.MAC(addrs)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		// The UID in a patch is a precondition: a pod that follows under the name is not meant.
		"uid":         pod.UID,
		"annotations": map[string]string{identity.AnnotationCiliumMAC: mac.String()},
	}})
	if err != nil {
		return fmt.Errorf("encode the MAC address of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	_, err = p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("write the MAC address %s to pod %s/%s: %w", mac, pod.Namespace, pod.Name, err)
	}
	return nil
}
