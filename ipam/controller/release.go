package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// errSuperseded: what a step was decided from is no longer so.
var errSuperseded = errors.New("the situation has changed meanwhile")

// release takes addresses of an identity from it on one node. The addresses rest in the pool
// under a mark that no pod matches; nodeReconciler removes the mark when they have cooled down.
//
// A restart in place writes nothing, so that a pod of the same name may be bound to the node
// between the look at the API server and the write, counting on the entry. The mark is therefore
// looked at again: if such a pod has come, it gets the entry back. Nobody else can have had the
// address in between.
func (r *recordReconciler) release(ctx context.Context, key types.NamespacedName, s plan.Situation, next plan.Next) error {
	node := next.Node
	// there is a pod, if it is bound to the node.
	there := func(pod *corev1.Pod) *corev1.Pod {
		if pod == nil || pod.Spec.NodeName != node {
			return nil
		}
		return pod
	}
	owner := pool.OwnerKey(key.Namespace, key.Name)
	at := r.clock.Now()
	// taken are the entries as they were, to be put back if need be.
	var taken []pool.Edit
	err := r.writer.Write(ctx, ciliumpool.Request{Node: node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		edits := n.Release(owner, next.Addrs, at)
		if needs(there(s.Pod), edits) {
			return nil, fmt.Errorf("pod %s is bound to node %s: %w", key, node, errSuperseded)
		}
		if len(edits) > 0 {
			// Asked again after a write whose answer was lost, there is nothing left to take.
			taken = edits
		}
		return edits, nil
	}})
	if errors.Is(err, ciliumpool.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release the address of %s on node %s: %w", key, node, err)
	}
	var pod corev1.Pod
	switch err := r.live.Get(ctx, key, &pod); {
	case apierrors.IsNotFound(err), err == nil && !needs(there(&pod), taken):
		klog.FromContext(ctx).Info("Address released", "node", node, "entries", len(taken))
		metrics.Released(causeOf(s), len(taken))
		return nil
	case err != nil:
		return fmt.Errorf("look at pod %s after its address was released on node %s: %w", key, node, err)
	}
	err = r.writer.Write(ctx, ciliumpool.Request{Node: node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		var undo []pool.Edit
		for _, e := range taken {
			if now, ok := n.Entries[e.Addr]; ok && now == *e.To {
				undo = append(undo, n.Set(e.Addr, *e.From))
			}
		}
		return undo, nil
	}})
	if err != nil {
		return fmt.Errorf("give pod %s its address back on node %s: %w", key, node, err)
	}
	return fmt.Errorf("pod %s was bound to node %s meanwhile and has its address back: %w", key, node, errSuperseded)
}

// causeOf is why addresses are taken from an identity.
func causeOf(s plan.Situation) metrics.Cause {
	switch {
	case s.Record == nil:
		return metrics.Unrecorded
	case s.Record.DeletionTimestamp != nil:
		return metrics.Deleted
	}
	return metrics.Beside
}

// depart has the home of addresses say that they are about to leave the node that they are away on.
func (r *recordReconciler) depart(ctx context.Context, key types.NamespacedName, next plan.Next) error {
	err := r.writer.Write(ctx, ciliumpool.Request{Node: next.Node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		return n.Depart(pool.OwnerKey(key.Namespace, key.Name), next.From, next.Addrs)
	}})
	switch {
	case errors.Is(err, pool.ErrUndecided):
		return fmt.Errorf("%w: %w", err, errSuperseded)
	case err != nil && !errors.Is(err, ciliumpool.ErrGone):
		return fmt.Errorf("mark the addresses %v of %s, away on node %s, as leaving it: %w", next.Addrs, key, next.From, err)
	}
	return nil
}

// bar keeps the addresses of an identity from settling on a node that they were moved to.
func (r *recordReconciler) bar(ctx context.Context, key types.NamespacedName, next plan.Next) error {
	owner, at := pool.OwnerKey(key.Namespace, key.Name), r.clock.Now()
	err := r.writer.Write(ctx, ciliumpool.Request{Node: next.Node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		return n.Bar(owner, next.Addrs, at), nil
	}})
	if err != nil && !errors.Is(err, ciliumpool.ErrGone) {
		return fmt.Errorf("bar the addresses %v of %s from node %s: %w", next.Addrs, key, next.Node, err)
	}
	return nil
}

// releaseHome lets addresses rest at home that are away no more.
func (r *recordReconciler) releaseHome(ctx context.Context, key types.NamespacedName, next plan.Next) error {
	owner, at := pool.OwnerKey(key.Namespace, key.Name), r.clock.Now()
	err := r.writer.Write(ctx, ciliumpool.Request{Node: next.Node, Live: true, Whole: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		if n.Generation != next.Generation {
			return nil, fmt.Errorf("CiliumNode %s was written to since: %w", n.Name, errSuperseded)
		}
		return n.Return(owner, next.From, next.Addrs, at), nil
	}})
	if err != nil && !errors.Is(err, ciliumpool.ErrGone) {
		return fmt.Errorf("release the addresses %v of %s, which were away on node %s, at home on node %s: %w", next.Addrs, key, next.From, next.Node, err)
	}
	klog.FromContext(ctx).Info("Address released at home", "node", next.Node, "ips", next.Addrs)
	return nil
}
