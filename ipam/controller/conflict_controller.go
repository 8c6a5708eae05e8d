// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/podutil"
)

// conflictLasts is how long a conflict has to last before it is told: a pod may be seen to start
// with an address before the end of the one that had it is seen.
const conflictLasts = 5 * time.Second

// conflictReasons are the reasons of events. Key: the kind of the conflict. Each has its own, since
// events of one reason on one object are counted as one, with the text of the first.
var conflictReasons = map[string]string{
	plan.ConflictPods:     "AddressInUseTwice",
	plan.ConflictRecords:  "AddressKeptTwice",
	plan.ConflictPools:    "AddressOfferedTwice",
	plan.ConflictStranger: "AddressOfAnother",
}

// conflictReconciler owns the condition Conflict of FixedIPs. A request names an address, and is made
// only for one that more than one seems to have, hold or offer: ordinary pods and pools cost a look
// into an index.
//
// It only tells. Which of two is right is nothing that could be found out, and both may be at work.
type conflictReconciler struct {
	ledger *ledger.Ledger
	cached client.Reader
	live   client.Client
	events events.EventRecorder
	clock  clock.Clock
	pools  *source.Feed

	mu sync.Mutex
	// known are the addresses in conflict. A replica that takes over finds them again, and tells
	// them once more.
	known map[netip.Addr]*conflict
}

// conflict is what was seen of one address.
type conflict struct {
	since time.Time
	// told are the texts that were told. Key: the kind.
	told map[string]string
}

func newConflictReconciler(l *ledger.Ledger, mgr manager.Manager, live client.Client) *conflictReconciler {
	return &conflictReconciler{
		ledger: l, cached: mgr.GetClient(), live: live, events: mgr.GetEventRecorder("fixedip-controller"), clock: clock.RealClock{},
		pools: &source.Feed{}, known: map[netip.Addr]*conflict{},
	}
}

func addressRequest(a netip.Addr) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: a.String()}}
}

func (r *conflictReconciler) setup(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).
		Named("conflict").
		WatchesRawSource(r.pools.Source(nil, func() []reconcile.Request {
			var all []reconcile.Request
			for _, n := range r.ledger.Nodes() {
				for _, a := range r.ledger.OfferedTwice(n.Name) {
					all = append(all, addressRequest(a))
				}
			}
			return all
		})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			pod := obj.(*corev1.Pod)
			if pod.Spec.HostNetwork {
				return nil
			}
			var ips []string
			for _, ip := range pod.Status.PodIPs {
				ips = append(ips, ip.IP)
			}
			return r.suspicious(ctx, ips, false)
		})).
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			record := obj.(*v1alpha1.FixedIP)
			told := meta.IsStatusConditionTrue(record.Status.Conditions, v1alpha1.ConditionConflict)
			return r.suspicious(ctx, record.Spec.IPs, told)
		})).
		WithOptions(source.Workers(1)).
		Complete(r)
}

// poolChanged asks for the addresses of a node's pool that another pool offers too, and for those
// that were found to be so.
func (r *conflictReconciler) poolChanged(node string) {
	for _, a := range r.ledger.OfferedTwice(node) {
		r.pools.Add(addressRequest(a))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, c := range r.known {
		if _, ok := c.told[plan.ConflictPools]; ok {
			r.pools.Add(addressRequest(a))
		}
	}
}

// suspicious are the requests for those of the addresses that somebody else claims too, or that were
// found to be in conflict.
func (r *conflictReconciler) suspicious(ctx context.Context, ips []string, told bool) []reconcile.Request {
	var requests []reconcile.Request
	for _, ip := range ips {
		a, err := address.Parse(ip)
		if err != nil {
			continue
		}
		r.mu.Lock()
		_, known := r.known[a]
		r.mu.Unlock()
		if !told && !known {
			c, err := r.claimants(ctx, a)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Claimants of an address not listed", "address", a)
			}
			if err == nil && len(c.Conflicts()) == 0 {
				continue
			}
		}
		requests = append(requests, addressRequest(a))
	}
	return requests
}

// claimants are all that the caches know to have, hold or offer an address. The pods and records
// are the caches' own: they are only read.
func (r *conflictReconciler) claimants(ctx context.Context, a netip.Addr) (plan.Claimants, error) {
	c := plan.Claimants{Addr: a}
	var err error
	if c.Pods, err = runningWith(ctx, r.cached, a, types.NamespacedName{}); err != nil {
		return c, err
	}
	c.Records, err = index.FixedIPsWithIP(ctx, r.cached, a)
	return c, err
}

