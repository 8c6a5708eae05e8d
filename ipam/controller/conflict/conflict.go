// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package conflict reports IPs that more than one pod, FixedIP or pool has, and pods that run with an IP that is reserved
// for another pod. It owns the condition Exclusive of FixedIPs.
//
// It changes nothing else: it cannot know which pod, FixedIP or pool should have the IP, and each of the pods may be
// working.
package conflict

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// gracePeriod is the time for which a conflict must last before it is reported: the watch may show that a pod starts with an
// IP before it shows that the previous pod ended.
const gracePeriod = 5 * time.Second

// ReasonWrongPodAddress is the reason of events about a pod that runs with an IP that is reserved for another pod.
const ReasonWrongPodAddress = "WrongPodAddress"

// reasons contains the event reason of each kind of conflict. Key: the kind. Each kind needs its own reason, and each family
// its own action, because events with the same reason and action on one object are merged into one, with the message of the
// first.
var reasons = map[string]string{
	twoPods:     "AddressInUseTwice",
	twoFixedIPs: "AddressReservedTwice",
	twoPools:    "AddressOfferedTwice",
	wrongPod:    ReasonWrongPodAddress,
}

// Reconciler is the controller "conflict". A request names an IP that is or was in conflict. For any other IP a watch event
// costs only lookups in the indexes of the cache and the ledger.
type Reconciler struct {
	Ledger *ledger.Ledger
	Cached client.Reader
	Live   client.Client
	Events events.EventRecorder
	Clock  clock.Clock
	pools  source.Requests

	mu sync.Mutex
	// known contains the conflicts that were found. Key: the IP. A replica that takes over finds and reports them again.
	known map[netip.Addr]*known
}

// known is the conflict of one IP.
type known struct {
	since time.Time
	// reported contains the messages that were reported; nil: none was reported. Key: the kind of conflict.
	reported map[string]string
}

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("conflict").
		WatchesRawSource(r.pools.Source(nil, func() []ctrl.Request {
			var all []ctrl.Request
			for _, n := range r.Ledger.Nodes() {
				for _, a := range r.Ledger.OfferedTwice(n.Name) {
					all = append(all, source.ForName(a.String()))
				}
			}
			return all
		})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []ctrl.Request {
			pod := obj.(*corev1.Pod)
			if pod.Spec.HostNetwork {
				return nil
			}
			return r.suspicious(ctx, podutil.IPs(pod), false)
		})).
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []ctrl.Request {
			record := obj.(*v1alpha1.FixedIP)
			reported := meta.IsStatusConditionFalse(record.Status.Conditions, v1alpha1.ConditionExclusive)
			return r.suspicious(ctx, address.ParseAll(record.Spec.IPs), reported)
		})).
		WithOptions(source.Workers(1)).
		Complete(r)
}

// PoolChanged queues the IPs that the pool of the node and another pool offer, and all IPs that were reported as offered by
// two pools.
func (r *Reconciler) PoolChanged(node string) {
	for _, a := range r.Ledger.OfferedTwice(node) {
		r.pools.Add(source.ForName(a.String()))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, c := range r.known {
		if _, ok := c.reported[twoPools]; ok {
			r.pools.Add(source.ForName(a.String()))
		}
	}
}

// suspicious returns requests for those of the IPs that are or were in conflict, or for which the pods and FixedIPs
// could not be read. If reported is true, because a condition reports a conflict, it returns requests for all of the
// IPs.
func (r *Reconciler) suspicious(ctx context.Context, ips []netip.Addr, reported bool) []ctrl.Request {
	var requests []ctrl.Request
	for _, a := range ips {
		r.mu.Lock()
		_, known := r.known[a]
		r.mu.Unlock()
		if !reported && !known {
			c, err := r.users(ctx, a)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Failed to list the pods and FixedIPs that have an IP; the IP is checked again", "address", a)
			}
			if err == nil && len(c.conflicts("")) == 0 {
				continue
			}
		}
		requests = append(requests, source.ForName(a.String()))
	}
	return requests
}

