// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// Options returns the options of the controller's cache: a transform for each kind that every replica watches.
// CiliumEndpoints are among them only if endpoints is true.
func Options(adoption identity.Adoption, endpoints bool) cache.Options {
	o := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&ciliumv2.CiliumNode{}: {Transform: ciliumpool.Trim},
			&corev1.Node{}:         {Transform: nodeTransform},
			&corev1.Pod{}:          {Transform: podTransform(adoption)},
		},
	}
	if endpoints {
		o.ByObject[&ciliumv2.CiliumEndpoint{}] = cache.ByObject{Transform: endpointTransform}
	}
	return o
}
