// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	restclient "k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/packed"
	"fixedip.io/fixedip/ipam/store/rights"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// WorkloadIndex is the index of FixedIPs by workload, for workloads whose pods have slots. Its values are workloads as pool
// entries name them.
const WorkloadIndex = "workload"

// Cache is the view of the cluster that the plugin decides from. Start sets the fields above mu before it returns, and they do
// not change afterwards.
type Cache struct {
	Ledger *ledger.Ledger
	// FixedIPs reads FixedIPs from the cache, which has the index WorkloadIndex.
	FixedIPs  client.Reader
	Workloads *workloads.Store
	// Kinds are the kinds of workloads whose pods may have fixed addresses.
	Kinds identity.Kinds
	// Pools reads pools from the API server, and Writer writes them.
	Pools  *ciliumpool.Client
	Writer *ciliumpool.Writer
	// synced contains, for the watch of CiliumNodes and that of FixedIPs, a function that reports whether the watch has
	// delivered all objects that existed at the start. Key: the plural name of the resource.
	synced map[string]toolscache.InformerSynced

	mu sync.Mutex
	// subscribers are called with every event. Each profile subscribes once.
	subscribers []func(requeue.Event)
}

// Start returns a Cache and starts its watches, which end with ctx. It does not wait for the watches, and succeeds even if the
// API server is not reachable: see addSyncOnlyInformer. shared contains the informers of the scheduler, and kinds the kinds
// of workloads whose pods may have fixed addresses. Start returns an error if the scheduler may not list and watch all
// workloads of these kinds.
func Start(ctx context.Context, base *restclient.Config, shared informers.SharedInformerFactory, args *config.FixedIPArgs, kinds identity.Kinds, newCache cache.NewCacheFunc) (*Cache, error) {
	cfg := restclient.CopyConfig(base)
	// The scheduler's own configuration uses protobuf, which custom resources do not support.
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, ""
	cfg.QPS, cfg.Burst = *args.ClaimQPS, int(*args.ClaimBurst)
	cfg.RateLimiter = nil
	restclient.AddUserAgent(cfg, "fixedip-scheduler")
	registered, err := scheme.New()
	if err != nil {
		return nil, err
	}
	api, err := client.New(cfg, client.Options{Scheme: registered, Mapper: newMapper()})
	if err != nil {
		return nil, fmt.Errorf("create a client for CiliumNodes and FixedIPs: %w", err)
	}
	caches, err := newCache(cfg, cache.Options{
		Scheme:      registered,
		Mapper:      newMapper(),
		NewInformer: packed.NewInformerWith(pack),
		ByObject: map[client.Object]cache.ByObject{
			&ciliumv2.CiliumNode{}: {Transform: ciliumpool.ForCache},
			&v1alpha1.FixedIP{}:    {Transform: trim},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create a cache of CiliumNodes and FixedIPs: %w", err)
	}
	c := &Cache{Ledger: ledger.New(), FixedIPs: caches, Kinds: kinds}
	c.WritePools(ctx, ciliumpool.New(api))
	if err := c.followWorkloads(ctx, cfg, shared); err != nil {
		return nil, err
	}
	if err := caches.IndexField(ctx, &v1alpha1.FixedIP{}, WorkloadIndex, slotsOf(kinds)); err != nil {
		return nil, fmt.Errorf("add the index of FixedIPs by workload: %w", err)
	}
	pools, err := ciliumpool.SyncLedger(ctx, caches, c.Ledger, c.PoolChanged)
	if err != nil {
		return nil, err
	}
	records, err := fixedips.SyncLedger(ctx, caches, c.Ledger, c.fixedIPChanged)
	if err != nil {
		return nil, err
	}
	c.synced = map[string]toolscache.InformerSynced{"ciliumnodes": pools, "fixedips": records}
	c.addSyncOnlyInformer(shared)
	go func() {
		if err := caches.Start(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "The watches of CiliumNodes and FixedIPs ended")
		}
	}()
	return c, nil
}

// WritePools sets Pools, and a Writer that works until ctx ends. When a call of Writer.Write returns, the ledger contains
// each pool that the API server has returned for the call, or a newer version. The exception is a CiliumNode that the ledger
// does not know yet, or knows with another UID: the ledger ignores its pool until the watch shows it.
func (c *Cache) WritePools(ctx context.Context, api *ciliumpool.Client) {
	c.Pools, c.Writer = api, ciliumpool.NewWriter(ctx, api, c.Ledger.Node)
	c.Writer.OnPatch = metrics.PoolWrite
	c.Writer.OnPool = func(n pool.NodePool) { c.PoolChanged(n.Name, c.Ledger.ObserveWrite(n)) }
}

// Ready reports whether the watches of CiliumNodes and FixedIPs have delivered all objects that existed when the scheduler
// started.
func (c *Cache) Ready() bool {
	for _, synced := range c.synced {
		if !synced() {
			return false
		}
	}
	return true
}

var _ metrics.Sources = &Cache{}

// Synced reports for the watch of CiliumNodes and that of FixedIPs whether it has delivered all objects that existed when
// the scheduler started. Key: the plural name of the resource.
func (c *Cache) Synced() map[string]bool {
	all := make(map[string]bool, len(c.synced))
	for resource, synced := range c.synced {
		all[resource] = synced()
	}
	return all
}

// Size returns the number of objects in the ledger.
func (c *Cache) Size() ledger.Size { return c.Ledger.Size() }

// Subscribe registers a function that is called with every event. Several goroutines call it: those of watches and writes,
// and those of the scheduler.
func (c *Cache) Subscribe(f func(requeue.Event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, f)
}

// Notify passes an event to all subscribers.
func (c *Cache) Notify(e requeue.Event) {
	c.mu.Lock()
	subscribers := c.subscribers
	c.mu.Unlock()
	for _, f := range subscribers {
		f(e)
	}
}

// PoolChanged notifies the subscribers of a change of a node's pool if a waiting pod may depend on the change. Most new
// versions of a CiliumNode notify no subscriber, because only the use of dynamic addresses has changed in them.
func (c *Cache) PoolChanged(node string, change ledger.NodeChange) {
	if !change.Appeared && len(change.Subnets) == 0 && !change.Entries && !change.Fixed && change.Freed == 0 {
		return
	}
	keys := slices.Concat(requeue.Keys(metrics.Owner, change.Owners...), requeue.Keys(metrics.Slot, change.Workloads...), requeue.Keys(metrics.Slot, change.Reported...))
	c.Notify(requeue.Event{Node: node, Freed: change.Freed, Subnets: change.Subnets, Keys: keys})
}

// fixedIPChanged notifies the subscribers of a change of a FixedIP. freed contains the home nodes of addresses that the
// FixedIP does not reserve any more.
func (c *Cache) fixedIPChanged(fip *v1alpha1.FixedIP, freed []string) {
	keys := requeue.Keys(metrics.Owner, KeyOf(fip))
	if fip.Spec.AssignedTo == v1alpha1.Slot {
		keys = slices.Concat(keys, requeue.Keys(metrics.Slot, WorkloadOf(fip)...))
	}
	c.Notify(requeue.Event{Keys: keys})
	for _, node := range freed {
		c.Notify(requeue.Event{Node: node, Freed: 1})
	}
}

// KeyOf returns the pod that a FixedIP names, as pool entries name it: "namespace/name".
func KeyOf(fip *v1alpha1.FixedIP) string { return pool.OwnerKey(fip.Namespace, fip.Spec.PodName) }

// slotsOf returns the index function of WorkloadIndex: WorkloadOf for FixedIPs of workloads whose pods have slots, and no
// value for the others. Most FixedIPs belong to StatefulSets, for which nothing reads the index.
func slotsOf(kinds identity.Kinds) client.IndexerFunc {
	return func(obj client.Object) []string {
		gk := identity.OwnerOf(obj.(*v1alpha1.FixedIP)).GroupKind()
		if kind, ok := kinds.Labelled(identity.Label(gk)); !ok || kind.Identity != identity.Slot {
			return nil
		}
		return WorkloadOf(obj)
	}
}

// WorkloadOf returns one value: the workload of a FixedIP, as pool entries name it.
func WorkloadOf(obj client.Object) []string {
	fip := obj.(*v1alpha1.FixedIP)
	o := identity.OwnerOf(fip)
	return []string{identity.Resource(fip.Namespace, o.GroupKind(), o.Name)}
}

// FixedIP returns the FixedIP with the name of a pod; nil if there is none.
func (c *Cache) FixedIP(ctx context.Context, namespace, name string) (*v1alpha1.FixedIP, error) {
	var fip v1alpha1.FixedIP
	err := c.FixedIPs.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &fip)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read FixedIP %s/%s from the cache: %w", namespace, name, err)
	}
	return &fip, nil
}

