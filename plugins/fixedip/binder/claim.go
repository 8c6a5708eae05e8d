// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// LostError is the error of Bind in these cases:
//   - The addresses that were chosen for the pod are not available any more, or may be in use.
//   - A pool has entries for the pod's name that were not planned.
//   - The migration of the addresses cannot continue, for example because a pool lacks the entry that the next step requires.
//   - The pod was replaced, or bound to a node, while its addresses were being moved.
//   - The addresses have moved to the node, and the controller has not recorded the move yet.
//   - The addresses have returned to their home node, and the pod needs an additional address there.
//
// The next cycle decides again.
type LostError struct{ Reason string }

func (e *LostError) Error() string { return e.Reason }

// Assume counts a claim of addresses for the pod on the node, in the ledger only. After a claim, the pod no longer searches for
// a slot. Assume makes no claim for an unreserved pod if the pod uses the host network or the node is not strict. The error is
// a *Refusal.
func (b *Binder) Assume(p *Plan, pod *corev1.Pod, node string) error {
	owner, r := p.id.Key(), p.reservation
	claim := ledger.ClaimRequest{Claim: ledger.Claim{Owner: owner, Node: node}, Families: b.families}
	if p.Unreserved {
		if p.exempt || !b.onStrictNode(node) {
			return nil
		}
		claim.Unreserved = true
	} else if refusal := b.claimedElsewhere(p, node); refusal != nil {
		return refusal
	}
	wake, claims := b.wakeOnFreeAddress(p), []ledger.ClaimRequest{claim}
	switch c := &claims[0]; {
	case p.searching:
		claims = nil
		for _, f := range p.slots {
			if f.node == node {
				claim.Addrs, claim.From = f.addrs, f.from
				claims = append(claims, claim)
			}
		}
	case p.moves(node):
		wake = p.wakeOn()
		c.Addrs, c.Carry = r.addrs, true
	case r.onlyInFixedIP && r.node == node:
		wake = p.wakeOn()
		c.Addrs = r.addrs
	case r.node == node && !b.atHome(node, r.addrs):
		// The addresses were moved to the node. The pod gets no additional address there; see fitsAwayFromHome.
		wake = p.wakeOn()
		c.Addrs, c.Carry = r.addrs, true
	default:
		c.Requested, c.Reassign = p.requested.Addresses, p.failover == v1alpha1.Reassign && r.node != node
	}
	err := errors.New("none of the slots is free")
	for _, c := range claims {
		if _, err = b.Cache.Ledger.Assume(pod.UID, c); err == nil {
			b.slots.remove(pod.UID)
			return nil
		}
	}
	// The scheduler writes the number of nodes before the reason: "1 node(s) ...".
	return refuse(wake.And(metrics.Node, node), "node(s) couldn't give the pod an address: %v", err)
}

// claimedElsewhere returns a Refusal if the pod has got an address on another node since the plan and has none on this node,
// or if a claim for another pod of its name is in flight on another node; nil otherwise.
func (b *Binder) claimedElsewhere(p *Plan, node string) *Refusal {
	owner := p.id.Key()
	if len(b.Cache.Ledger.HeldOn(owner, node)) == 0 {
		// With another claim on this node, the pod would have addresses on two nodes.
		if h, ok := b.newEntries(owner, p.reservation.nodesWithEntries); ok {
			return refuse(p.wakeOn(), "node(s) had no entry for the pod in their pools, but the pool of node %s has got one for %s in the meantime; the pod is tried again", h.Node, ipText(h.Addrs))
		}
	}
	// A claim on another node may be taking the address from this node. Forget notifies the pod when that claim has ended.
	if at, ok := b.Cache.Ledger.ClaimedOnOtherNode(p.uid, owner, node); ok {
		return refuse(p.wakeOn(), "node(s) can't take the pod while an address is being claimed on node %s for another pod of its name; the pod is tried again when that claim has ended", at)
	}
	return nil
}

// newEntries returns a node that is not in known and whose pool has entries of the pod owner, with the addresses of
// these entries. It returns false if there is no such node.
func (b *Binder) newEntries(owner string, known []string) (ledger.NodeAddresses, bool) {
	for _, h := range b.Cache.Ledger.Held(owner) {
		if !slices.Contains(known, h.Node) {
			return h, true
		}
	}
	return ledger.NodeAddresses{}, false
}

