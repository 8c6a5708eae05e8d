// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	reserved "fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// reservation describes where the addresses of an identity are. The zero value means that the identity has no reservation:
// the pod is placed for the first time.
type reservation struct {
	node  string
	addrs []netip.Addr
	// onlyInFixedIP is true if the addresses are in the FixedIP and in no pool, so that exactly these have to be claimed.
	onlyInFixedIP bool
	// moving is true if a migration to the node was interrupted: the pool of the home node has moved entries that name
	// the node, and the pool of the node does not have the addresses yet.
	moving bool
	// nodesWithEntries contains the nodes whose pools gave the identity an address when the reservation was read.
	// Several nodes may have entries, for example if a scheduler died after a claim or during a migration.
	nodesWithEntries []string
	// unexpected contains addresses in the pool of the node that the FixedIP does not name, although the FixedIP names
	// another address of the same family. If the pool has both, the agent would choose one of them at random.
	unexpected []netip.Addr
	// recorded is true if the FixedIP names all of the addresses, and the UID of the pod's workload or, for a bare pod, that
	// of the pod. It is false for a slot.
	recorded bool
	// lost is the deleted node that had the addresses, if no node has their subnet now and another node will inherit it;
	// empty otherwise.
	lost string
	// hasFixedIP is true if a FixedIP has the name of the pod. It is false for a slot. failover is the policy of the
	// FixedIP, and recordedNode the node that it names.
	hasFixedIP   bool
	failover     v1alpha1.Failover
	recordedNode string
	// movableFor is the UID of the pod that may take the addresses to another node: see v1alpha1.FixedIPStatus.
	movableFor types.UID
}

// recordedOn reports whether the FixedIP names the node, or hasFixedIP is false.
func (r *reservation) recordedOn(node string) bool { return !r.hasFixedIP || r.recordedNode == node }

func (r *reservation) hasEntries(node string) bool { return slices.Contains(r.nodesWithEntries, node) }

// reservationOf returns the reservation of an identity. Pool entries take precedence over the FixedIP: the pool of the home
// node decides about an address, and a claim may have no FixedIP yet. The error may be a *Refusal.
func (b *Binder) reservationOf(ctx context.Context, id identity.Identity) (reservation, error) {
	fip, err := b.Cache.FixedIP(ctx, id.Namespace, id.PodName)
	if err != nil {
		return reservation{}, err
	}
	if fip != nil && (id.Slot || fip.Spec.AssignedTo == v1alpha1.Slot) {
		// The FixedIP of a slot is found through its workload, not by the name of a pod.
		fip = nil
	}
	wake := requeue.On(metrics.Owner, id.Key())
	held := b.Cache.Ledger.Held(id.Key())
	for _, h := range held {
		if kind, name, ok := b.Cache.Ledger.EntryOf(h).WorkloadRef(); ok && (kind != id.Owner.Label() || name != id.Owner.Name) {
			them := verb(h.Addrs, "it", "them")
			other, help := "belongs to "+kind+" "+name, fmt.Sprintf("; to release %[1]s now, delete the FixedIP that reserves %[1]s, if no other pod needs %[1]s", them)
			if kind == pool.UnreservedKind {
				other, help = "has no fixed address", ""
			}
			return reservation{}, refuse(wake, "%s on node %s %s reserved for a pod of the same name that %s, but the pod %s; the pod is placed when the reservation is released%s",
				ipText(h.Addrs), h.Node, verb(h.Addrs, "is", "are"), other, workloadText(id.Owner), help)
		}
	}
	moved := b.Cache.Ledger.Moved(id.Key())
	if fip == nil {
		return b.fromPools(held, moved, "", nil), nil
	}
	if fip.DeletionTimestamp != nil {
		return reservation{}, refuse(wake, "FixedIP %s of the pod (%s) is being deleted; the pod gets a new address when that FixedIP is gone", fip.Name, specIPs(fip))
	}
	if o := identity.OwnerOf(fip); o.GroupKind() != id.Owner.GroupKind() || o.Name != id.Owner.Name {
		return reservation{}, refuse(wake, "FixedIP %s (%s) is for a pod that %s, but the pod %s; delete that FixedIP if no other pod needs it", fip.Name, specIPs(fip), workloadText(o), workloadText(id.Owner))
	}
	var r reservation
	if len(held)+len(moved) > 0 {
		r = b.fromPools(held, moved, fip.Spec.NodeName, fip.Spec.IPs)
		r.unexpected = address.Additional(r.addrs, fip.Spec.IPs)
	} else if b.isOrphaned(fip) {
		r = reservation{lost: fip.Spec.NodeName, addrs: address.ParseAll(fip.Spec.IPs)}
	} else if r, err = b.fromFixedIP(fip); err != nil {
		return reservation{}, err
	}
	r.recorded = len(r.addrs) > 0 && fip.Spec.Owner.UID == id.Owner.UID && containsAll(address.ParseAll(fip.Spec.IPs), r.addrs)
	r.hasFixedIP, r.failover, r.recordedNode, r.movableFor = true, fip.Spec.Failover, fip.Spec.NodeName, fip.Status.MovableFor
	return r, nil
}

