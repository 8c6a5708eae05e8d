// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/controller/fixedip"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/informers"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/subnets"
)

// CacheOptions returns the options of the manager's cache: the kinds that the controllers watch, and the fields that
// they read.
func CacheOptions(cfg Config) cache.Options {
	return informers.Options(cfg.Adoption, cfg.Verify.Endpoints)
}

// Setup adds the controllers to a manager. ctx bounds the writes that are under way when the
// manager stops.
func Setup(ctx context.Context, mgr manager.Manager, cfg Config) error {
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
	conflicts := newConflictReconciler(p.ledger, mgr, p.live)
	if err := p.follow(ctx, mgr, to, records, conflicts); err != nil {
		return err
	}
	phases, err := fixedips.CountPhases(ctx, mgr.GetCache())
	if err != nil {
		return err
	}
	metrics.Register(metrics.World{
		Ledger: p.ledger, ClusterPools: cfg.ClusterPools, Phases: phases.Counts, Synced: p.watched.States,
		Homeless: func() []plan.Kept { return p.homeless(ctx) },
	})

	if err := index.Setup(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	s := p.newSubnetReconciler()
	if err := s.setup(ctx, mgr, to.orphans); err != nil {
		return fmt.Errorf("set up the controller of subnets: %w", err)
	}
	if err := p.newNodeReconciler(s).setup(mgr, to.nodes); err != nil {
		return fmt.Errorf("set up the controller of pools: %w", err)
	}
	records.PoolsSeen = p.watched["ciliumnodes"]
	records.Ready = []toolscache.InformerSynced{p.watched["ciliumnodes"], p.watched["fixedips"], p.watched["statefulsets"]}
	if err := records.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of FixedIPs: %w", err)
	}
	if err := releases.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of releases: %w", err)
	}
	if err := p.newAdoptReconciler().setup(mgr, to.adopted, records.Ready); err != nil {
		return fmt.Errorf("set up the controller that adopts pods: %w", err)
	}
	if err := conflicts.setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of conflicts: %w", err)
	}
	if cfg.Verify.Endpoints {
		if err := newEndpointReconciler(p.ledger, mgr, p.live, cfg.Verify).setup(ctx, mgr); err != nil {
			return fmt.Errorf("set up the keeper of CiliumEndpoints: %w", err)
		}
	}
	if err := p.newVerifyReconciler().setup(mgr, to.verified, p.workloads, records.Ready); err != nil {
		return fmt.Errorf("set up the controller that verifies: %w", err)
	}
	return nil
}

func (p *parts) newFixedIPControllers(to feeds) (*fixedip.Controller, *release.Controller) {
	gatherer := &gather.Gatherer{
		Ledger: p.ledger, Cached: p.cached, Kinds: p.kinds, Events: p.events, Clock: p.clock,
		Failover: p.cfg.Failover, Deadline: p.cfg.FinalizerDeadline, AgentSilence: p.cfg.AgentSilence,
	}
	batches := release.NewBatches(p.clock)
	return fixedip.New(fixedip.Options{
			Gatherer: gatherer, Batches: batches, Writer: p.writer, Cached: p.cached, Live: p.live, Workloads: p.workloads,
			Events: p.events, Clock: p.clock, ResyncPeriod: p.cfg.SweepInterval, Identities: to.identities, Slots: to.slots,
		}), release.New(release.Options{
			Gatherer: gatherer, Batches: batches, Writer: p.writer, Cached: p.cached, Live: p.live, Workloads: p.workloads,
			Events: p.events, Clock: p.clock, Again: to.identities,
		})
}

func (p *parts) newSubnetReconciler() *subnetReconciler {
	return &subnetReconciler{
		ledger: p.ledger, cached: p.cached, live: p.live, events: p.events, clock: p.clock, cfg: p.cfg,
		allocator: subnets.NewAllocator(subnets.Options{
			API: p.live, Cached: p.cached, Pools: p.pools, Writer: p.writer, Ledger: p.ledger,
			Rules: p.cfg.subnetRules(), Namespace: p.cfg.Namespace, Clock: p.clock,
		}),
		synced: func() bool { return p.watched["ciliumnodes"]() && p.watched["fixedips"]() },
	}
}

func (p *parts) newNodeReconciler(s *subnetReconciler) *nodeReconciler {
	return &nodeReconciler{
		ledger: p.ledger, writer: p.writer, cached: p.cached, live: p.live, events: p.events, clock: p.clock, cfg: p.cfg,
		subnets:     s,
		kinds:       p.kinds,
		untracked:   map[string]string{},
		answers:     newAnswers(p.clock),
		recordsSeen: p.watched["fixedips"],
	}
}

func (p *parts) newAdoptReconciler() *adoptReconciler {
	return &adoptReconciler{
		ledger: p.ledger, writer: p.writer, cached: p.cached, live: p.live, events: p.events,
		adoption: p.cfg.Adoption,
		failover: p.cfg.Failover,
		kinds:    p.kinds,

		workloads: p.workloads, clock: p.clock, verify: p.cfg.Verify, restarter: p.restarter,
	}
}
