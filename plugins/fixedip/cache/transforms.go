// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// trim is a cache transform that removes the parts of a FixedIP that the scheduler does not read. These are more than
// half of a FixedIP, and a cluster may have tens of thousands of FixedIPs. It returns other objects unchanged.
func trim(obj any) (any, error) {
	fip, ok := obj.(*v1alpha1.FixedIP)
	if !ok {
		return obj, nil
	}
	trimmed := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fip.Namespace, Name: fip.Name, UID: fip.UID, ResourceVersion: fip.ResourceVersion, Generation: fip.Generation,
			CreationTimestamp: fip.CreationTimestamp, DeletionTimestamp: fip.DeletionTimestamp,
		},
		Spec:   fip.Spec,
		Status: v1alpha1.FixedIPStatus{VacatedBy: fip.Status.VacatedBy, MovableFor: fip.Status.MovableFor},
	}
	if c := meta.FindStatusCondition(fip.Status.Conditions, v1alpha1.ConditionSubnetAvailable); c != nil {
		trimmed.Status.Conditions = []metav1.Condition{{Type: c.Type, Status: c.Status, Reason: c.Reason}}
	}
	return trimmed, nil
}
