package controller

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/subnets"
)

// CacheOptions trims what the controller watches to the fields that it uses.
func CacheOptions(cfg Config) cache.Options {
	trimPod := trimPod
	if cfg.Adoption.Labels() {
		trimPod = trimPodButLabels
	}
	o := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&ciliumv2.CiliumNode{}: {Transform: ciliumpool.Trim},
			&corev1.Node{}:         {Transform: trimNode},
			&corev1.Pod{}:          {Transform: trimPod},
		},
	}
	if cfg.Verify.Endpoints {
		o.ByObject[&ciliumv2.CiliumEndpoint{}] = cache.ByObject{Transform: trimEndpoint}
	}
	return o
}

// trimPod keeps of a pod what identity.Of and plan read.
func trimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Pod{
		TypeMeta:   pod.TypeMeta,
		ObjectMeta: trimMeta(pod.ObjectMeta),
		Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs, HostIP: pod.Status.HostIP, StartTime: pod.Status.StartTime},
	}
	if pod.Spec.NodeName == "" && identity.Place(pod) != "" {
		trimmed.Spec.Affinity = pod.Spec.Affinity
	}
	return trimmed, nil
}

// trimNode keeps of a Node what its subnets and its pool depend on.
func trimNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Node{TypeMeta: node.TypeMeta, ObjectMeta: trimMeta(node.ObjectMeta)}
	trimmed.CreationTimestamp, trimmed.Labels, trimmed.Annotations = node.CreationTimestamp, node.Labels, nil
	trimmed.Spec.PodCIDRs, trimmed.Spec.Unschedulable = node.Spec.PodCIDRs, node.Spec.Unschedulable
	if pods, ok := node.Status.Allocatable[corev1.ResourcePods]; ok {
		trimmed.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: pods}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return trimmed, nil
}

// trimPodButLabels is trimPod where labels of pods are looked at.
func trimPodButLabels(obj any) (any, error) {
	trimmed, err := trimPod(obj)
	if pod, ok := obj.(*corev1.Pod); ok {
		trimmed.(*corev1.Pod).Labels = pod.Labels
	}
	return trimmed, err
}

