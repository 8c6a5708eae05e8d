package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// podIPIndex finds the pods that have an address, by "node/address".
const podIPIndex = "nodeAndPodIP"

// nodeReconciler owns the dynamic and the released entries of every pool. Owned entries belong to the
// scheduler and to recordReconciler, subnets to subnetReconciler.
type nodeReconciler struct {
	ledger  *ledger.Ledger
	writer  *ciliumpool.Writer
	subnets *subnetReconciler
	cached  client.Reader
	events  events.EventRecorder
	clock   clock.Clock
	cfg     Config
	// recordsSeen tells whether the ledger knows what all FixedIPs keep: before that nothing may be
	// filled.
	recordsSeen toolscache.InformerSynced
}

func nodeRequest(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

func (r *nodeReconciler) setup(ctx context.Context, mgr manager.Manager, nodes *feed) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podIPIndex, func(obj client.Object) []string {
		pod := obj.(*corev1.Pod)
		var keys []string
		for _, ip := range pod.Status.PodIPs {
			if !pod.Spec.HostNetwork {
				keys = append(keys, pod.Spec.NodeName+"/"+ip.IP)
			}
		}
		return keys
	})
	if err != nil {
		return fmt.Errorf("index pods by address: %w", err)
	}
	return builder.ControllerManagedBy(mgr).
		Named("pool").
		WatchesRawSource(nodes.source(r.recordsSeen, func() []reconcile.Request {
			var all []reconcile.Request
			for _, n := range r.ledger.Nodes() {
				all = append(all, nodeRequest(n.Name))
			}
			return all
		})).
		// A released address may be had again when the pod that has it is gone.
		Watches(&corev1.Pod{}, handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if pod := e.Object.(*corev1.Pod); pod.Spec.NodeName != "" {
				q.Add(nodeRequest(pod.Spec.NodeName))
			}
		}}).
		// What a node brings or is labelled with may be what its subnets depend on.
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(nodeChanged)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Complete(r)
}

// Reconcile brings the pool of one node up to date, with one write at most.
func (r *nodeReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	n, ok := r.ledger.Node(req.Name)
	if !ok {
		return reconcile.Result{}, nil
	}
	if len(n.Malformed) > 0 {
		r.warn(n, "MalformedPool", "ReadPool", "Entries that are not addresses or subnets are left alone: %s", strings.Join(n.Malformed, ", "))
	}
	var retry time.Duration
	if r.subnets.lacks(ctx, n) {
		result, done, err := r.subnets.assign(ctx, n, r.fill)
		if done || err != nil {
			return result, err
		}
		retry = result.RequeueAfter
	}
	if len(n.PodCIDRs) == 0 {
		return reconcile.Result{RequeueAfter: retry}, nil
	}
	if other, disputed := r.ledger.Disputed(n.Name); disputed {
		r.subnets.warn(ctx, n.Name, "SubnetOverlap", "FillPool", "Subnets %v overlap those of node %s; nothing in them is handed out until one of the two is changed", n.PodCIDRs, other)
		return reconcile.Result{}, nil
	}
	decide := func(n pool.Node) ([]pool.Edit, error) {
		edits, _ := plan.Rested(n, r.clock.Now(), r.cfg.CoolDown, r.podHas(ctx, n.Name))
		return append(edits, r.fill(n.With(edits))...), nil
	}
	// What the ledger shows is looked at first: nothing to do is the rule.
	if edits, _ := decide(n); len(edits) > 0 {
		err := r.writer.Write(ctx, ciliumpool.Request{Node: n.Name, Decide: decide})
		switch {
		case errors.Is(err, ciliumpool.ErrGone):
			return reconcile.Result{}, nil
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("bring the pool of node %s up to date: %w", n.Name, err)
		}
		klog.FromContext(ctx).V(2).Info("Pool brought up to date", "edits", len(edits))
		n = n.With(edits)
	}
	for _, f := range address.Families {
		if _, short := plan.Fill(n, f, r.cfg.Watermark, r.ledger.Kept); short > 0 && n.HasFamily(f) {
			r.warn(n, "SubnetFull", "FillPool", "The pool lacks %d free %s addresses and subnets %v have none left", short, f, n.PodCIDRs)
		}
	}
	_, next := plan.Rested(n, r.clock.Now(), r.cfg.CoolDown, r.podHas(ctx, n.Name))
	if !next.IsZero() {
		rested := max(time.Second, next.Sub(r.clock.Now()))
		if retry == 0 || rested < retry {
			retry = rested
		}
	}
	return reconcile.Result{RequeueAfter: retry}, nil
}

// fill makes the dynamic entries that a pool lacks, in each family that the node has.
func (r *nodeReconciler) fill(n pool.Node) []pool.Edit {
	var edits []pool.Edit
	for _, f := range address.Families {
		if !n.HasFamily(f) {
			continue
		}
		added, _ := plan.Fill(n, f, r.cfg.Watermark, r.ledger.Kept)
		edits = append(edits, added...)
	}
	return edits
}

// podHas tells whether a pod on the node has an address, as far as the cache of pods goes. It
// covers the time that the agent's word is late.
func (r *nodeReconciler) podHas(ctx context.Context, node string) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		var pods corev1.PodList
		err := r.cached.List(ctx, &pods, client.MatchingFields{podIPIndex: node + "/" + a.String()}, client.UnsafeDisableDeepCopy)
		return err != nil || len(pods.Items) > 0
	}
}

func (r *nodeReconciler) warn(n pool.Node, reason, action, note string, args ...any) {
	r.events.Eventf(ciliumNode(n), nil, corev1.EventTypeWarning, reason, action, note, args...)
}

// ciliumNode is what events about a node's pool are shown on.
func ciliumNode(n pool.Node) client.Object {
	return &ciliumv2.CiliumNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: ciliumv2.SchemeGroupVersion.String(), Kind: ciliumv2.CNKindDefinition},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: types.UID(n.UID), ResourceVersion: n.ResourceVersion},
	}
}
