// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The labels of FixedIPs. The controller copies them from the spec whenever it creates a FixedIP or writes its spec, for
// users who select FixedIPs. No program of fixedip reads them.
const (
	// LabelNode is the label with spec.nodeName.
	LabelNode = "fixedip.io/node"
	// LabelWorkloadKind is the label with spec.owner.kind.
	LabelWorkloadKind = "fixedip.io/workload-kind"
	// LabelWorkload is the label with spec.owner.name.
	LabelWorkload = "fixedip.io/workload"
)

// LabelFromSpec sets the labels of the FixedIP to the values of its spec. For a value that is empty or no valid label, such
// as a name of more than 63 characters, it removes the label; users can select such a FixedIP by field.
func (f *FixedIP) LabelFromSpec() {
	for key, value := range map[string]string{
		LabelNode:         f.Spec.NodeName,
		LabelWorkloadKind: f.Spec.Owner.Kind,
		LabelWorkload:     f.Spec.Owner.Name,
	} {
		if value == "" || len(validation.IsValidLabelValue(value)) > 0 {
			delete(f.Labels, key)
			continue
		}
		metav1.SetMetaDataLabel(&f.ObjectMeta, key, value)
	}
}
