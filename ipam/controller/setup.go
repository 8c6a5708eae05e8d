package controller

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/informers"
	"fixedip.io/fixedip/ipam/controller/metrics"
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
	records := p.newRecordReconciler(to)
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
	records.poolsSeen, records.ready = p.watched["ciliumnodes"], []toolscache.InformerSynced{p.watched["ciliumnodes"], p.watched["fixedips"], p.watched["statefulsets"]}
	if err := records.setup(mgr, to.identities); err != nil {
		return fmt.Errorf("set up the controller of records: %w", err)
	}
	if err := (&slotReconciler{records}).setup(mgr, to.slots); err != nil {
		return fmt.Errorf("set up the controller of slots: %w", err)
	}
	if err := p.newReleaseReconciler(to, records).setup(mgr, to.leaving, p.ledger, records.poolsSeen); err != nil {
		return fmt.Errorf("set up the controller of releases: %w", err)
	}
	if err := (&finishReconciler{records}).setup(mgr, to.finishing); err != nil {
		return fmt.Errorf("set up the controller that sees records off: %w", err)
	}
	if err := p.newAdoptReconciler().setup(mgr, to.adopted, records.ready); err != nil {
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
	if err := p.newVerifyReconciler().setup(mgr, to.verified, p.workloads, records.ready); err != nil {
		return fmt.Errorf("set up the controller that verifies: %w", err)
	}
	return nil
}

func (p *parts) newRecordReconciler(to feeds) *recordReconciler {
	return &recordReconciler{
		ledger: p.ledger, writer: p.writer, cached: p.cached, live: p.live,
		kinds: p.kinds, workloads: p.workloads, events: p.events, clock: p.clock,
		leaving:   to.leaving,
		finishing: to.finishing,
		underway:  &underway{owners: map[string]bool{}},
		deadline:  p.cfg.FinalizerDeadline,
		silence:   p.cfg.AgentSilence,
		sweep:     p.cfg.SweepInterval,
		failover:  p.cfg.Failover,
	}
}

func (p *parts) newReleaseReconciler(to feeds, r *recordReconciler) *releaseReconciler {
	return &releaseReconciler{
		writer: p.writer, cached: p.cached, live: p.live, events: p.events, clock: p.clock,
		situation: r.situation,
		workloads: p.workloads,
		absences:  newAbsences(p.clock),
		gathered:  newGatherings(p.clock),
		owners:    p.ledger.OwnersOn,
		underway:  r.underway,
		done:      to.identities,
		deadline:  p.cfg.FinalizerDeadline,
	}
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
