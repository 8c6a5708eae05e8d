// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package config contains the configuration of the controller and its validation.
//
// The package must not read files or flags: the command fixedip-controller does that.
package config

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// DefaultResyncPeriod is the default of Config.ResyncPeriod.
const DefaultResyncPeriod = source.ResyncPeriod

// minWritesPerMinute is the minimum of Config.WritesPerMinute: enough writes to fill a pool, withdraw surplus entries, ask
// the agent to acknowledge that, and remove the entries within one minute.
const minWritesPerMinute = 4

// Config is the configuration of the controller: the settings that the controller and the scheduler share, which Apply sets,
// and the controller's own settings.
type Config struct {
	// Hash identifies the shared settings: see configuration.Configuration.Hash.
	Hash string
	// ClusterPools are the CIDRs from which subnets are taken, in this order. They have to be empty if SubnetSource is
	// FromNode.
	ClusterPools []address.ClusterPool
	SubnetSource configuration.SubnetSource
	// SubnetPolicy is the policy for orphaned subnets. Inherit and Free apply after OrphanGracePeriod.
	SubnetPolicy      subnetplan.OrphanPolicy
	OrphanGracePeriod time.Duration
	// ProtectNodesFrom are the autoscalers that must not remove nodes whose subnets have reserved addresses.
	ProtectNodesFrom []string
	// Watermark bounds the number of dynamic entries in each pool.
	Watermark nodepool.Watermark
	// StrictNodes selects the nodes whose pools have no dynamic entries. The scheduler needs the same value.
	StrictNodes labels.Selector
	// WritesPerMinute is the maximum number of writes to one CiliumNode in any minute. The limit includes the writes that undo
	// a change or restore an entry, but does not delay these writes.
	WritesPerMinute int
	// StripManagedFields is true if the controller removes the managedFields of CiliumNodes.
	StripManagedFields bool
	// Cooldown is the minimum time for which a released address is offered to no pod.
	Cooldown time.Duration
	// Adoption selects the pods of other schedulers whose current IP becomes their fixed address.
	Adoption identity.Adoption
	// Failover is the failover policy of workloads that have none. The scheduler applies it and needs the same value.
	Failover v1alpha1.Failover
	// Workloads are the kinds of workloads whose pods may have fixed addresses, besides StatefulSets.
	Workloads []identity.Kind
	// FinalizerDeadline is the time from the deletion of a FixedIP until its finalizer is removed even if its addresses could
	// not be released.
	FinalizerDeadline time.Duration
	// ReleaseDeletions is the maximum number of FixedIPs of one node that a release deletes at the same time; 0 means 1.
	ReleaseDeletions int
	// ResyncPeriod is the interval at which each FixedIP is reconciled, and all orphaned subnets are checked, without an event.
	ResyncPeriod time.Duration
	// Namespace is the namespace of the controller's Leases.
	Namespace string
	// MetricsPerNode decides whether the metrics with the label node are served.
	MetricsPerNode metrics.PerNode
	// DryRun is true if the API server only validates the writes, and stores none of them.
	DryRun bool
	// Cilium contains the settings of Cilium, such as its IPAM mode; the zero value: not known.
	Cilium configuration.CiliumSettings
	// CiliumConfig names the ConfigMap from which the settings in Cilium were read.
	CiliumConfig types.NamespacedName
	// Verify is the configuration of the controllers of mismatches, adoption and CiliumEndpoints.
	Verify conformance.Config
}

// SubnetRules returns the rules for subnets. If SubnetSource is FromNode, no other node inherits a subnet: policy Inherit
// becomes Hold.
func (c Config) SubnetRules() subnetplan.Rules {
	policy := c.SubnetPolicy
	if c.SubnetSource == configuration.FromNode && policy == subnetplan.Inherit {
		// Kubernetes may assign the podCIDR of a deleted node to any new node.
		policy = subnetplan.Hold
	}
	return subnetplan.Rules{Pools: c.ClusterPools, Policy: policy, GracePeriod: c.OrphanGracePeriod, Failover: c.Failover}
}

// Apply sets the fields that the settings shared with the scheduler determine. The settings have to be complete and valid.
func (c *Config) Apply(settings configuration.Configuration) (err error) {
	if c.Hash, err = settings.Hash(); err != nil {
		return err
	}
	if c.ClusterPools, err = settings.ClusterPools(); err != nil {
		return err
	}
	if c.StrictNodes, err = settings.Strict(); err != nil {
		return fmt.Errorf("strictNodes: %w", err)
	}
	if c.Adoption.Selector, err = settings.Adopted(); err != nil {
		return fmt.Errorf("adoption.podSelector: %w", err)
	}
	c.Adoption.IPv4Only = settings.IPv4Only()
	c.Adoption.Schedulers = settings.SchedulerNames
	c.SubnetSource, c.SubnetPolicy, c.OrphanGracePeriod = settings.Subnets.Source, settings.Subnets.OrphanedPolicy, settings.Subnets.OrphanedGracePeriod.Duration
	c.ProtectNodesFrom = settings.ProtectNodesFrom
	c.Watermark.Free, c.Watermark.Max = *settings.Pools.MinFree, *settings.Pools.MaxDynamic
	c.Failover, c.Workloads, c.Verify.OnMismatch = settings.Failover, settings.Workloads, string(settings.MismatchPolicy)
	return nil
}

// Validate returns an error for each invalid value of the controller's own settings. The field path of an error is the name
// of the flag.
func (c Config) Validate() field.ErrorList {
	var errs field.ErrorList
	check := func(ok bool, flag string, value any, message string) {
		if !ok {
			errs = append(errs, field.Invalid(field.NewPath(flag), value, message))
		}
	}
	check(c.Watermark.Excess >= 0, "max-surplus-ips", c.Watermark.Excess, "must not be negative")
	check(c.WritesPerMinute >= minWritesPerMinute, "node-writes-per-minute", c.WritesPerMinute, fmt.Sprintf("must be at least %d: enough to fill a pool, withdraw surplus entries, ask the Cilium agent to acknowledge that, and remove the entries within one minute", minWritesPerMinute))
	check(slices.Contains(metrics.PerNodeValues, c.MetricsPerNode), "metrics-per-node", c.MetricsPerNode, fmt.Sprintf("must be one of %v", metrics.PerNodeValues))
	check(c.Cooldown >= 0, "address-cooldown", c.Cooldown.String(), "must not be negative")
	check(!slices.Contains(c.Adoption.ExcludeDBBranch, ""), "exclude-dbbranch-prefixes", "", "must not be empty: every label begins with the empty prefix")
	check(c.FinalizerDeadline > 0, "force-finalize-after", c.FinalizerDeadline.String(), "must be more than 0, so that there is time to release the addresses")
	check(c.ResyncPeriod >= time.Second, "resync-period", c.ResyncPeriod.String(), "must be at least 1s")
	if c.Namespace == "" {
		errs = append(errs, field.Required(field.NewPath("leader-election-namespace"), "name the namespace for the Leases, here or in the environment variable POD_NAMESPACE"))
	}
	v := c.Verify
	check(v.Restarts >= 1, "max-concurrent-restarts", v.Restarts, "must be at least 1; to restart no pods, set mismatchPolicy to Report")
	check(v.RestartAfter >= time.Second, "mismatch-grace-period", v.RestartAfter.String(), "must be at least 1s")
	check(v.EndpointGracePeriod >= time.Second, "cep-grace-period", v.EndpointGracePeriod.String(), "must be at least 1s")
	check(v.EndpointTermination >= time.Second, "cep-termination-timeout", v.EndpointTermination.String(), "must be at least 1s")
	return errs
}
