// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller is the IPAM controller for Cilium's CRD mode: it gives nodes their subnets,
// keeps their pools filled, and keeps the FixedIPs: the records of what the scheduler claims.
//
// It is glue over controller-runtime: it reads caches, asks ipam/core/plan what to do, and has it
// done by ipam/store. It may not decide about addresses itself, and keeps nothing in memory that
// it could not read from the API again.
package controller

import (
	"context"
	"fmt"
	"k8s.io/apimachinery/pkg/types"
	"net/netip"
	"sigs.k8s.io/controller-runtime/pkg/client"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/ciliumendpoint"
	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/conflict"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/controller/fixedip"
	"fixedip.io/fixedip/ipam/controller/internal/evict"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/informers"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/controller/nodepool"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/controller/subnet"
	"fixedip.io/fixedip/ipam/core/endpoint"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// agentWorkers is how many agents are asked at the same time.
const agentWorkers = 8

// CacheOptions returns the options of the manager's cache: the kinds that the controllers watch, and the fields that
// they read.
func CacheOptions(cfg config.Config) cache.Options {
	return informers.Options(cfg.Adoption, cfg.Verify.Endpoints)
}

// Setup adds the controllers to a manager. ctx bounds the writes that are under way when the
// manager stops.
func Setup(ctx context.Context, mgr manager.Manager, cfg config.Config) error {
	if cfg.DryRun {
		var err error
		if mgr, err = newDryRunManager(mgr); err != nil {
			return err
		}
	}
	p, err := newParts(ctx, mgr, cfg)
	if err != nil {
		return err
	}
	to := newFeeds()
	records, releases := p.newFixedIPControllers(to)
	conflicts := conflict.New(p.ledger, p.cached, p.live, p.events, p.clock)
	if err := p.follow(ctx, mgr, to, records, conflicts); err != nil {
		return err
	}
	phases, err := fixedips.CountPhases(ctx, mgr.GetCache())
	if err != nil {
		return err
	}
	metrics.Register(metrics.World{
		Ledger: p.ledger, ClusterPools: cfg.ClusterPools, Phases: phases.Counts, Synced: p.watched.States,
		Subnets: func() (orphaned int, claimed []netip.Prefix) { return p.orphaned(ctx) },
	})

	if err := index.Setup(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	pools := nodepool.New(nodepool.Options{
		Watermark: cfg.Watermark, CoolDown: cfg.CoolDown, StrictNodes: cfg.StrictNodes, StripManagedFields: cfg.StripManagedFields,
		Ledger: p.ledger, Writer: p.writer, Cached: p.cached, Live: p.live, Events: p.events, Clock: p.clock,
		Kinds: p.kinds, RecordsSeen: p.watched["fixedips"],
	})
	if err := pools.Setup(mgr, to.nodes); err != nil {
		return fmt.Errorf("set up the controller of pools: %w", err)
	}
	if err := p.newSubnetController(pools, to).Setup(ctx, mgr, to.joining.Source(p.watched["fixedips"], none), to.orphans.Source(nil, func() []reconcile.Request { return []reconcile.Request{subnet.All} })); err != nil {
		return err
	}
	records.PoolsSeen = p.watched["ciliumnodes"]
	records.Ready = []toolscache.InformerSynced{p.watched["ciliumnodes"], p.watched["fixedips"], p.watched["statefulsets"]}
	if err := records.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of FixedIPs: %w", err)
	}
	if !cfg.DryRun {
		// To ask an agent is a write.
		if err := p.agents.Setup(mgr, source.Workers(agentWorkers)); err != nil {
			return err
		}
	}
	metrics.Barriers(p.agents.Overdue)
	if err := releases.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of releases: %w", err)
	}
	if err := conflicts.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of conflicts: %w", err)
	}
	d := conformance.Dependencies{
		Config: cfg.Verify, Ledger: p.ledger, Writer: p.writer, Cached: p.cached, Live: p.live,
		Kinds: p.kinds, Adoption: cfg.Adoption, Failover: cfg.Failover, Workloads: p.workloads, Events: p.events, Clock: p.clock,
		Evictor: &evict.Evictor{
			Cached: p.cached, Live: p.live, Clock: p.clock, AtOnce: cfg.Verify.Restarts, Pause: cfg.Verify.RestartAfter,
			Workloads: func(o identity.Owner, namespace string) (*identity.Workload, error) {
				return p.workloads.Get(o.GroupKind(), namespace, o.Name)
			},
		},
		Ready: records.Ready,
	}
	if cfg.Verify.Endpoints {
		keeper := ciliumendpoint.New(ciliumendpoint.Options{
			Cached: p.cached, Live: p.live, Events: p.events, Clock: p.clock,
			Grace: endpoint.GracePeriods{Termination: cfg.Verify.EndpointTermination, Agent: cfg.Verify.EndpointPatience},
			Fixed: p.isFixed, MissingFeed: to.verified,
		})
		if err := keeper.Setup(ctx, mgr); err != nil {
			return fmt.Errorf("set up the keeper of CiliumEndpoints: %w", err)
		}
		d.Endpoints = keeper
	}
	if err := conformance.SetupVerify(ctx, mgr, d, to.verified, p.workloads); err != nil {
		return fmt.Errorf("set up the controller that verifies: %w", err)
	}
	if err := conformance.SetupAdopt(mgr, d, to.adopted); err != nil {
		return fmt.Errorf("set up the controller that adopts pods: %w", err)
	}
	return nil
}