// FixedIPsOf returns the FixedIPs of a workload whose pods have slots. workload is its name in pool entries.
func (c *Cache) FixedIPsOf(workload string) ([]v1alpha1.FixedIP, error) {
	var list v1alpha1.FixedIPList
	err := c.FixedIPs.List(context.Background(), &list, client.MatchingFields{WorkloadIndex: workload}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the FixedIPs of workload %s from the cache: %w", workload, err)
	}
	return list.Items, nil
}

// newMapper returns a RESTMapper for the kinds CiliumNode and FixedIP. With a RESTMapper that uses discovery, Start would fail
// while the API server is unreachable or a CRD is not installed.
func newMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{ciliumv2.SchemeGroupVersion, v1alpha1.GroupVersion})
	m.Add(ciliumv2.SchemeGroupVersion.WithKind(ciliumv2.CNKindDefinition), meta.RESTScopeRoot)
	m.Add(v1alpha1.GroupVersion.WithKind("FixedIP"), meta.RESTScopeNamespace)
	return m
}

const (
	// syncPoll is the interval at which addSyncOnlyInformer checks whether the cache is ready.
	syncPoll = 100 * time.Millisecond
	// resync is the resync period of the informer of addSyncOnlyInformer, which has no objects. Without a period, tests with
	// testing/synctest hang.
	resync = 24 * time.Hour
)