// fromPools returns the reservation on one of the nodes whose pools have addresses of an identity, or to which such
// addresses were migrated; the zero value if there is none. There may be several such nodes, for example if a scheduler
// died between claim and bind, or during a migration. These criteria decide, the most important first: the node has all
// addresses of the FixedIP (ips), addresses were migrated to the node, the FixedIP names the node (preferred), the entry on
// the node names no workload, so that a user may have written it. Among equals, the first node is chosen.
func (b *Binder) fromPools(held []ledger.NodeAddresses, moved []ledger.RemoteAddresses, preferred string, ips []string) reservation {
	var choice []reservation
	var nodesWithEntries, byHand []string
	for _, h := range held {
		choice = append(choice, reservation{node: h.Node, addrs: h.Addrs})
		nodesWithEntries = append(nodesWithEntries, h.Node)
		if _, _, claimed := b.Cache.Ledger.EntryOf(h).WorkloadRef(); !claimed {
			byHand = append(byHand, h.Node)
		}
	}
	for _, a := range moved {
		if !slices.ContainsFunc(choice, func(r reservation) bool { return r.node == a.At && containsAll(r.addrs, a.Addrs) }) {
			choice = append(choice, reservation{node: a.At, addrs: a.Addrs, moving: true})
		}
	}
	weight := func(r reservation) (sum int) {
		for i, counts := range []bool{
			slices.Contains(byHand, r.node),
			r.node == preferred,
			slices.ContainsFunc(moved, func(a ledger.RemoteAddresses) bool { return a.At == r.node }),
			len(ips) > 0 && containsAll(r.addrs, address.ParseAll(ips)),
		} {
			if counts {
				sum += 1 << i
			}
		}
		return sum
	}
	if len(choice) == 0 {
		return reservation{}
	}
	chosen := slices.MaxFunc(choice, func(x, y reservation) int { return weight(x) - weight(y) })
	chosen.nodesWithEntries = nodesWithEntries
	return chosen
}

// fromFixedIP returns the reservation of a FixedIP whose addresses are in no pool. Its node is the home of the addresses.
// The error is a *Refusal.
func (b *Binder) fromFixedIP(fip *v1alpha1.FixedIP) (reservation, error) {
	r := reservation{onlyInFixedIP: true}
	wake := requeue.On(metrics.Owner, cache.KeyOf(fip)).AndHome(address.ParseAll(fip.Spec.IPs)...)
	for _, ip := range fip.Spec.IPs {
		a, err := address.Parse(ip)
		if err != nil {
			return reservation{}, refuse(wake, "spec.ips of FixedIP %s is invalid: %v; delete that FixedIP, and create it again with valid IPs if the pod needs them", fip.Name, err)
		}
		home, ok := b.Cache.Ledger.Home(a)
		if !ok {
			if blocker := b.Cache.Ledger.Blocker(pool.OwnerKey(fip.Namespace, fip.Spec.PodName), a); blocker != nil && blocker.Reason == pool.SubnetOverlap {
				// The overlap may end with a change of a subnet that does not contain the address.
				return reservation{}, refuse(wake.AndAnySubnet(), "the address of FixedIP %s is not available: %s", fip.Name, blocker.Message())
			}
			was := ""
			if fip.Spec.NodeName != "" {
				was = ", and was on node " + fip.Spec.NodeName
			}
			return reservation{}, refuse(wake, "address %s of FixedIP %s is in no node's subnet%s; the pod waits until a node has a subnet that contains the address", a, fip.Name, was)
		}
		if r.node != "" && r.node != home {
			return reservation{}, refuse(wake, "addresses %s of FixedIP %s are in the subnets of two nodes, %s and %s; delete that FixedIP and request addresses of one node", strings.Join(fip.Spec.IPs, ", "), fip.Name, r.node, home)
		}
		r.node, r.addrs = home, append(r.addrs, a)
	}
	return r, nil
}

