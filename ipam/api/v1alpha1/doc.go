// Package v1alpha1 is the API fixedip.io/v1alpha1: FixedIP, the durable record of an address that
// belongs to an identity.
//
// It holds types and their registration, nothing that acts on them.
//
// +kubebuilder:object:generate=true
// +groupName=fixedip.io
package v1alpha1
