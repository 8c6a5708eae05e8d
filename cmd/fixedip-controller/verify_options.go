// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/pflag"

	"fixedip.io/fixedip/ipam/controller"
	"fixedip.io/fixedip/ipam/core/identity"
)

// addVerifyFlags adds a flag for each field of c.
func addVerifyFlags(fs *pflag.FlagSet, c *controller.VerifyConfig) {
	fs.StringVar(&c.OnMismatch, "mismatch-policy", c.OnMismatch, "Policy for pods that run with another address than their fixed address: Restart (evict the pod) or Report. The annotation "+identity.AnnotationOnMismatch+" of a workload takes precedence")
	fs.DurationVar(&c.RestartAfter, "mismatch-grace-period", c.RestartAfter, "How long a mismatch has to last before the pod is restarted; longer than agents take to see a pool entry")
	fs.IntVar(&c.Restarts, "max-concurrent-restarts", c.Restarts, "Maximum of pods restarting at the same time because of a mismatch")
	fs.BoolVar(&c.Endpoints, "enable-cep-keeper", c.Endpoints, "Repair CiliumEndpoints; disable it if Cilium runs without them (disable-endpoint-crd)")
	fs.DurationVar(&c.EndpointPatience, "cep-grace-period", c.EndpointPatience, "How long a CiliumEndpoint may be missing or wrong before the controller repairs it; agents need up to 20s to create a missing one")
	fs.DurationVar(&c.EndpointTermination, "cep-termination-timeout", c.EndpointTermination, "How long finalizers may delay the deletion of a CiliumEndpoint")
}
