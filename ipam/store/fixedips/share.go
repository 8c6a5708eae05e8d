// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"unique"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// ShareText lets a FixedIP refer to one copy of each text that other FixedIPs have too, such as the names of nodes and
// workloads, and of each text that it has twice. A cache contains tens of thousands of FixedIPs, and each of them was
// decoded with copies of its own.
func ShareText(fip *v1alpha1.FixedIP) {
	share(&fip.Kind, &fip.APIVersion, &fip.Namespace)
	for i := range fip.Finalizers {
		share(&fip.Finalizers[i])
	}
	if uid, ok := fip.Annotations[v1alpha1.AnnotationUID]; ok && uid == string(fip.UID) {
		fip.Annotations[v1alpha1.AnnotationUID] = string(fip.UID)
	}
	for key, value := range fip.Labels {
		fip.Labels[unique.Make(key).Value()] = unique.Make(value).Value()
	}
	spec := &fip.Spec
	share(&spec.NodeName, &spec.Owner.APIVersion, &spec.Owner.Kind, &spec.Owner.Name)
	share(&spec.Owner.UID)
	share(&spec.Failover)
	share(&spec.Reclaim.WhenDeleted, &spec.Reclaim.WhenScaled)
	if spec.PodName == fip.Name {
		spec.PodName = fip.Name
	}
	for i := range fip.Status.Conditions {
		c := &fip.Status.Conditions[i]
		share(&c.Type, &c.Reason)
		share(&c.Status)
	}
}

func share[T ~string](texts ...*T) {
	for _, t := range texts {
		*t = unique.Make(*t).Value()
	}
}
