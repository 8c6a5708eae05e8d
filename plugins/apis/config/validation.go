// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/store/ciliumconfigmap"
)

// maxClaimTimeout is the maximum of claimTimeout. It limits the time that a pod spends in the binding cycle.
const maxClaimTimeout = 5 * time.Minute

// ValidateFixedIPArgs validates the arguments. Errors name the field and the value.
func ValidateFixedIPArgs(path *field.Path, args *FixedIPArgs) field.ErrorList {
	var errs field.ErrorList
	if args.Configuration == "" {
		errs = append(errs, field.Required(path.Child("configuration"), "must be the path of a file of kind FixedIPConfiguration"))
	}
	if _, err := ciliumconfigmap.ParseName(args.CiliumConfig); err != nil {
		errs = append(errs, field.Invalid(path.Child("ciliumConfig"), args.CiliumConfig, err.Error()))
	}
	if d := ptr.Deref(args.ClaimTimeout, metav1.Duration{}).Duration; d <= 0 || d > maxClaimTimeout {
		errs = append(errs, field.Invalid(path.Child("claimTimeout"), d.String(), "must be more than 0s and at most "+maxClaimTimeout.String()))
	}
	if qps := ptr.Deref(args.ClaimQPS, 0); qps <= 0 {
		errs = append(errs, field.Invalid(path.Child("claimQPS"), qps, "must be more than 0"))
	}
	if burst := ptr.Deref(args.ClaimBurst, 0); burst < 1 {
		errs = append(errs, field.Invalid(path.Child("claimBurst"), burst, "must be at least 1"))
	}
	return errs
}
