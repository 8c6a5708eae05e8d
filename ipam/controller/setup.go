// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller sets up the IPAM controller for Cilium's CRD mode: it creates the dependencies that the controllers in
// its sub-packages share, connects the controllers to the watches, and adds them to a manager.
//
// The package must not read or write an object, or decide about an address.
package controller

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/barrier"
	"fixedip.io/fixedip/ipam/controller/ciliumendpoint"
	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/conflict"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/controller/fixedip"
	"fixedip.io/fixedip/ipam/controller/internal/allocate"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/informers"
	"fixedip.io/fixedip/ipam/controller/internal/recorder"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/controller/nodepool"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/controller/scaledown"
	"fixedip.io/fixedip/ipam/controller/subnet"
	"fixedip.io/fixedip/ipam/controller/waiting"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/dryrun"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// agentWorkers is the maximum number of nodes whose agent barriers are reconciled at the same time.
const agentWorkers = 8

// CacheOptions returns the options of the manager's cache: the kinds that the controllers watch, and the fields that
// they read.
func CacheOptions(cfg config.Config) cache.Options {
	return informers.Options(cfg.Adoption, cfg.Verify.Endpoints)
}

// Setup adds the controllers to a manager. When ctx ends, writes in flight are abandoned.
func Setup(ctx context.Context, mgr ctrl.Manager, cfg config.Config) error {
	p, err := newDependencies(ctx, mgr, cfg)
	if err != nil {
		return err
	}
	to, batches := &requests{}, &release.Batches{Clock: p.Clock}
	allocator := &allocate.Allocator{Writer: p.writer, Live: p.Live, Clock: p.Clock}
	records := &fixedip.Controller{
		Gatherer: &p.Gatherer, Batches: batches, Writer: p.writer, Allocator: allocator, IdentityRequests: &to.identities, SlotRequests: &to.slots,
		ResyncPeriod: cfg.ResyncPeriod,
	}
	conflicts := &conflict.Reconciler{Ledger: p.Ledger, Cached: p.Cached, Live: p.Live, Events: p.Events, Clock: p.Clock}
	if err := p.follow(ctx, mgr, to, records, conflicts); err != nil {
		return err
	}
	states, err := fixedips.CountStates(ctx, mgr.GetCache())
	if err != nil {
		return err
	}
	if err := index.Setup(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	pools := &nodepool.Reconciler{
		Watermark: cfg.Watermark, Cooldown: cfg.Cooldown, StrictNodes: cfg.StrictNodes, StripManagedFields: cfg.StripManagedFields,
		Ledger: p.Ledger, Writer: p.writer, Cached: p.Cached, Live: p.Live, Events: p.Events, Clock: p.Clock, Agents: p.Agents, Cilium: cfg.Cilium,
		Kinds: p.Kinds, RecordsSeen: p.watched["fixedips"], Requests: &to.nodes,
	}
	if err := pools.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of pools: %w", err)
	}
	synced := func() bool { return p.watched["ciliumnodes"]() && p.watched["fixedips"]() }
	subnets := &subnet.Controller{
		Pools: p.pools, Writer: p.writer, Ledger: p.Ledger, API: p.Live, Cached: p.Cached, Events: p.Events, Clock: p.Clock, Kinds: p.Kinds,
		Rules: cfg.SubnetRules(), FromNode: cfg.SubnetSource == configuration.FromNode, StrictNodes: cfg.StrictNodes, Adoption: cfg.Adoption,
		FirstEntries: pools.FirstEntries, Resync: cfg.ResyncPeriod, Synced: synced, Nodes: &to.joining, Orphans: &to.orphans,
	}
	scaleDown := &scaledown.Controller{Ledger: p.Ledger, Cached: p.Cached, Live: p.Live, Autoscalers: cfg.ProtectNodesFrom, Requests: &to.protected, Ready: synced}
	if err := scaleDown.Setup(mgr); err != nil {
		return err
	}
	waits := &waiting.Controller{Ledger: p.Ledger, Cached: p.Cached, Events: p.Events, Clock: p.Clock}
	if err := waits.Setup(mgr); err != nil {
		return err
	}
	metrics.Configured(cfg.Hash)
	metrics.Register(metrics.Sources{
		Ledger: p.Ledger, ClusterPools: cfg.ClusterPools, FixedIPs: states.Counts, Synced: p.watched.States, Barriers: p.agents.Overdue,
		PerNode: cfg.MetricsPerNode, MinFree: cfg.Watermark.Free, ResyncPeriod: cfg.ResyncPeriod, Now: p.Clock.Now,
		Mismatched: states.Mismatched, OldestRelease: states.OldestRelease,
		Waiting: func() []metrics.WaitingPods {
			counts, err := waits.Counts(ctx)
			if err != nil {
				mgr.GetLogger().Error(err, "Failed to count the waiting pods; the metrics of waiting pods are 0 in this scrape")
			}
			return counts
		},
		Subnets: func() (orphaned int, claimed []netip.Prefix) { return subnets.Count(ctx) },
		Strict:  func() sets.Set[string] { return pools.Strict(ctx) },
	})
	if err := subnets.Setup(ctx, mgr, p.watched["fixedips"]); err != nil {
		return err
	}
	records.PoolsSeen = p.watched["ciliumnodes"]
	records.Ready = func() bool { return synced() && p.watched["statefulsets"]() }
	if err := records.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of FixedIPs: %w", err)
	}
	if !cfg.DryRun {
		// An agent answers only a probe in its CiliumNode, and a dry run stores no probe.
		if err := p.agents.Setup(mgr, source.Workers(agentWorkers)); err != nil {
			return err
		}
	}
	releases := &release.Controller{Gatherer: &p.Gatherer, Batches: batches, Writer: p.writer, Deletions: cfg.ReleaseDeletions, Again: &to.identities}
	if err := releases.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of releases: %w", err)
	}
	if err := conflicts.Setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of conflicts: %w", err)
	}
	conform := &conformance.Controller{Gatherer: &p.Gatherer, Config: cfg.Verify, Writer: p.writer, Allocator: allocator, Adoption: cfg.Adoption, Ready: records.Ready}
	if cfg.Verify.Endpoints {
		conform.Endpoints = &ciliumendpoint.Keeper{
			Cached: p.Cached, Live: p.Live, Events: p.Events, Clock: p.Clock, MissingRequests: &to.verified, CiliumConfig: cfg.CiliumConfig,
			Grace: ciliumendpoint.GracePeriods{Termination: cfg.Verify.EndpointTermination, Agent: cfg.Verify.EndpointGracePeriod},
		}
		if err := conform.Endpoints.Setup(ctx, mgr); err != nil {
			return fmt.Errorf("set up the keeper of CiliumEndpoints: %w", err)
		}
	}
	return conform.Setup(ctx, mgr, &to.verified, &to.adopted, p.workloads)
}

