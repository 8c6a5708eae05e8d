package main

import (
	"github.com/spf13/pflag"

	"fixedip.io/fixedip/ipam/controller"
	"fixedip.io/fixedip/ipam/core/identity"
)

// addVerifyFlags adds a flag for each field.
func addVerifyFlags(fs *pflag.FlagSet, c *controller.VerifyConfig) {
	fs.StringVar(&c.OnMismatch, "mismatch-policy", c.OnMismatch, "What is done about a pod that runs with another address than the one kept for it: Restart (evict it) or Report. The annotation "+identity.AnnotationOnMismatch+" of a workload goes first")
	fs.DurationVar(&c.RestartAfter, "mismatch-grace-period", c.RestartAfter, "How long a wrong address has to last before its pod is restarted; longer than the agents take to see a pool entry")
	fs.IntVar(&c.Restarts, "max-concurrent-restarts", c.Restarts, "How many pods may be restarting at a time because of a mismatch")
	fs.BoolVar(&c.Endpoints, "enable-cep-keeper", c.Endpoints, "Look after CiliumEndpoints; turn it off where Cilium runs without their definition (disable-endpoint-crd)")
	fs.DurationVar(&c.EndpointPatience, "cep-grace-period", c.EndpointPatience, "How long a CiliumEndpoint may be missing or wrong before the controller steps in; agents from v1.19 on need up to 20s to make a missing one again")
	fs.DurationVar(&c.EndpointTermination, "cep-termination-timeout", c.EndpointTermination, "How long finalizers may hold a CiliumEndpoint that is being deleted")
}
