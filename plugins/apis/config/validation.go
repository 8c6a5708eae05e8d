// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
)

// maxClaimTimeout is the maximum of claimTimeout. It limits the time that a pod spends in the binding cycle.
const maxClaimTimeout = 5 * time.Minute

// ValidateFixedIPArgs validates the arguments. Errors name the field and the value.
func ValidateFixedIPArgs(path *field.Path, args *FixedIPArgs) field.ErrorList {
	var errs field.ErrorList
	families := path.Child("ipFamilies")
	if len(args.IPFamilies) == 0 {
		errs = append(errs, field.Required(families, "must be IPv4, IPv6 or both"))
	}
	seen := map[string]bool{}
	for i, f := range args.IPFamilies {
		if _, err := address.ParseFamily(f); err != nil {
			errs = append(errs, field.NotSupported(families.Index(i), f, []string{"IPv4", "IPv6"}))
		} else if seen[f] {
			errs = append(errs, field.Duplicate(families.Index(i), f))
		}
		seen[f] = true
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
	switch policy, err := identity.ParseFailover(args.Failover); {
	case err != nil:
		errs = append(errs, field.NotSupported(path.Child("failover"), args.Failover, []string{"Wait", "Migrate", "Reassign"}))
	case policy == v1alpha1.Migrate && !args.AllowAddressMigration:
		errs = append(errs, field.Invalid(path.Child("failover"), args.Failover, "addresses cannot migrate while allowAddressMigration is false; set it to true if the routing of the cluster carries single addresses"))
	}
	if strict := ptr.Deref(args.StrictNodes, ""); strict != "" {
		if _, err := identity.ParseLabels(strict); err != nil {
			errs = append(errs, field.Invalid(path.Child("strictNodes"), strict, err.Error()))
		}
	}
	return append(errs, identity.ValidateKinds(path.Child("workloads"), args.Workloads)...)
}