// Forget drops the claim that Assume made for a pod, and notifies the pods that may use the address or the slot of the
// claim. An entry that was written stays in the pool: a bind that returned an error may have succeeded, and the pod
// needs its entry then. Forget may be called at any time, and does no I/O.
func (b *Binder) Forget(pod *corev1.Pod) {
	claim, claimed := b.Cache.Ledger.Claimed(pod.UID)
	if !claimed {
		return
	}
	// The next pod of the name may wait for the end of this claim.
	e := requeue.Event{Keys: requeue.Keys(metrics.Owner, claim.Owner)}
	if node, grew := b.Cache.Ledger.Forget(pod.UID); grew {
		e.Node, e.Freed = node, 1
	}
	if claim.From != "" {
		e.Keys = append(e.Keys, requeue.Keys(metrics.Slot, b.Cache.Ledger.EntryOf(ledger.NodeAddresses{Node: claim.Node, Addrs: claim.Addrs}).Workload())...)
	}
	b.Cache.Notify(e)
}

// Claimed reports whether Bind would have nothing to do. That is the case if the pod needs no claim. It is also the case if
// all of these are true: the pool of the node already has the claimed entries, the claim needs no check (see certain), and
// the pod requests no MAC address. For a pod that opted out, Claimed returns false, because Bind reads the pool of the node.
//
// If Claimed returns true because the entries exist, it counts the claim in the metric as existing: Bind is not called then.
func (b *Binder) Claimed(p *Plan, pod *corev1.Pod) bool {
	claim, claimed := b.Cache.Ledger.Claimed(pod.UID)
	switch {
	case p.optedOut:
		return false
	case !claimed:
		return p.Unreserved
	}
	if wanted, err := identity.WantsMAC(pod); wanted || err != nil {
		return false
	}
	if b.Cache.Ledger.IsClaimed(claim) && p.certain() {
		metrics.ClaimEnded(metrics.Existing, 0)
		return true
	}
	return false
}

// certain reports whether a claim that the cache shows in the pool needs no check at the API server. The claim of a pod
// with a fixed address needs the check until the FixedIP with the name of the pod names its addresses. Until then the
// controller may have replaced the entries, because the former pod of the name ran with other addresses, and a late watch
// may not show the new entries yet. The FixedIP of a slot has another name, so the claim of a slot always needs the check.
func (p *Plan) certain() bool { return p.Unreserved || p.reservation.recorded }

// Bind writes the claim into the node's pool, or moves the addresses to the node, and writes the MAC address into a pod that
// requests one. The error is a *LostError if the pod has to be tried again.
func (b *Binder) Bind(ctx context.Context, p *Plan, pod *corev1.Pod, node string) error {
	if err := b.confirmOptedOut(ctx, p, pod, node); err != nil {
		return err
	}
	claim, ok := b.Cache.Ledger.Claimed(pod.UID)
	switch {
	case !ok && p.Unreserved:
		return nil
	case !ok:
		return fmt.Errorf("pod %s/%s has no claim in flight for an address on node %s", pod.Namespace, pod.Name, node)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.claimTimeout, fmt.Errorf("not done within claimTimeout %v", b.claimTimeout))
	defer cancel()
	existed, began := b.Cache.Ledger.IsClaimed(claim), time.Now()
	err := b.bind(ctx, p, pod, claim)
	switch result := resultOf(ctx, err); {
	case p.moves(node):
		// b.bind has counted the migration.
	case existed && err == nil:
		metrics.ClaimEnded(metrics.Existing, 0)
	default:
		metrics.ClaimEnded(result, time.Since(began))
	}
	switch {
	case errors.Is(err, pool.ErrTaken), errors.Is(err, pool.ErrOldPodRunning), errors.Is(err, pool.ErrUndecided):
		return &LostError{"the pod did not get the address that was chosen for it: " + err.Error() + "; the pod is tried again"}
	case errors.As(err, new(*LostError)):
		return err
	case err != nil:
		return fmt.Errorf("claim %s on node %s for pod %s/%s: %w", addressText(claim.Addrs), node, pod.Namespace, pod.Name, err)
	}
	if p.moves(node) && !p.reservation.recordedOn(node) {
		return &LostError{fmt.Sprintf("its %s %s moved to node %s; the pod is tried again there when the controller has recorded that node in the FixedIP of the pod", addressText(claim.Addrs), verb(claim.Addrs, "has", "have"), node)}
	}
	klog.FromContext(ctx).V(2).Info("Address claimed", "pod", klog.KObj(pod), "node", node, "ips", claim.Addrs)
	if p.Unreserved {
		return nil
	}
	return b.setMAC(ctx, pod, p.id, claim.Addrs)
}