// isOrphaned reports whether no node has the addresses of a FixedIP in its subnets, and another node will inherit the
// subnet.
func (b *Binder) isOrphaned(fip *v1alpha1.FixedIP) bool {
	return reserved.InheritancePending(fip) && fip.Spec.NodeName != "" &&
		!slices.ContainsFunc(address.ParseAll(fip.Spec.IPs), func(a netip.Addr) bool { return len(b.Cache.Ledger.HomesOf(a)) > 0 })
}

// specIPs returns the text for spec.ips of a FixedIP in messages.
func specIPs(fip *v1alpha1.FixedIP) string {
	if len(fip.Spec.IPs) == 0 {
		return "no IPs"
	}
	return strings.Join(fip.Spec.IPs, ", ")
}

// workloadText returns the text for the owner of a pod in messages, as the end of a sentence about the pod.
func workloadText(o identity.Owner) string {
	if o.IsPod() {
		return "has no workload"
	}
	return "belongs to " + o.Label() + " " + o.Name
}

func containsAll(addrs, wanted []netip.Addr) bool {
	return !slices.ContainsFunc(wanted, func(a netip.Addr) bool { return !slices.Contains(addrs, a) })
}

// A pod that no longer exists in the API may still run: it may have been deleted by force, or its node may not respond. The
// controller judges whether such a pod has stopped. The binder reads the result from the status of the FixedIP: vacatedBy
// for a slot, movableFor for addresses that may move to another node.

// usedByOthers returns a Refusal if another pod may use one of the addresses that the pool of a node gives to the pod; nil
// otherwise.
func (b *Binder) usedByOthers(pod *corev1.Pod, node string, addrs []netip.Addr) *Refusal {
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	wake := requeue.On(metrics.Owner, owner).And(metrics.Node, node)
	for _, other := range b.podsOn(node) {
		if len(other.Status.PodIPs) > 0 && !has(other, addrs) || other.Spec.HostNetwork || other.UID == pod.UID {
			continue
		}
		// The scheduler's snapshot may be older than the event that requeued the pod.
		now, err := b.Pods.Pods(other.Namespace).Get(other.Name)
		if err != nil || now.UID == pod.UID || podutil.IsTerminal(now) || !has(now, addrs) {
			continue
		}
		user := pool.OwnerKey(now.Namespace, now.Name)
		shared := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !podutil.RunsWith(now, a) })
		return refuse(wake.And(metrics.Owner, user), "%s on node %s %s still in use by %s; the pod can be placed there when that pod is deleted or has ended",
			ipText(shared), node, verb(shared, "is", "are"), pool.RedactOwner(user, owner))
	}
	n, _ := b.Cache.Ledger.Node(node)
	for _, a := range addrs {
		if user, used := n.Used[a]; used && user != owner {
			return refuse(wake, "the agent of node %s reports IP %s as used by %s; the pod can be placed there when the agent no longer reports that", node, a, cmp.Or(pool.RedactOwner(user, owner), "an unknown pod"))
		}
	}
	return nil
}

func has(pod *corev1.Pod, addrs []netip.Addr) bool {
	return slices.ContainsFunc(podutil.IPs(pod), func(a netip.Addr) bool { return slices.Contains(addrs, a) })
}