// dependencies are the objects that the controllers share.
type dependencies struct {
	gather.Gatherer
	pools  *ciliumpool.Client
	writer *ciliumpool.Writer
	// agents is the same as Gatherer.Agents.
	agents *barrier.Service
	// workloads is the same as Gatherer.Workloads.
	workloads *workloads.Store
	watched   informers.Synced
}

// requests passes requests from the shared watches to the queues of the controllers.
type requests struct{ nodes, identities, joining, orphans, slots, verified, adopted, protected source.Requests }

// newDependencies returns the dependencies of the controllers. It starts the informers, adds the watches of workloads to the
// manager and, if Cilium has another IPAM mode than crd, adds a runnable that reports that.
func newDependencies(ctx context.Context, mgr ctrl.Manager, cfg config.Config) (*dependencies, error) {
	// This client reads from the API server, not from the caches.
	live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DryRun: &cfg.DryRun})
	if err != nil {
		return nil, fmt.Errorf("create the client of the API server: %w", err)
	}
	watched, err := informers.Start(ctx, mgr, CacheOptions(cfg))
	if err != nil {
		return nil, err
	}
	kinds := identity.NewKinds(cfg.Workloads...)
	dynamicClient, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("create the dynamic client of workloads: %w", err)
	}
	var ownerKinds []schema.GroupKind
	for _, k := range kinds.All() {
		ownerKinds = append(ownerKinds, k.GroupKind())
	}
	owners := workloads.New(dynamicClient, mgr.GetRESTMapper(), ownerKinds...)
	if kinds.ResolveReplicaSets() {
		owners.WatchForControllers(identity.ReplicaSets)
	}
	if err := mgr.Add(owners); err != nil {
		return nil, fmt.Errorf("add the watches of workloads to the manager: %w", err)
	}
	// Readiness does not wait for workloads of other kinds: their APIs may not be installed yet.
	watched["statefulsets"] = func() bool { return owners.Synced(identity.StatefulSets) }
	l := ledger.New()
	pools := ciliumpool.New(live)
	pools.StripManagedFields = cfg.StripManagedFields
	real := clock.RealClock{}
	writer := ciliumpool.NewWriter(ctx, pools, l.Node)
	writer.OnPatch = metrics.PoolWrite
	writer.RateLimit = ciliumpool.NewRateLimiter(real, cfg.WritesPerMinute)
	var reports events.EventRecorder = recorder.Recorder{EventRecorder: mgr.GetEventRecorder("fixedip-controller")}
	if cfg.DryRun {
		reports = dryrun.Recorder{Log: mgr.GetLogger()}
	}
	agents := barrier.New(writer, reports, real)
	agents.AnswerTimeout = cfg.Cilium.AnswerTimeout()
	if mode := cfg.Cilium.IPAMMode; mode != "" && mode != configuration.IPAMModeCRD {
		if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return reportIPAMMode(ctx, reports, cfg) })); err != nil {
			return nil, fmt.Errorf("add the report of the IPAM mode to the manager: %w", err)
		}
	}
	return &dependencies{
		Gatherer: gather.Gatherer{
			Ledger: l, Cached: mgr.GetClient(), Live: live, Workloads: owners, Agents: agents, Kinds: kinds, Events: reports, Clock: real,
			Failover: cfg.Failover, Deadline: cfg.FinalizerDeadline,
		},
		pools: pools, writer: writer, agents: agents, workloads: owners, watched: watched,
	}, nil
}

