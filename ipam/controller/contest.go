package controller

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

// contests are those of what an identity holds that another pod has, or may come to have (see plan.Contest).
//
// An address that was for anybody, and that its pod came to keep, an agent that has not seen that gives to another pod
// once the first has gone. It has seen it after some time, and said after as much again whom it gave the address meanwhile;
// both begin anew on a node that is heard of again. Of an entry that does not say since when it is its owner's nothing is
// known but what the agent lists: a person wrote it.
func (r *recordReconciler) contests(ctx context.Context, owner string, held []ledger.Holding) ([]plan.Contest, error) {
	var found []plan.Contest
	for _, h := range held {
		n, ok := r.ledger.Node(h.Node)
		if !ok {
			continue
		}
		for _, a := range h.Addrs {
			if user := n.Used[a]; user != "" && user != owner {
				found = append(found, plan.Contest{Addr: a, User: user, Why: fmt.Sprintf("the agent of node %s lists %s as used by %s, which had it before the agent knew whose it is; it is waited for until that pod is gone", h.Node, a, pool.Told(user, owner))})
				continue
			}
			why, err := r.unheard(ctx, h.Node, a)
			if err != nil {
				return nil, err
			}
			if why != "" {
				found = append(found, plan.Contest{Addr: a, Why: why})
			}
		}
	}
	return found, nil
}

// tellContested says why addresses of an identity do not go back: on its record, and on the pods that have them, which
// whoever made them may have to delete.
func (r *recordReconciler) tellContested(ctx context.Context, owner string, s plan.Situation, why string) error {
	if s.Record != nil {
		r.events.Eventf(s.Record, nil, corev1.EventTypeWarning, "ReleaseWaits", "ReleaseEntries", "Its address does not go back yet: %s", why)
	}
	for _, c := range s.Contested {
		namespace, name, ok := pool.SplitOwnerKey(c.User)
		if !ok {
			continue
		}
		var pod corev1.Pod
		if err := r.cached.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &pod); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read pod %s: %w", c.User, err)
		} else if err == nil {
			r.events.Eventf(&pod, nil, corev1.EventTypeWarning, conflictReasons[plan.ConflictStranger], "Verify",
				"Runs with %s, which is kept for %s and can't go back before this pod is gone; delete it", c.Addr, pool.Told(owner, c.User))
		}
	}
	return nil
}

// unheard says why the agent of a node may give an address away that is kept for a pod; empty: it does not.
func (r *recordReconciler) unheard(ctx context.Context, name string, a netip.Addr) (why string, err error) {
	since, unheard := r.ledger.Unheard(name, []netip.Addr{a})
	if !unheard || since.IsZero() {
		return "", nil
	}
	node, err := index.Node(ctx, r.cached, name)
	if node == nil || err != nil {
		return "", err
	}
	ready, ok := nodeutil.ReadySince(node)
	if !ok {
		return fmt.Sprintf("node %s is not heard of, and its agent may not know whose %s is; it is waited for until it is back, or deleted", name, a), nil
	}
	if ready.After(since) {
		since = ready
	}
	at := since.Add(2 * r.silence)
	if !r.clock.Now().Before(at) {
		return "", nil
	}
	return fmt.Sprintf("the agent of node %s has not reported since %s, which was for anybody, was given to this pod, and may have given it to another; it is waited for until %s at the latest", name, a, at.UTC().Format(time.RFC3339)), nil
}