// isDown reports whether a node is fenced: it was deleted (nil), or has the taint out-of-service.
func isDown(node *corev1.Node) bool {
	return node == nil || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// orNil returns nil and no error for an object that does not exist, and its arguments otherwise.
func orNil[T any](obj *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return obj, err
}

// formerPod returns the reason to assume that the former pod of the name still runs on the node of the reservation with
// the addresses; empty if there is none. node is nil if it was deleted. moves is true if the addresses move to another
// node. The controller has to allow such a move (status.movableFor), unless the node is fenced or the former pod never ran
// there with the addresses.
func (b *Binder) formerPod(p *Plan, node *corev1.Node, moves bool) string {
	r := &p.reservation
	n, known := b.Cache.Ledger.Node(r.node)
	// If the migration of the addresses to the node was interrupted, the former pod never ran there with them. The
	// exception is an address that is in cooldown on the node after its release from that pod. A CiliumNode that was
	// deleted does not show that cooldown, even if it was created again.
	wereUsed := !r.moving || !known || n.Unreported || slices.ContainsFunc(r.addrs, func(a netip.Addr) bool { return n.Entries[a].CoolsDownFrom(p.id.Key()) })
	used := slices.IndexFunc(r.addrs, n.InUse)
	switch {
	case isDown(node), !wereUsed && !moves:
		return ""
	case !nodeutil.IsReady(node):
		return fmt.Sprintf("node %s is not ready; if it is shut down, delete the node or add the taint %s", r.node, corev1.TaintNodeOutOfService)
	case !wereUsed:
		return ""
	case !known:
		return fmt.Sprintf("node %s has no CiliumNode, so the used addresses are unknown; check the Cilium agent of that node", r.node)
	case used >= 0:
		return fmt.Sprintf("the agent on node %s still reports %s as used", r.node, r.addrs[used])
	case moves && r.movableFor != p.uid:
		return fmt.Sprintf("the controller and the agent on node %s have not confirmed yet that nothing uses %s", r.node, address.Join(r.addrs))
	}
	return ""
}

// mayLeave reads the node that addresses are about to leave from the API server, and returns an error if the former pod may
// still run there. down is true if the node is fenced: no pod runs there, whatever its agent reported last.
func (b *Binder) mayLeave(ctx context.Context, p *Plan) (down bool, err error) {
	node, err := orNil(b.Client.CoreV1().Nodes().Get(ctx, p.reservation.node, metav1.GetOptions{}))
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", p.reservation.node, err)
	}
	if why := b.formerPod(p, node, true); why != "" {
		return false, fmt.Errorf("%s: %w", why, pool.ErrOldPodRunning)
	}
	return isDown(node), nil
}

// lives reports whether a pod exists and is not being deleted; terminating reports whether it is being deleted. Both are
// false for a pod that has ended, because the scheduler's watch leaves out such pods. If owner does not name a pod, or the
// read fails, lives is true.
func (b *Binder) lives(owner string) (lives, terminating bool) {
	namespace, name, ok := pool.SplitOwnerKey(owner)
	if !ok {
		return true, false
	}
	pod, err := orNil(b.Pods.Pods(namespace).Get(name))
	terminating = err == nil && pod != nil && pod.DeletionTimestamp != nil
	return err != nil || pod != nil && !terminating, terminating
}

// formerGone returns an error unless the API server shows that the former pod of a slot does not exist or has ended: another
// scheduler may have claimed the slot for a pod that the watch does not show yet.
func (b *Binder) formerGone(ctx context.Context, owner string) error {
	namespace, name, ok := pool.SplitOwnerKey(owner)
	if !ok {
		return fmt.Errorf("the former holder of the slot, %q, is not of the form namespace/pod", owner)
	}
	pod, err := orNil(b.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}))
	switch {
	case err != nil:
		return fmt.Errorf("read pod %s, the former holder of the slot: %w", owner, err)
	case pod == nil || podutil.IsTerminal(pod):
		return nil
	}
	return pool.Taken("pod %s, the former holder of the slot, exists and has not ended", owner)
}
