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

// release puts the addresses of an identity on one node into their cooldown. nodeReconciler removes the cooldown
// entries when they are due. It returns errSuperseded if the pod is bound to the node, or was bound to it during the
// write; then it has its entries again.
func (r *recordReconciler) release(ctx context.Context, key types.NamespacedName, s plan.Situation, next plan.Next) error {
	node, owner, at := next.Node, pool.OwnerKey(key.Namespace, key.Name), r.clock.Now()
	onNode := func(pod *corev1.Pod) *corev1.Pod {
		if pod == nil || pod.Spec.NodeName != node {
			return nil
		}
		return pod
	}
	released, err := r.writer.Apply(ctx, ciliumpool.Change{
		Request: ciliumpool.Request{Node: node, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
			edits := n.Release(owner, next.Addrs, at)
			if needs(onNode(s.Pod), edits) {
				return nil, fmt.Errorf("pod %s is bound to node %s: %w", key, node, errSuperseded)
			}
			return edits, nil
		}},
		Confirm: func(ctx context.Context, written []pool.Edit) ([]pool.Edit, error) {
			var pod corev1.Pod
			switch err := r.live.Get(ctx, key, &pod); {
			case apierrors.IsNotFound(err):
				return nil, nil
			case err != nil:
				return nil, fmt.Errorf("read pod %s: %w", key, err)
			case needs(onNode(&pod), written):
				return written, nil
			}
			return nil, nil
		},
	})
	switch {
	case errors.Is(err, ciliumpool.ErrGone):
		return nil
	case errors.Is(err, ciliumpool.ErrUndone):
		return fmt.Errorf("pod %s was bound to node %s during the release and keeps its address: %w: %w", key, node, errSuperseded, err)
	case err != nil:
		return fmt.Errorf("release the address of %s on node %s: %w", key, node, err)
	}
	klog.FromContext(ctx).Info("Address released", "node", node, "entries", len(released))
	metrics.Released(causeOf(s), len(released))
	return nil
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
