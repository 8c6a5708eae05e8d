// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"fixedip.io/fixedip/ipam/core/identity"
)

// Config says what is done about pods and CiliumEndpoints that are not as recorded.
type Config struct {
	// OnMismatch is the policy of workloads without one.
	OnMismatch string
	// RestartAfter is how long a pod runs with a wrong IP, while its own is in the pool, before it is evicted.
	RestartAfter time.Duration
	// Restarts is how many pods may be restarting at a time.
	Restarts int
	// Endpoints is whether CiliumEndpoints are kept.
	Endpoints bool
	// EndpointPatience is how long agents have to resolve an issue of a CiliumEndpoint themselves.
	EndpointPatience time.Duration
	// EndpointTermination is how long finalizers may hold a CiliumEndpoint.
	EndpointTermination time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		OnMismatch:          string(identity.Restart),
		RestartAfter:        20 * time.Second,
		Restarts:            5,
		Endpoints:           true,
		EndpointPatience:    time.Minute,
		EndpointTermination: 30 * time.Minute,
	}
}

// Validate returns each field whose value is wrong, under the name of its flag.
func (c Config) Validate() field.ErrorList {
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
