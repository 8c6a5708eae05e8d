// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/barrier"
	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/conflict"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/controller/fixedip"
	"fixedip.io/fixedip/ipam/controller/internal/informers"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/controller/nodepool"
	"fixedip.io/fixedip/ipam/controller/subnet"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/subnets"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// parts are what the controllers share.
type parts struct {
	cfg    config.Config
	ledger *ledger.Ledger
	pools  *ciliumpool.Pools
	claims *subnets.Store
	writer *ciliumpool.Writer
	// agents asks Cilium agents what they know.
	agents *barrier.Service
	// cached reads what the watches have shown, live what the API server has.
	cached client.Client
	live   client.Client

	kinds     identity.Kinds
	workloads *workloads.Store
	watched   informers.Synced

	events events.EventRecorder
	clock  clock.Clock
}

// feeds hand what the shared watches show to the queues of the controllers.
type feeds struct{ nodes, identities, joining, orphans, slots, verified, adopted *source.Feed }

func newFeeds() feeds {
	return feeds{nodes: &source.Feed{}, identities: &source.Feed{}, joining: &source.Feed{}, orphans: &source.Feed{}, slots: &source.Feed{}, verified: &source.Feed{}, adopted: &source.Feed{}}
}

func newParts(ctx context.Context, mgr manager.Manager, cfg config.Config) (*parts, error) {
	live, err := liveClient(mgr)
	if err != nil {
		return nil, err
	}
	watched, err := informers.Start(ctx, mgr, CacheOptions(cfg))
	if err != nil {
		return nil, err
	}
	kinds := identity.NewKinds(cfg.Workloads...)
	owners, err := newWorkloads(mgr, kinds)
	if err != nil {
		return nil, err
	}
	// Other kinds may not be installed yet, which nothing waits for.
	watched["statefulsets"] = func() bool { return owners.Synced(identity.StatefulSets) }
	l := ledger.New()
	pools := ciliumpool.New(live)
	if cfg.StripManagedFields {
		pools.Untrack()
	}
	real := clock.RealClock{}
	writer := ciliumpool.NewWriter(ctx, pools, l.Node)
	writer.Observe(metrics.PoolWrites{})
	writer.Pace(ciliumpool.NewPace(real, cfg.WritesPerMinute))
	recorder := mgr.GetEventRecorder("fixedip-controller")
	return &parts{
		cfg: cfg, agents: barrier.New(writer, recorder, real), ledger: l, pools: pools, writer: writer, claims: subnets.New(live, mgr.GetClient()),
		cached: mgr.GetClient(), live: live,
		kinds: kinds, workloads: owners, watched: watched,
		events: recorder, clock: real,
	}, nil
}

// follow feeds the ledger from the watches, and what has changed in it to the controllers.
func (p *parts) follow(ctx context.Context, mgr manager.Manager, to feeds, r *fixedip.Controller, c *conflict.Reconciler) (err error) {
	// The ledger is behind its watch.
	p.watched["ciliumnodes"], err = ciliumpool.Follow(ctx, mgr.GetCache(), p.ledger, func(node string, change ledger.Change) {
		to.nodes.Add(nodepool.Request(node))
		p.agents.Changed(node)
		if change.Appeared || change.Moved {
			to.joining.Add(subnet.NodeRequest(node))
			to.orphans.Add(subnet.All)
		}
		if change.Appeared || change.Moved {
			to.identities.Add(r.OfNode(node)...)
		}
		for _, owner := range change.Owners {
			to.identities.Add(source.Request(owner)...)
			to.verified.Add(source.Request(owner)...)
			to.adopted.Add(source.Request(owner)...)
		}
		for _, owner := range change.ReportedOwners {
			to.identities.Add(source.Request(owner)...)
		}
		for _, resource := range slices.Concat(change.Workloads, change.Reported) {
			to.slots.Add(fixedip.SlotRequest(p.kinds, resource)...)
		}
		c.PoolChanged(node)
	})
	if err != nil {
		return err
	}
	p.watched["fixedips"], err = fixedips.Follow(ctx, mgr.GetCache(), p.ledger, func(record *v1alpha1.FixedIP, freed []string) {
		to.identities.Add(source.Request(client.ObjectKeyFromObject(record).String())...)
		to.verified.Add(source.Request(conformance.HolderOf(record))...)
		for _, node := range freed {
			to.nodes.Add(nodepool.Request(node))
		}
		// What is kept may be in the way of a pool, or a pool's dynamic entry in its way.
		for _, ip := range record.Spec.IPs {
			if a, err := address.Parse(ip); err == nil {
				if home, ok := p.ledger.Home(a); ok {
					to.nodes.Add(nodepool.Request(home))
				}
			}
		}
	})
	if err != nil {
		return err
	}
	p.workloads.Tell(func(before, after *identity.Workload) {
		w := cmp.Or(after, before)
		if requests := fixedip.SlotRequest(p.kinds, w.Resource()); len(requests) > 0 {
			to.slots.Add(requests...)
			return
		}
		if before == nil && !p.workloads.Synced(w.GroupKind) {
			// It stood at the start: a sweep looks at its identities.
			return
		}
		to.identities.Add(r.OfWorkload(ctx, *w)...)
	})
	return nil
}

// orphaned returns how many orphaned subnets have reserved addresses, and the CIDRs of all NodeSubnets, as the caches
// show them.
func (p *parts) orphaned(ctx context.Context) (orphaned int, claimed []netip.Prefix) {
	list, err := p.claims.List(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Orphaned subnets not counted")
	}
	for _, s := range subnetplan.FromNodeSubnets(list) {
		claimed = append(claimed, s.CIDR)
		if !s.OrphanedSince.IsZero() && len(p.ledger.KeepingsIn(s.CIDR)) > 0 {
			orphaned++
		}
	}
	return orphaned, claimed
}
