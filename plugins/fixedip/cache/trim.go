// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"unique"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// trim is a cache transform that removes the parts of a FixedIP that the scheduler does not read, which are more than half of
// it: a cluster has tens of thousands of FixedIPs. It returns other objects unchanged.
func trim(obj any) (any, error) {
	fip, ok := obj.(*v1alpha1.FixedIP)
	if !ok {
		return obj, nil
	}
	trimmed := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: shared(fip.Namespace), Name: fip.Name, UID: fip.UID, ResourceVersion: fip.ResourceVersion, Generation: fip.Generation,
			CreationTimestamp: fip.CreationTimestamp, DeletionTimestamp: fip.DeletionTimestamp,
		},
		Spec:   fip.Spec,
		Status: v1alpha1.FixedIPStatus{VacatedBy: fip.Status.VacatedBy, MovableFor: fip.Status.MovableFor},
	}
	spec := &trimmed.Spec
	spec.NodeName, spec.Failover = shared(spec.NodeName), shared(spec.Failover)
	spec.Reclaim.WhenDeleted, spec.Reclaim.WhenScaled = shared(spec.Reclaim.WhenDeleted), shared(spec.Reclaim.WhenScaled)
	spec.Owner.APIVersion, spec.Owner.Kind, spec.Owner.Name, spec.Owner.UID = shared(spec.Owner.APIVersion), shared(spec.Owner.Kind), shared(spec.Owner.Name), shared(spec.Owner.UID)
	if spec.PodName == fip.Name {
		// Both fields share one string.
		spec.PodName = fip.Name
	}
	if c := meta.FindStatusCondition(fip.Status.Conditions, v1alpha1.ConditionSubnetAvailable); c != nil {
		trimmed.Status.Conditions = []metav1.Condition{{Type: shared(c.Type), Status: shared(c.Status), Reason: shared(c.Reason)}}
	}
	return trimmed, nil
}

// shared returns a string with the same text, which all FixedIPs with this text share.
func shared[T ~string](text T) T { return unique.Make(text).Value() }