func (b *Binder) bind(ctx context.Context, p *Plan, pod *corev1.Pod, claim ledger.Claim) error {
	if claim.From != "" && claim.From != claim.Owner {
		if err := b.formerGone(ctx, claim.From); err != nil {
			return err
		}
	}
	if p.moves(claim.Node) {
		err := b.migrate(ctx, pod, p, claim)
		result := metrics.Migrated
		if err != nil {
			result = resultOf(ctx, err)
		}
		metrics.MigrationEnded(result)
		if missing := b.missing(claim.Addrs); err == nil && len(missing) > 0 && b.atHome(claim.Node, claim.Addrs) {
			return &LostError{fmt.Sprintf("its %s returned to home node %s; the pod is tried again there, with an additional address of family %s", addressText(claim.Addrs), claim.Node, address.JoinFamilies(missing))}
		}
		return err
	}
	if err := b.claim(ctx, p, claim); err != nil || p.Unreserved {
		return err
	}
	// An administrator or another fixedip-scheduler may have written an entry on another node since the plan. Both
	// entries stay, and the next cycle chooses one of them.
	if h, ok := b.newEntries(claim.Owner, append(slices.Clone(p.reservation.nodesWithEntries), claim.Node)); ok {
		return pool.ErrOnOtherNode(claim.Owner, h.Node, h.Addrs)
	}
	return nil
}

// claim writes a claim into the pool of its node. If the cache shows the entries of the claim there already, claim writes
// nothing, and checks the entries at the API server unless the claim is certain.
func (b *Binder) claim(ctx context.Context, p *Plan, c ledger.Claim) error {
	// planned is read before the pool, because each read of the pool updates the cache.
	exists, planned := b.Cache.Ledger.IsClaimed(c), b.Cache.Ledger.HeldOn(c.Owner, c.Node)
	if exists && p.certain() {
		return nil
	}
	return b.Cache.Writer.Write(ctx, ciliumpool.WriteRequest{
		Node: c.Node,
		Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			switch {
			case p.Unreserved:
				// If another pod has taken the address meanwhile, any other address will do.
				return b.Cache.Ledger.ClaimUnreserved(n, c, pool.UnreservedEntry(p.id.Namespace, p.id.PodName))
			case exists:
				return nil, n.CheckBinding(c.Owner, planned)
			case c.From != "":
				return n.TakeOver(c.Addrs, c.From, p.id.Entry())
			}
			return n.Claim(c.Addrs, p.id.Entry())
		},
		// TakeOver and CheckBinding depend on the addresses in use, which the cache may show late.
		FromAPIServer: c.From != "" || exists,
		// The decision requires that no other entry names the pod. A JSON patch cannot test that, so the patch tests
		// metadata.generation, which grows with every change of the spec.
		RequireUnchangedSpec: true,
	})
}

// resultOf returns the result of a claim or migration that returned err. ctx has the deadline of the claim.
func resultOf(ctx context.Context, err error) metrics.Result {
	switch {
	case err == nil:
		return metrics.Written
	case errors.Is(err, pool.ErrOldPodRunning):
		return metrics.OldPodRunning
	case errors.Is(err, pool.ErrTaken), errors.Is(err, pool.ErrUndecided):
		return metrics.Conflict
	case errors.Is(err, ciliumpool.ErrGone):
		return metrics.NodeGone
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return metrics.TimedOut
	default:
		return metrics.Failed
	}
}

// setMAC writes the MAC address of the identity into the annotations of a pod that requests one. The annotation has to
// be there before the pod is bound, because the agent reads the annotation when it creates the interface. (The Binding
// could carry the annotation, Cilium fact 25, but only a Bind plugin creates the Binding.)
func (b *Binder) setMAC(ctx context.Context, pod *corev1.Pod, id identity.Identity, addrs []netip.Addr) error {
	wanted, err := identity.WantsMAC(pod)
	if err != nil || !wanted {
		return err
	}
	mac := id.MAC(addrs)
	// Encoding maps of strings cannot fail.
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{
		// The UID in a patch is a precondition: a later pod of the name is not patched.
		"uid":         pod.UID,
		"annotations": map[string]string{identity.AnnotationCiliumMAC: mac.String()},
	}})
	_, err = b.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("pod %s/%s has the annotation %s, but fixedip-scheduler may not patch pods: set the value stickyMAC of the chart to true, or remove the annotation: %w", pod.Namespace, pod.Name, identity.AnnotationStickyMAC, err)
	}
	if err != nil {
		return fmt.Errorf("write the MAC address %s to pod %s/%s: %w", mac, pod.Namespace, pod.Name, err)
	}
	return nil
}