// isFixed reports whether anything is reserved for a pod.
func (p *parts) isFixed(ctx context.Context, pod types.NamespacedName) bool {
	var record v1alpha1.FixedIP
	return p.cached.Get(ctx, pod, &record, client.UnsafeDisableDeepCopy) == nil || len(p.ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name))) > 0
}

func (p *parts) newFixedIPControllers(to feeds) (*fixedip.Controller, *release.Controller) {
	gatherer := &gather.Gatherer{
		Ledger: p.ledger, Cached: p.cached, Kinds: p.kinds, Events: p.events, Clock: p.clock,
		Failover: p.cfg.Failover, Deadline: p.cfg.FinalizerDeadline,
	}
	batches := release.NewBatches(p.clock)
	return fixedip.New(fixedip.Options{
			Gatherer: gatherer, Batches: batches, Writer: p.writer, Cached: p.cached, Live: p.live, Workloads: p.workloads,
			Events: p.events, Clock: p.clock, ResyncPeriod: p.cfg.SweepInterval, Agents: p.agents, Identities: to.identities, Slots: to.slots,
		}), release.New(release.Options{
			Gatherer: gatherer, Batches: batches, Writer: p.writer, Cached: p.cached, Live: p.live, Workloads: p.workloads,
			Events: p.events, Clock: p.clock, Again: to.identities,
		})
}

// none asks for nothing: the package subnet asks for all nodes when it is ready for them.
func none() []reconcile.Request { return nil }

func (p *parts) newSubnetController(pools *nodepool.Reconciler, to feeds) *subnet.Controller {
	return &subnet.Controller{
		Assigner: &subnet.Assigner{Options: subnet.Options{
			Store: p.claims, Pools: p.pools, Writer: p.writer, Ledger: p.ledger, API: p.live, Cached: p.cached,
			Rules: p.cfg.SubnetRules(), FromNode: p.cfg.SubnetSource == config.FromNode, StrictNodes: p.cfg.StrictNodes, Kinds: p.kinds, Clock: p.clock,
			Fill: pools.FirstEntries,
		}},
		Events: p.events, Resync: p.cfg.SweepInterval,
		Synced: func() bool { return p.watched["ciliumnodes"]() && p.watched["fixedips"]() },
		AddNodes: func(nodes ...string) {
			for _, n := range nodes {
				to.joining.Add(subnet.NodeRequest(n))
			}
		},
	}
}