// users returns the running pods, the FixedIPs and the pools that have an IP. The objects belong to the cache and must not be
// changed.
func (r *Reconciler) users(ctx context.Context, a netip.Addr) (u addressUsers, err error) {
	u = addressUsers{addr: a, nodes: r.Ledger.Offering(a)}
	if u.pods, err = index.PodsWithIP(ctx, r.Cached, a); err != nil {
		return u, err
	}
	u.pods = slices.DeleteFunc(u.pods, func(p *corev1.Pod) bool { return !podutil.Runs(p) })
	u.records, err = index.FixedIPsWithIP(ctx, r.Cached, a)
	return u, err
}

// Reconcile reports the conflicts of one IP in events when the IP has been in conflict for the grace period. It updates
// the condition Exclusive of the FixedIPs that reserve the IP, also when a conflict has ended.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	a, err := netip.ParseAddr(req.Name)
	if err != nil {
		return ctrl.Result{}, reconcile.TerminalError(fmt.Errorf("parse the IP in the request: %w", err))
	}
	c, err := r.users(ctx, a)
	if err != nil {
		return ctrl.Result{}, err
	}
	found := c.conflicts("")
	reported, left := r.note(a, found)
	if left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	for kind, text := range found {
		if reported[kind] != text {
			klog.FromContext(ctx).Info("Address in conflict", "kind", kind, "what", text)
			r.report(c, kind)
		}
	}
	for _, record := range c.records {
		if err := r.setCondition(ctx, record); err != nil {
			return ctrl.Result{}, err
		}
	}
	if len(found) > 0 {
		return ctrl.Result{RequeueAfter: source.ResyncPeriod}, nil
	}
	return ctrl.Result{}, nil
}

// note stores the conflicts of an IP and returns the messages that were reported before. Key of both maps: the kind of
// conflict. left is the rest of the grace period; while it is positive, nothing is reported.
func (r *Reconciler) note(a netip.Addr, found map[string]string) (reported map[string]string, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.count()
	k := r.known[a]
	if len(found) == 0 {
		delete(r.known, a)
		return nil, 0
	}
	if k == nil {
		if r.known == nil {
			r.known = map[netip.Addr]*known{}
		}
		k = &known{since: r.Clock.Now()}
		r.known[a] = k
	}
	if left = gracePeriod - r.Clock.Since(k.since); left > 0 {
		return nil, left
	}
	reported, k.reported = k.reported, maps.Clone(found)
	return reported, 0
}

// count updates the metric conflicting_addresses. It requires mu.
func (r *Reconciler) count() {
	n := map[string]int{twoPods: 0, twoFixedIPs: 0, twoPools: 0, wrongPod: 0}
	for _, k := range r.known {
		for kind := range k.reported {
			n[kind]++
		}
	}
	for kind, addresses := range n {
		metrics.Conflicts.WithLabelValues(kind).Set(float64(addresses))
	}
}

// report records an event on each pod and FixedIP that has the IP and, if two pools offer the IP, on the CiliumNodes of these
// pools. The message on a pod or FixedIP names no pod and no FixedIP of another namespace. The message about two pools names
// only nodes.
func (r *Reconciler) report(c addressUsers, kind string) {
	var on []client.Object
	for _, p := range c.pods {
		on = append(on, p)
	}
	for _, record := range c.records {
		on = append(on, record)
	}
	if kind == twoPools {
		for _, node := range c.nodes {
			if n, ok := r.Ledger.Node(node); ok {
				on = append(on, ciliumpool.Reference(n))
			}
		}
	}
	for _, o := range on {
		r.Events.Eventf(o, nil, corev1.EventTypeWarning, reasons[kind], "Verify"+address.Of(c.addr).String(), "IP conflict: %s", c.conflicts(o.GetNamespace())[kind])
	}
}

// setCondition writes the condition Exclusive of a FixedIP if the condition has changed. The condition covers all IPs of the
// FixedIP.
func (r *Reconciler) setCondition(ctx context.Context, cached *v1alpha1.FixedIP) error {
	var all []string
	for _, a := range address.ParseAll(cached.Spec.IPs) {
		c, err := r.users(ctx, a)
		if err != nil {
			return err
		}
		all = append(all, slices.Collect(maps.Values(c.conflicts(cached.Namespace)))...)
	}
	condition, differs := conditionOf(cached, all, r.Clock.Now())
	if !differs {
		return nil
	}
	record := cached.DeepCopy()
	meta.SetStatusCondition(&record.Status.Conditions, condition)
	// Update carries the resourceVersion of the cache: if the cache is behind, the write fails and the request is retried.
	if err := r.Live.Status().Update(ctx, record); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write condition %s of FixedIP %s/%s: %w", condition.Type, record.Namespace, record.Name, err)
	}
	return nil
}

