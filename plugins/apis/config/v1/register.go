// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/plugins/apis/config"
)

// SchemeGroupVersion is the group and version of the scheduler's configuration.
var SchemeGroupVersion = schema.GroupVersion{Group: schedconfig.GroupName, Version: "v1"}

var schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes, addDefaults, addConversions)

// AddToScheme registers the types, their defaults and their conversion.
var AddToScheme = schemeBuilder.AddToScheme

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(SchemeGroupVersion, &FixedIPArgs{})
	return nil
}

func addDefaults(s *runtime.Scheme) error {
	s.AddTypeDefaultingFunc(&FixedIPArgs{}, func(obj any) { SetDefaults(obj.(*FixedIPArgs)) })
	return nil
}

// SetDefaults sets the defaults of absent fields.
func SetDefaults(args *FixedIPArgs) {
	if args.IPFamilies == nil {
		args.IPFamilies = []string{address.IPv4.String()}
	}
	if args.ClaimTimeout == nil {
		args.ClaimTimeout = &metav1.Duration{Duration: 10 * time.Second}
	}
	if args.ClaimQPS == nil {
		args.ClaimQPS = ptr.To[float32](100)
	}
	if args.ClaimBurst == nil {
		args.ClaimBurst = ptr.To[int32](200)
	}
	if args.Failover == "" {
		args.Failover = string(v1alpha1.Wait)
	}
	if args.AllowAddressMigration == nil {
		args.AllowAddressMigration = ptr.To(false)
	}
	if args.StrictNodes == nil {
		args.StrictNodes = ptr.To("fixedip.io/strict=true")
	}
	for i := range args.Workloads {
		if args.Workloads[i].Enabled == "" {
			args.Workloads[i].Enabled = string(identity.ByAnnotation)
		}
	}
}

func addConversions(s *runtime.Scheme) error {
	if err := s.AddConversionFunc((*FixedIPArgs)(nil), (*config.FixedIPArgs)(nil), func(a, b any, _ conversion.Scope) error {
		in, out := a.(*FixedIPArgs), b.(*config.FixedIPArgs)
		*out = config.FixedIPArgs{
			IPFamilies:   in.IPFamilies,
			ClaimTimeout: ptr.Deref(in.ClaimTimeout, metav1.Duration{}),
			ClaimQPS:     ptr.Deref(in.ClaimQPS, 0),
			ClaimBurst:   ptr.Deref(in.ClaimBurst, 0),
			Failover:     in.Failover,

			AllowAddressMigration: ptr.Deref(in.AllowAddressMigration, false),
			StrictNodes:           ptr.Deref(in.StrictNodes, ""),
		}
		for _, k := range in.Workloads {
			out.Workloads = append(out.Workloads, identity.Kind{APIGroup: k.APIGroup, Kind: k.Kind, Identity: identity.Form(k.Identity), Enabled: identity.Enabling(k.Enabled)})
		}
		return nil
	}); err != nil {
		return err
	}
	return s.AddConversionFunc((*config.FixedIPArgs)(nil), (*FixedIPArgs)(nil), func(a, b any, _ conversion.Scope) error {
		in, out := a.(*config.FixedIPArgs), b.(*FixedIPArgs)
		*out = FixedIPArgs{
			IPFamilies:   in.IPFamilies,
			ClaimTimeout: &in.ClaimTimeout,
			ClaimQPS:     &in.ClaimQPS,
			ClaimBurst:   &in.ClaimBurst,
			Failover:     in.Failover,

			AllowAddressMigration: &in.AllowAddressMigration,
			StrictNodes:           &in.StrictNodes,
		}
		for _, k := range in.Workloads {
			out.Workloads = append(out.Workloads, WorkloadKind{APIGroup: k.APIGroup, Kind: k.Kind, Identity: string(k.Identity), Enabled: string(k.Enabled)})
		}
		return nil
	})
}
