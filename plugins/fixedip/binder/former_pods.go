// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// A pod that is gone from the API may still run: it was deleted by force, or its node does not answer. And an agent that
// has not seen an entry may give its address to another pod. The binder does not judge any of that. It reads what the
// controller has published: entries that the agent has acknowledged, and in the status of a FixedIP that a slot is
// vacated, or that its addresses may move.

// usedByOthers refuses a pod while another pod may have the addresses that the pool of a node gives to it. Nil: none.
func (b *Binder) usedByOthers(pod *corev1.Pod, node string, addrs []netip.Addr) *Refusal {
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	wake := requeue.On(metrics.Owner, owner).And(metrics.Node, node)
	for _, other := range b.podsOn(node) {
		if len(other.Status.PodIPs) > 0 && !has(other, addrs) || other.Spec.HostNetwork || other.UID == pod.UID {
			continue
		}
		// The scheduler's snapshot may be behind the event that woke the pod.
		now, err := b.Pods.Pods(other.Namespace).Get(other.Name)
		if err != nil || now.UID == pod.UID || podutil.IsTerminal(now) || !has(now, addrs) {
			continue
		}
		user := pool.OwnerKey(now.Namespace, now.Name)
		return refuse(wake.And(metrics.Owner, user), "IP %s on node %s is still in use by %s, to which an agent assigned it before it had seen the reservation; the pod is placed when that pod is gone",
			address.Join(addrs), node, pool.RedactOwner(user, owner))
	}
	n, _ := b.Cache.Ledger.Node(node)
	for _, a := range addrs {
		if user := n.Used[a]; user != "" && user != owner {
			return refuse(wake, "the agent of node %s lists IP %s as used by %s; the pod is placed when that has ended", node, a, pool.RedactOwner(user, owner))
		}
	}
	if err := acknowledged(n, addrs); err != nil {
		return &Refusal{WakeOn: wake, Reason: err.Error()}
	}
	return nil
}

// errUnacknowledged: an agent may not know yet whose an address is.
var errUnacknowledged = errors.New("the agent may be behind")

// acknowledged returns an errUnacknowledged if the agent of the node may not know yet whose the addresses are.
func acknowledged(n pool.NodePool, addrs []netip.Addr) error {
	for _, a := range addrs {
		if n.Entries[a].Unacknowledged() {
			return fmt.Errorf("%w: the controller waits for the Cilium agent on node %s to confirm that no other pod has IP %s; the pod is placed then", errUnacknowledged, n.Name, a)
		}
	}
	return nil
}

func has(pod *corev1.Pod, addrs []netip.Addr) bool {
	return slices.ContainsFunc(podutil.IPs(pod), func(a netip.Addr) bool { return slices.Contains(addrs, a) })
}

// isDown reports whether a node runs nothing: it was deleted (nil), or an administrator says so with the taint
// out-of-service.
func isDown(node *corev1.Node) bool {
	return node == nil || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// orNil returns nil for an object that does not exist, without an error.
func orNil[T any](obj *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return obj, err
}

// formerPod says why the former pod of the name may still run with the addresses of the reservation, on its node; empty:
// it does not. moves tells that the addresses go to another node, which the controller has to allow.
func (b *Binder) formerPod(p *Plan, node *corev1.Node, moves bool) string {
	r := &p.reservation
	n, known := b.Cache.Ledger.Node(r.node)
	// The former pod did not run with addresses that were only on their way there, unless they were released there from
	// it.
	wereUsed := !r.moving || slices.ContainsFunc(r.addrs, func(a netip.Addr) bool { return n.Entries[a].CoolsDownFrom(p.id.Key()) })
	used := slices.IndexFunc(r.addrs, n.InUse)
	switch {
	case isDown(node), !wereUsed && !moves:
		return ""
	case !nodeutil.IsReady(node):
		return fmt.Sprintf("node %s is not ready; delete the node or taint it %s", r.node, corev1.TaintNodeOutOfService)
	case !wereUsed:
		return ""
	case !known:
		return fmt.Sprintf("node %s has no CiliumNode that says what it uses", r.node)
	case used >= 0:
		return fmt.Sprintf("the agent on node %s still lists %s as used", r.node, r.addrs[used])
	case moves && r.movableFor != p.uid:
		return fmt.Sprintf("the controller waits for the agent on node %s to confirm that nothing uses %s", r.node, address.Join(r.addrs))
	}
	return ""
}

// mayLeave asks the API server for the node that addresses are about to leave. down is true if nothing runs there,
// whatever its agent reported last.
func (b *Binder) mayLeave(ctx context.Context, p *Plan) (down bool, err error) {
	node, err := orNil(b.Client.CoreV1().Nodes().Get(ctx, p.reservation.node, metav1.GetOptions{}))
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", p.reservation.node, err)
	}
	if why := b.formerPod(p, node, true); why != "" {
		return false, fmt.Errorf("%s: %w", why, pool.ErrUnfenced)
	}
	return isDown(node), nil
}

// lives reports whether a pod exists, and whether it is being deleted. Pods that have ended do not exist: the
// scheduler's watch leaves them out.
func (b *Binder) lives(owner string) (lives, leaves bool) {
	namespace, name, ok := pool.SplitOwnerKey(owner)
	if !ok {
		return true, false
	}
	pod, err := orNil(b.Pods.Pods(namespace).Get(name))
	leaves = err == nil && pod != nil && pod.DeletionTimestamp != nil
	return err != nil || pod != nil && !leaves, leaves
}

// formerGone returns an error unless the API server says that the former pod of a slot is gone or has ended: another
// scheduler may have claimed the slot for a pod that the watch does not show yet.
func (b *Binder) formerGone(ctx context.Context, owner string) error {
	namespace, name, ok := pool.SplitOwnerKey(owner)
	if !ok {
		return fmt.Errorf("%q is no pod", owner)
	}
	pod, err := orNil(b.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}))
	switch {
	case err != nil:
		return fmt.Errorf("read pod %s, which had the address before: %w", owner, err)
	case pod == nil || podutil.IsTerminal(pod):
		return nil
	}
	return fmt.Errorf("pod %s exists and has the address: %w", owner, pool.ErrTaken)
}
