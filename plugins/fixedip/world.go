// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"fmt"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	restclient "k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

func loggerFrom(ctx context.Context) klog.Logger {
	return klog.FromContext(ctx).WithName(Name)
}

// world is what the plugin knows: the pools of all nodes and what FixedIPs keep, in the ledger, and
// the FixedIPs themselves. It is
// the one view that decisions are made from and that wakes waiting pods: a second watch, such as
// the framework's own for custom resources, could wake a pod before the decision can see why
// (kubernetes/kubernetes#73305, #133872).
type world struct {
	ledger   *ledger.Ledger
	pools    *ciliumpool.Writer
	stored   *ciliumpool.Pools
	live     *live
	fixedIPs client.Reader
	// kinds are those whose pods may have fixed addresses, and workloads the objects of these kinds.
	kinds     identity.Kinds
	workloads *workloads.Store
	// seekers are the pods that look for a free slot, and departures how the holders of slots went.
	seekers    seekers
	departures departures
	overtaken  overtaken
	// synced tells whether all that stood at the start has been seen. Key: the plural name of the
	// resource.
	synced map[string]toolscache.InformerSynced

	mu sync.Mutex
	// shown are waits for the next version of a node's pool. Key: the node. Value: a channel that
	// is closed when it comes. A key exists while somebody waits.
	shown map[string]chan struct{}
	// subscribers are told of every change, one a profile.
	subscribers []*waiting
}

// newWorld starts the watches; they end with ctx. It does not wait for them: an API server that
// can't be reached must not keep the scheduler from starting. The scheduler waits where it waits for
// its own (see joinSync), and whoever runs the plugin otherwise has PreFilter refuse the pods.
func newWorld(ctx context.Context, base *restclient.Config, args *config.FixedIPArgs, newCache cache.NewCacheFunc) (*world, error) {
	cfg := restclient.CopyConfig(base)
	// The scheduler's own configuration speaks protobuf, which custom resources do not.
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, ""
	cfg.QPS, cfg.Burst = args.ClaimQPS, int(args.ClaimBurst)
	cfg.RateLimiter = nil
	restclient.AddUserAgent(cfg, "fixedip-scheduler")
	kinds, err := scheme.New()
	if err != nil {
		return nil, err
	}
	api, err := client.New(cfg, client.Options{Scheme: kinds, Mapper: newMapper()})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	watches, err := newCache(cfg, cache.Options{
		Scheme: kinds,
		Mapper: newMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&ciliumv2.CiliumNode{}: {Transform: ciliumpool.Trim},
			&v1alpha1.FixedIP{}:    {Transform: cache.TransformStripManagedFields()},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a cache: %w", err)
	}
	w := &world{
		ledger:   ledger.New(),
		fixedIPs: watches,
		kinds:    identity.NewKinds(args.Workloads...),
		shown:    map[string]chan struct{}{},
	}
	w.departures.begin(time.Now(), args.AgentSilence.Duration)
	w.stored = ciliumpool.New(api)
	w.live = newLive(ctx, w.stored.Get)
	w.pools = ciliumpool.NewWriter(ctx, w.stored, w.ledger.Node)
	w.pools.Observe(metrics.PoolWrites{})
	if w.workloads, err = newWorkloads(cfg, w.kinds); err != nil {
		return nil, err
	}
	if err := watches.IndexField(ctx, &v1alpha1.FixedIP{}, workloadIndex, workloadOf); err != nil {
		return nil, fmt.Errorf("index FixedIPs by workload: %w", err)
	}
	if err := w.watch(ctx, watches); err != nil {
		return nil, err
	}
	go func() {
		if err := watches.Start(ctx); err != nil {
			loggerFrom(ctx).Error(err, "The watches of CiliumNodes and FixedIPs have ended")
		}
	}()
	return w, nil
}

func (w *world) watch(ctx context.Context, watches cache.Cache) error {
	pools, err := ciliumpool.Follow(ctx, watches, w.ledger, w.announce)
	if err != nil {
		return err
	}
	records, err := fixedips.Follow(ctx, watches, w.ledger, w.recordChanged)
	if err != nil {
		return err
	}
	w.synced = map[string]toolscache.InformerSynced{"ciliumnodes": pools, "fixedips": records}
	return nil
}

// deleted is the object of a delete event, also where the watch missed the event itself.
func deleted[T any](obj any) T {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	return obj.(T)
}

// ready tells whether all that stood when the scheduler started has been seen.
func (w *world) ready() bool {
	for _, synced := range w.synced {
		if !synced() {
			return false
		}
	}
	return true
}

func (w *world) subscribe(s *waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscribers = append(w.subscribers, s)
}

// recordChanged tells of a FixedIP, and of the room on the nodes where it keeps an address no more.
func (w *world) recordChanged(fip *v1alpha1.FixedIP, freed []string) {
	n := news{owners: []string{keyOf(fip)}}
	if fip.Spec.Slot {
		n.workload = workloadOf(fip)[0]
	}
	w.tell(n)
	for _, node := range freed {
		w.tell(news{node: node, room: true})
	}
}

func (w *world) announce(node string, change ledger.Change) {
	w.mu.Lock()
	if ch, ok := w.shown[node]; ok {
		close(ch)
		delete(w.shown, node)
	}
	w.mu.Unlock()
	w.tell(news{node: node, room: change.Grew || change.Appeared || change.Moved, owners: change.Owners})
}

func (w *world) tell(n news) {
	w.mu.Lock()
	subscribers := w.subscribers
	w.mu.Unlock()
	for _, s := range subscribers {
		s.hear(n)
	}
}

// await returns when the pools give all addresses of the claim to its pod, as the plugin's own
// watch shows them.
func (w *world) await(ctx context.Context, c ledger.Claim) error {
	for {
		w.mu.Lock()
		next, ok := w.shown[c.Node]
		if !ok {
			next = make(chan struct{})
			w.shown[c.Node] = next
		}
		w.mu.Unlock()
		if w.ledger.Stands(c) {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("the claim is written, but the watch of CiliumNode %s has not shown it: %w", c.Node, context.Cause(ctx))
		}
	}
}

// fixedIP is the record of a pod's reservation, nil where there is none.
func (w *world) fixedIP(ctx context.Context, namespace, name string) (*v1alpha1.FixedIP, error) {
	var fip v1alpha1.FixedIP
	err := w.fixedIPs.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &fip)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read FixedIP %s/%s from the cache: %w", namespace, name, err)
	}
	return &fip, nil
}