// reportIPAMMode reports in the log, and in an event on the ConfigMap of Cilium, that Cilium has another IPAM mode than crd.
// It returns no error, so that the controller continues: the ConfigMap may be newer than the agents, or the flags of the
// agents may set another mode.
func reportIPAMMode(ctx context.Context, reports events.EventRecorder, cfg config.Config) error {
	klog.FromContext(ctx).Error(nil, "The IPAM mode of Cilium is not crd; agents in another mode ignore the pools that fixedip maintains", "configMap", cfg.CiliumConfig, "ipam", cfg.Cilium.IPAMMode)
	about := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: cfg.CiliumConfig.Namespace, Name: cfg.CiliumConfig.Name},
	}
	reports.Eventf(about, nil, corev1.EventTypeWarning, "WrongIPAMMode", "ReadConfiguration", "ipam is %s, but fixedip needs crd: agents in another mode ignore the pools that fixedip maintains, and pods get no fixed addresses; install Cilium with ipam.mode=crd", cfg.Cilium.IPAMMode)
	return nil
}

// follow keeps the ledger in sync with the informers. When the ledger has a change, follow enqueues the affected objects in the
// controllers.
func (p *dependencies) follow(ctx context.Context, mgr ctrl.Manager, to *requests, r *fixedip.Controller, c *conflict.Reconciler) (err error) {
	poolChanged := func(node string, change ledger.NodeChange) {
		to.nodes.Add(source.ForName(node))
		p.agents.Changed(node)
		if change.Appeared || len(change.Subnets) > 0 {
			to.joining.Add(source.ForName(node))
			to.protected.Add(source.ForName(node))
			to.orphans.Add(subnet.All)
		}
		if change.Appeared || len(change.Subnets) > 0 || change.Fixed {
			to.identities.Add(r.OfNode(node)...)
		}
		owners := source.ForOwner(change.Owners...)
		to.verified.Add(owners...)
		to.adopted.Add(owners...)
		to.identities.Add(slices.Concat(owners, source.ForOwner(change.ReportedOwners...))...)
		to.slots.Add(fixedip.SlotRequest(p.Kinds, slices.Concat(change.Workloads, change.Reported)...)...)
		c.PoolChanged(node)
	}
	// The ledger gets a write of this process at once. Otherwise the finalizer of a FixedIP that is deleted while its entries
	// are written would be removed before the watch shows the entries, which would then stay in the pool.
	p.writer.OnPool = func(n pool.NodePool) {
		if change := p.Ledger.ObserveWrite(n); !change.IsEmpty() {
			poolChanged(n.Name, change)
		}
	}
	// Replace the function that newDependencies took from the informer: the ledger gets an object later than the informer.
	p.watched["ciliumnodes"], err = ciliumpool.SyncLedger(ctx, mgr.GetCache(), p.Ledger, poolChanged)
	if err != nil {
		return err
	}
	p.watched["fixedips"], err = fixedips.SyncLedger(ctx, mgr.GetCache(), p.Ledger, func(record *v1alpha1.FixedIP, freed []string) {
		to.identities.Add(source.ForOwner(client.ObjectKeyFromObject(record).String())...)
		to.verified.Add(source.ForOwner(conformance.HolderOf(record))...)
		for _, node := range freed {
			to.nodes.Add(source.ForName(node))
			to.protected.Add(source.ForName(node))
		}
		// The home node may have a dynamic entry for an address that is now reserved, or need one for an address that is no
		// longer reserved.
		for _, a := range address.ParseAll(record.Spec.IPs) {
			if home, ok := p.Ledger.Home(a); ok {
				to.nodes.Add(source.ForName(home))
				to.protected.Add(source.ForName(home))
			}
		}
	})
	if err != nil {
		return err
	}
	p.workloads.AddHandler(func(before, after *identity.Workload) {
		w := cmp.Or(after, before)
		if requests := fixedip.SlotRequest(p.Kinds, w.Resource()); len(requests) > 0 {
			to.slots.Add(requests...)
			return
		}
		if before == nil && !p.workloads.Synced(w.GroupKind) {
			// The workload existed at the start, and the first resync queues its identities.
			return
		}
		to.identities.Add(r.OfWorkload(ctx, *w)...)
	})
	return nil
}