func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         m.Namespace,
		Name:              m.Name,
		UID:               m.UID,
		ResourceVersion:   m.ResourceVersion,
		Generation:        m.Generation,
		CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp,
		Annotations:       m.Annotations,
		OwnerReferences:   m.OwnerReferences,
	}
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
	live, err := liveClient(mgr)
	if err != nil {
		return err
	}
	watched, err := watchAll(ctx, mgr, cfg)
	if err != nil {
		return err
	}
	kinds := identity.NewKinds(cfg.Workloads...)
	workloads, err := newWorkloads(mgr, kinds)
	if err != nil {
		return err
	}
	// Other kinds may not be installed yet, which nothing waits for.
	watched["statefulsets"] = func() bool { return workloads.Synced(identity.StatefulSets) }
	l := ledger.New()
	pools := ciliumpool.New(live)
	if cfg.StripManagedFields {
		pools.Untrack()
	}
	writer := ciliumpool.NewWriter(ctx, pools, l.Node)
	writer.Observe(metrics.PoolWrites{})
	writer.Pace(ciliumpool.NewPace(clock.RealClock{}, cfg.WritesPerMinute))
	nodes, identities, leaving, orphans, slots := &feed{}, &feed{}, &feed{}, &feed{}, &feed{}
	r := &recordReconciler{
		ledger: l,
		writer: writer,
		cached: mgr.GetClient(),
		live:   live,

		kinds:     kinds,
		workloads: workloads,

		events: mgr.GetEventRecorder("fixedip-controller"),
		clock:  clock.RealClock{},

		leaving:  leaving,
		underway: &underway{owners: map[string]bool{}},
		deadline: cfg.FinalizerDeadline,
		failover: cfg.Failover,
	}
	c := newConflictReconciler(l, mgr, live)
	verified := &feed{}
	// The ledger is behind its watch.
	watched["ciliumnodes"], err = ciliumpool.Follow(ctx, mgr.GetCache(), l, func(node string, change ledger.Change) {
		nodes.add(nodeRequest(node))
		if change.Moved {
			orphans.add(allSubnets)
		}
		if change.Appeared || change.Moved {
			identities.add(r.homecoming(ctx, node)...)
		}
		for _, owner := range change.Owners {
			identities.add(identityRequest(owner)...)
			verified.add(identityRequest(owner)...)
		}
		for _, resource := range change.Workloads {
			slots.add(slotRequest(kinds, resource)...)
		}
		c.poolChanged(node)
	})
	if err != nil {
		return err
	}
	watched["fixedips"], err = fixedips.Follow(ctx, mgr.GetCache(), l, func(record *v1alpha1.FixedIP, freed []string) {
		for _, node := range freed {
			nodes.add(nodeRequest(node))
		}
		// What is kept may be in the way of a pool, or a pool's dynamic entry in its way.
		for _, ip := range record.Spec.IPs {
			if a, err := address.Parse(ip); err == nil {
				if home, ok := l.Home(a); ok {
					nodes.add(nodeRequest(home))
				}
			}
		}
	})
	if err != nil {
		return err
	}
	metrics.Register(metrics.World{
		Ledger:       l,
		ClusterPools: cfg.ClusterPools,
		Records:      eachRecord(mgr.GetClient()),
		Synced:       watched.synced,
	})
	s := &subnetReconciler{
		ledger: l,
		allocator: subnets.NewAllocator(subnets.Options{
			API: live, Cached: mgr.GetClient(), Pools: pools, Writer: writer, Ledger: l,
			Rules: cfg.subnetRules(), Namespace: cfg.Namespace, Clock: clock.RealClock{},
		}),
		cached: mgr.GetClient(),
		live:   live,
		events: mgr.GetEventRecorder("fixedip-controller"),
		clock:  clock.RealClock{},
		cfg:    cfg,
		synced: func() bool { return watched["ciliumnodes"]() && watched["fixedips"]() },
	}
	if err := s.setup(mgr, orphans); err != nil {
		return fmt.Errorf("set up the controller of subnets: %w", err)
	}
	n := &nodeReconciler{
		ledger:      l,
		writer:      writer,
		subnets:     s,
		cached:      mgr.GetClient(),
		live:        live,
		events:      mgr.GetEventRecorder("fixedip-controller"),
		clock:       clock.RealClock{},
		cfg:         cfg,
		kinds:       kinds,
		untracked:   map[string]string{},
		recordsSeen: watched["fixedips"],
	}
	if err := n.setup(ctx, mgr, nodes); err != nil {
		return fmt.Errorf("set up the controller of pools: %w", err)
	}
	workloads.Tell(func(before, after *identity.Workload) {
		w := cmp.Or(after, before)
		if requests := slotRequest(kinds, w.Resource()); len(requests) > 0 {
			slots.add(requests...)
			return
		}
		identities.add(r.ofWorkload(ctx, *w)...)
	})
	r.poolsSeen = watched["ciliumnodes"]
	if err := r.setup(ctx, mgr, identities); err != nil {
		return fmt.Errorf("set up the controller of records: %w", err)
	}
	a := &adoptReconciler{
		ledger:   l,
		writer:   writer,
		cached:   mgr.GetClient(),
		live:     live,
		events:   mgr.GetEventRecorder("fixedip-controller"),
		adoption: cfg.Adoption,
		failover: cfg.Failover,
		kinds:    kinds,
	}
	if err := a.setup(mgr); err != nil {
		return fmt.Errorf("set up the controller that adopts pods: %w", err)
	}
	if err := (&slotReconciler{r}).setup(mgr, slots); err != nil {
		return fmt.Errorf("set up the controller of slots: %w", err)
	}
	if err := c.setup(ctx, mgr); err != nil {
		return fmt.Errorf("set up the controller of conflicts: %w", err)
	}
	if cfg.Verify.Endpoints {
		if err := newEndpointReconciler(l, mgr, live, cfg.Verify).setup(ctx, mgr); err != nil {
			return fmt.Errorf("set up the keeper of CiliumEndpoints: %w", err)
		}
	}
	if err := newVerifyReconciler(l, writer, workloads, mgr, live, cfg.Verify).setup(mgr, verified); err != nil {
		return fmt.Errorf("set up the controller that verifies: %w", err)
	}
	back := &releaseReconciler{
		writer:    writer,
		live:      live,
		events:    r.events,
		clock:     r.clock,
		cached:    r.cached,
		situation: r.situation,
		absences:  &absences{clock: r.clock, seen: map[absence]time.Time{}},
		owners:    l.OwnersOn,
		underway:  r.underway,
		done:      identities,
		deadline:  cfg.FinalizerDeadline,
	}
	if err := back.setup(mgr, leaving, l, r.poolsSeen); err != nil {
		return fmt.Errorf("set up the controller of releases: %w", err)
	}
	return nil
}

// eachRecord visits the FixedIPs of a cache. Before the cache is filled there are none.
func eachRecord(cached client.Reader) func(visit func(*v1alpha1.FixedIP)) {
	return func(visit func(*v1alpha1.FixedIP)) {
		var all v1alpha1.FixedIPList
		if err := cached.List(context.Background(), &all, client.UnsafeDisableDeepCopy); err != nil {
			return
		}
		for i := range all.Items {
			visit(&all.Items[i])
		}
	}
}

// feed hands what the ledger learns to the queue of a controller. It is the controller's source
// for CiliumNodes: the ledger has each change before the controller is told.
type feed struct {
	mu sync.Mutex
	// queue is nil until the controller starts, which is when this replica leads.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func (f *feed) add(requests ...reconcile.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queue == nil {
		return
	}
	for _, r := range requests {
		f.queue.Add(r)
	}
}

// addAfter hands a request to the queue after a while; one that waits there already keeps its time.
func (f *feed) addAfter(d time.Duration, r reconcile.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queue != nil {
		f.queue.AddAfter(r, d)
	}
}

// source starts the feed with all that the ledger knows by then, once it is ready; nil: it is.
func (f *feed) source(ready toolscache.InformerSynced, all func() []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if ready != nil && !toolscache.WaitForCacheSync(ctx.Done(), ready) {
			return fmt.Errorf("stopped before all that stood had been seen: %w", context.Cause(ctx))
		}
		f.mu.Lock()
		f.queue = queue
		f.mu.Unlock()
		f.add(all()...)
		return nil
	})
}