// addressUsers contains the pods, FixedIPs and pools that have the same IP.
type addressUsers struct {
	addr netip.Addr
	// pods are the pods that run with the IP.
	pods []*corev1.Pod
	// records are the FixedIPs that reserve the IP.
	records []*v1alpha1.FixedIP
	// nodes are the names of the nodes whose pools offer the IP.
	nodes []string
}

// The kinds of conflicts are also the values of the label kind of the metric.
const (
	twoPods     = "pods"
	twoFixedIPs = "fixedips"
	twoPools    = "pools"
	// wrongPod means that a pod runs with an IP that is reserved for another pod.
	wrongPod = "wrong_pod"
)

// conflicts returns a message for each kind of conflict. Key: the kind. The messages name only pods and FixedIPs of the
// namespace, or all of them if namespace is empty.
func (c addressUsers) conflicts(namespace string) map[string]string {
	redact := func(of, name, neutral string) string {
		if namespace != "" && of != namespace {
			return neutral + " of another namespace"
		}
		return name
	}
	found := map[string]string{}
	var pods, records, wrongPods []string
	for _, p := range c.pods {
		pod := fmt.Sprintf("%s/%s on node %s", p.Namespace, p.Name, p.Spec.NodeName)
		pods = append(pods, redact(p.Namespace, pod, "one"))
		for _, r := range c.records {
			if r.Namespace != p.Namespace || r.Spec.PodName != p.Name {
				reserved := redact(r.Namespace, "pod "+r.Namespace+"/"+r.Spec.PodName, "a pod")
				wrongPods = append(wrongPods, fmt.Sprintf("%s runs with IP %s, which is reserved for %s", redact(p.Namespace, "pod "+pod, "a pod"), c.addr, reserved))
			}
		}
	}
	for _, r := range c.records {
		records = append(records, redact(r.Namespace, r.Namespace+"/"+r.Name, "one"))
	}
	for kind, text := range map[string]struct {
		users  []string
		format string
	}{
		twoPods:     {pods, "more than one pod runs with IP %[2]s: %[1]s; delete all but one (keep the pod for which a FixedIP reserves the IP)"},
		twoFixedIPs: {records, "more than one FixedIP reserves IP %[2]s: %[1]s; delete all but one (keep the FixedIP of the pod that runs with the IP)"},
		twoPools:    {c.nodes, "more than one pool offers IP %[2]s: the pools of nodes %[1]s; remove the entry from all but one (keep it on the node of the pod that runs with the IP)"},
	} {
		if len(text.users) > 1 {
			found[kind] = fmt.Sprintf(text.format, all(text.users), c.addr)
		}
	}
	if len(wrongPods) > 0 {
		found[wrongPod] = all(wrongPods) + "; delete each pod that runs with an IP reserved for another pod, unless a FixedIP reserves the IP for it as well"
	}
	return found
}

func all(texts []string) string { return strings.Join(slices.Sorted(slices.Values(texts)), " and ") }

// conditionOf returns the condition Exclusive that a FixedIP should have for the conflicts of its IPs. ok is false if nothing
// has to be written: the FixedIP has that condition, or it has no condition Exclusive and no conflict.
func conditionOf(r *v1alpha1.FixedIP, conflicts []string, now time.Time) (c metav1.Condition, ok bool) {
	have := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionExclusive)
	c = metav1.Condition{Type: v1alpha1.ConditionExclusive, Status: metav1.ConditionTrue, Reason: "Sole", Message: "No other pod, FixedIP or pool has the IPs of this FixedIP", ObservedGeneration: r.Generation, LastTransitionTime: metav1.NewTime(now)}
	if len(conflicts) > 0 {
		slices.Sort(conflicts)
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Shared", strings.Join(conflicts, "; and ")
	}
	if have == nil {
		return c, len(conflicts) > 0
	}
	return c, have.Status != c.Status || len(conflicts) > 0 && have.Message != c.Message
}
