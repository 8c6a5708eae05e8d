// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"fixedip.io/fixedip/ipam/core/identity"
)

// VerifyConfig says what is done about pods and CiliumEndpoints that are not as they should be.
type VerifyConfig struct {
	// OnMismatch is for workloads that say nothing themselves.
	OnMismatch string
	// RestartAfter is how long a wrong address has to last, with the right one in the pool, before
	// its pod is restarted.
	RestartAfter time.Duration
	// Restarts is how many pods may be restarting at a time.
	Restarts int
	// Endpoints tells whether CiliumEndpoints are looked after.
	Endpoints bool
	// EndpointPatience is how long agents are given to put CiliumEndpoints right themselves.
	EndpointPatience time.Duration
	// EndpointTermination is how long finalizers may hold a CiliumEndpoint.
	EndpointTermination time.Duration
}

// DefaultVerifyConfig is what holds where no flag says otherwise.
func DefaultVerifyConfig() VerifyConfig {
	return VerifyConfig{
		OnMismatch:          string(identity.Restart),
		RestartAfter:        20 * time.Second,
		Restarts:            5,
		Endpoints:           true,
		EndpointPatience:    time.Minute,
		EndpointTermination: 30 * time.Minute,
	}
}

func (c VerifyConfig) validate() field.ErrorList {
	var errs field.ErrorList
	if _, err := identity.ParseOnMismatch(c.OnMismatch); err != nil {
		errs = append(errs, field.NotSupported(field.NewPath("mismatch-policy"), c.OnMismatch, []identity.OnMismatch{identity.Restart, identity.Report}))
	}
	if c.Restarts < 1 {
		errs = append(errs, field.Invalid(field.NewPath("max-concurrent-restarts"), c.Restarts, "must be at least 1; to restart no pods, set mismatch-policy to Report"))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"mismatch-grace-period", c.RestartAfter},
		{"cep-grace-period", c.EndpointPatience},
		{"cep-termination-timeout", c.EndpointTermination},
	} {
		if d.value < time.Second {
			errs = append(errs, field.Invalid(field.NewPath(d.flag), d.value.String(), "must be at least 1s"))
		}
	}
	return errs
}
