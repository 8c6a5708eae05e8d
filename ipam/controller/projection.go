package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// places looks up what stands at the homes of the addresses of a record, as the caches show it. The
// write tests what was seen of the pool.
func (r *recordReconciler) places(ctx context.Context, record *v1alpha1.FixedIP) ([]plan.Place, error) {
	if record == nil || record.DeletionTimestamp != nil {
		return nil, nil
	}
	owner := pool.OwnerKey(record.Namespace, record.Spec.PodName)
	var places []plan.Place
	for _, kept := range plan.Keeps(record) {
		p := plan.Place{Addr: kept.Addr}
		if home, ok := r.ledger.Home(kept.Addr); ok {
			p.Home = home
			n, _ := r.ledger.Node(home)
			if e, exists := n.Entries[kept.Addr]; exists {
				p.Entry = &e
			}
			if user, used := n.Used[kept.Addr]; used && user != owner {
				p.User = user
				if user == "" {
					p.User = "(unknown)"
				}
			}
			other, err := r.otherPod(ctx, home, kept.Addr, owner)
			if err != nil {
				return nil, err
			}
			if other != "" {
				p.User = other
			}
		}
		rival, err := r.rival(ctx, record, kept.Addr)
		if err != nil {
			return nil, err
		}
		p.Rival = rival
		places = append(places, p)
	}
	return places, nil
}

// otherPod is another pod on the node that has the address; empty where there is none.
func (r *recordReconciler) otherPod(ctx context.Context, node string, a netip.Addr, owner string) (string, error) {
	pods, err := index.PodsWithIP(ctx, r.cached, a)
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		if key := pool.OwnerKey(p.Namespace, p.Name); key != owner && p.Spec.NodeName == node {
			return key, nil
		}
	}
	return "", nil
}

// rival is another FixedIP that names the address and comes before the record; empty where there is
// none.
func (r *recordReconciler) rival(ctx context.Context, record *v1alpha1.FixedIP, a netip.Addr) (string, error) {
	holders, err := index.FixedIPsWithIP(ctx, r.cached, a)
	if err != nil {
		return "", err
	}
	holds := func(f *v1alpha1.FixedIP) bool {
		return slices.ContainsFunc(r.ledger.Held(pool.OwnerKey(f.Namespace, f.Spec.PodName)), func(h ledger.Holding) bool { return slices.Contains(h.Addrs, a) })
	}
	for _, other := range holders {
		if client.ObjectKeyFromObject(other) != client.ObjectKeyFromObject(record) && plan.Precedes(other, record, holds) {
			return client.ObjectKeyFromObject(other).String(), nil
		}
	}
	return "", nil
}

// homecoming asks for the identities whose addresses are at home on a node that has come or has other
// subnets, and that no pool holds: now they can be projected. At the start all are asked for anyway.
func (r *recordReconciler) homecoming(node string) []reconcile.Request {
	n, ok := r.ledger.Node(node)
	if !ok || r.poolsSeen == nil || !r.poolsSeen() || len(n.Subnets) == 0 {
		return nil
	}
	var requests []reconcile.Request
	for _, k := range r.ledger.KeepingsIn(n.Subnets...) {
		if slices.ContainsFunc(k.Addrs, func(a netip.Addr) bool { return n.Home(a) && n.Entries[a].Owner != k.Owner }) {
			requests = append(requests, source.Request(k.Record)...)
		}
	}
	return requests
}

// project writes the entries of recorded addresses into the pool of their home. What is in the way
// by then is found again by the next decision, which tells it.
func (r *recordReconciler) project(ctx context.Context, s plan.Situation, next plan.Next) error {
	entry := plan.EntryOf(s.Record)
	own := func(a netip.Addr) bool { return plan.RunsOn(s.Pod, next.Node, a) }
	err := r.writer.Write(ctx, ciliumpool.Request{Node: next.Node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		return plan.Project(n, next.Addrs, entry, own, r.clock.Now())
	}})
	switch {
	case errors.Is(err, pool.ErrTaken), errors.Is(err, ciliumpool.ErrGone):
		return fmt.Errorf("write the entries of %v on node %s: %w: %w", next.Addrs, next.Node, errSuperseded, err)
	case err != nil:
		return fmt.Errorf("write the entries of %v on node %s: %w", next.Addrs, next.Node, err)
	}
	klog.FromContext(ctx).Info("Entries projected", "ips", next.Addrs, "node", next.Node)
	r.events.Eventf(s.Record, nil, corev1.EventTypeNormal, "Projected", "ProjectEntries", "Address %v has its entry in the pool of node %s", next.Addrs, next.Node)
	return nil
}

// tellObstacles makes an event of each condition that has come to be not as it should be.
func (r *recordReconciler) tellObstacles(record *v1alpha1.FixedIP, after []metav1.Condition) {
	now := meta.FindStatusCondition(after, v1alpha1.ConditionProjected)
	before := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionProjected)
	if now != nil && now.Status == metav1.ConditionFalse && (before == nil || before.Reason != now.Reason) {
		r.events.Eventf(record, nil, corev1.EventTypeWarning, "NotProjected", "ProjectEntries", "%s", now.Message)
	}
}