// addSyncOnlyInformer registers an informer, so that the scheduler waits for the cache as it waits for its own
// informers. Until the cache is ready, the scheduler is not ready (sched-handler-sync of /readyz) and does not compete
// for the lease. A plugin cannot add a check to /readyz, but the factory accepts informers of other clients. This
// informer lists no objects, and its list returns when the cache is ready. It is a real informer, so that every way of
// waiting for informers, including those of later versions of client-go, waits for the cache.
func (c *Cache) addSyncOnlyInformer(f informers.SharedInformerFactory) {
	f.InformerFor(&v1alpha1.FixedIP{}, func(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
				err := wait.PollUntilContextCancel(ctx, syncPoll, true, func(context.Context) (bool, error) { return c.Ready(), nil })
				return &v1alpha1.FixedIPList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents != nil {
					// Refuse to stream the initial list: the informer then sends a list request.
					return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
				}
				return watch.NewFake(), nil
			},
		}, &v1alpha1.FixedIP{}, resync, nil)
	})
}

// followWorkloads starts the watches of workloads, which end with ctx. For StatefulSets and ReplicaSets it uses the
// informers of the scheduler. It returns an error if the scheduler lacks a right for these watches.
func (c *Cache) followWorkloads(ctx context.Context, cfg *restclient.Config, shared informers.SharedInformerFactory) error {
	web, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		return fmt.Errorf("create an HTTP client for workloads: %w", err)
	}
	api, err := dynamic.NewForConfigAndClient(cfg, web)
	if err != nil {
		return fmt.Errorf("create a dynamic client for workloads: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, web)
	if err != nil {
		return fmt.Errorf("create a RESTMapper for workloads: %w", err)
	}
	reviews, err := authorizationclient.NewForConfigAndClient(cfg, web)
	if err != nil {
		return fmt.Errorf("create a client for the rights of the scheduler: %w", err)
	}
	var watched []schema.GroupKind
	var needs []rights.Need
	for _, k := range c.Kinds.All() {
		watched = append(watched, k.GroupKind())
		needs = append(needs, rights.Need{Kind: k.GroupKind(), Verbs: []string{"list", "watch"}, Setting: "workloads"})
	}
	if err := rights.Check(ctx, reviews.SelfSubjectAccessReviews(), mapper, "fixedip-scheduler", needs...); err != nil {
		return err
	}
	c.Workloads = workloads.New(api, mapper, watched...)
	c.Workloads.AddHandler(c.workloadChanged)
	apps := shared.Apps().V1()
	if err := c.Workloads.UseInformer(identity.StatefulSets, apps.StatefulSets().Informer()); err != nil {
		return err
	}
	if c.Kinds.Slots() {
		if err := c.Workloads.UseInformer(identity.ReplicaSets, apps.ReplicaSets().Informer()); err != nil {
			return err
		}
	}
	go func() {
		if err := c.Workloads.Start(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "The watches of workloads ended")
		}
	}()
	return nil
}

// workloadChanged notifies the subscribers if a workload appears, or if a change of the workload affects the addresses that
// its pods request, their opt-out or their failover policy.
func (c *Cache) workloadChanged(before, after *identity.Workload) {
	if after == nil {
		return
	}
	if before == nil || request.Relevant(*before, *after) || before.OptsOut() != after.OptsOut() || failover(before) != failover(after) {
		c.Notify(requeue.Event{Keys: requeue.Keys(metrics.Workload, after.Resource())})
	}
}

// failover returns the failover policy that the annotations of a workload define, or the error text if they are invalid.
func failover(w *identity.Workload) string {
	policy, err := identity.Failover(w.Annotations, w.Template)
	if err != nil {
		return err.Error()
	}
	return string(policy)
}