// runningWith are the pods that run with an address, but one.
func runningWith(ctx context.Context, cached client.Reader, a netip.Addr, but types.NamespacedName) ([]*corev1.Pod, error) {
	pods, err := index.PodsWithIP(ctx, cached, a)
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !podutil.Runs(p) || client.ObjectKeyFromObject(p) == but }), err
}

// Reconcile tells what is wrong about one address, or that nothing is any more.
func (r *conflictReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	a, err := netip.ParseAddr(req.Name)
	if err != nil {
		return reconcile.Result{}, reconcile.TerminalError(fmt.Errorf("address %q: %w", req.Name, err))
	}
	c, found, err := r.conflicts(ctx, a)
	if err != nil {
		return reconcile.Result{}, err
	}
	told, left := r.note(a, found)
	if left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	for kind, text := range found {
		if told[kind] != text {
			klog.FromContext(ctx).Info("Address in conflict", "kind", kind, "what", text)
			r.tell(c, kind)
		}
	}
	for _, record := range c.Records {
		if err := r.mark(ctx, record); err != nil {
			return reconcile.Result{}, err
		}
	}
	if len(found) > 0 {
		return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
	}
	return reconcile.Result{}, nil
}

func (r *conflictReconciler) conflicts(ctx context.Context, a netip.Addr) (plan.Claimants, map[string]string, error) {
	c, err := r.claimants(ctx, a)
	if err != nil {
		return c, nil, err
	}
	c.Nodes = r.ledger.Offering(a)
	return c, c.Conflicts(), nil
}

// note keeps what was found about an address, and returns what was told of it before. left is how
// long it still has to last before it is told.
func (r *conflictReconciler) note(a netip.Addr, found map[string]string) (told map[string]string, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.count()
	k := r.known[a]
	if len(found) == 0 {
		delete(r.known, a)
		return nil, 0
	}
	if k == nil {
		k = &conflict{since: r.clock.Now()}
		r.known[a] = k
	}
	if left = conflictLasts - r.clock.Since(k.since); left > 0 {
		return nil, left
	}
	told, k.told = k.told, maps.Clone(found)
	return told, 0
}

// count brings the metric up to date. It needs mu.
func (r *conflictReconciler) count() {
	n := map[string]int{plan.ConflictPods: 0, plan.ConflictRecords: 0, plan.ConflictPools: 0, plan.ConflictStranger: 0}
	for _, k := range r.known {
		for kind := range k.told {
			n[kind]++
		}
	}
	metrics.Conflicting(n)
}

// tell says it on all objects that it concerns, to each in the words for those who see it.
func (r *conflictReconciler) tell(c plan.Claimants, kind string) {
	var on []client.Object
	for _, p := range c.Pods {
		on = append(on, p)
	}
	for _, record := range c.Records {
		on = append(on, record)
	}
	if kind == plan.ConflictPools {
		for _, node := range c.Nodes {
			if n, ok := r.ledger.Node(node); ok {
				on = append(on, &ciliumv2.CiliumNode{
					TypeMeta:   metav1.TypeMeta{APIVersion: ciliumv2.SchemeGroupVersion.String(), Kind: ciliumv2.CNKindDefinition},
					ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: types.UID(n.UID), ResourceVersion: n.ResourceVersion},
				})
			}
		}
	}
	for _, o := range on {
		text := c.Conflicts()[kind]
		if o.GetNamespace() != "" {
			text = c.ConflictsFor(o.GetNamespace())[kind]
		}
		r.events.Eventf(o, nil, corev1.EventTypeWarning, conflictReasons[kind], "Verify", "Duplicate address: %s", text)
	}
}

// mark writes the condition of a record, which speaks of all its addresses.
func (r *conflictReconciler) mark(ctx context.Context, cached *v1alpha1.FixedIP) error {
	var all []string
	for _, ip := range cached.Spec.IPs {
		a, err := address.Parse(ip)
		if err != nil {
			continue
		}
		c, _, err := r.conflicts(ctx, a)
		if err != nil {
			return err
		}
		all = append(all, slices.Collect(maps.Values(c.ConflictsFor(cached.Namespace)))...)
	}
	if _, differs := plan.ConflictCondition(cached, all, r.clock.Now()); !differs {
		return nil
	}
	var record v1alpha1.FixedIP
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(cached), &record); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read FixedIP %s/%s: %w", cached.Namespace, cached.Name, err)
	}
	condition, differs := plan.ConflictCondition(&record, all, r.clock.Now())
	if !differs {
		return nil
	}
	record.Status.Conditions = plan.WithCondition(record.Status.Conditions, condition)
	if err := r.live.Status().Update(ctx, &record); err != nil {
		return fmt.Errorf("write condition %s of FixedIP %s/%s: %w", condition.Type, record.Namespace, record.Name, err)
	}
	return nil
}
