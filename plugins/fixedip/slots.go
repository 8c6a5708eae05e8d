// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Pods of a workload with slots have no lasting names. The workload has a set of slots, each the
// addresses of one pod on one node, and a new pod takes over a slot whose pod is gone. Only where
// there are not enough of these it makes another, as in a first placement: the slots are as many as
// the most pods that lived at once. A pod that is being deleted makes its slot free soon, and a new
// pod waits for that; otherwise every update would need another address.
//
// What is free is counted against who else looks for it: a free slot whose node can't take a pod
// must not keep a second one waiting.

// workloadIndex finds the FixedIPs of a workload, named as in pool entries.
const workloadIndex = "workload"

func workloadOf(obj client.Object) []string {
	fip := obj.(*v1alpha1.FixedIP)
	o := identity.OwnerOf(fip)
	return []string{identity.Resource(fip.Namespace, o.GroupKind(), o.Name)}
}

// freeSlot is a slot whose pod is gone or going.
type freeSlot struct {
	// from is the former holder, as pool entries name it.
	from  string
	node  string
	addrs []netip.Addr
	// kept says why it can't be taken over yet; empty where it can. at is when that ends at the latest where
	// it is only a matter of time; zero: it is not, or nobody knows yet.
	kept string
	at   time.Time
	// recorded is what the controller has said of the former holder's end; nil: nothing.
	recorded *v1alpha1.Departure
}

// freeSlots are the slots of the identity's workload that no living pod has, by node, and on each by
// address from the top down.
func (p *Plugin) freeSlots(id identity.Identity) ([]freeSlot, error) {
	var records v1alpha1.FixedIPList
	err := p.world.fixedIPs.List(context.Background(), &records, client.MatchingFields{workloadIndex: id.Resource()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the FixedIPs of %s %s/%s from the cache: %w", id.Owner.Kind, id.Namespace, id.Owner.Name, err)
	}
	var free []freeSlot
	// pooled are the addresses that the slots have in pools.
	pooled := map[string]bool{}
	// keeper is who keeps an address: one of the FixedIPs, and where there are two, the one that is going.
	keeper := map[string]*v1alpha1.FixedIP{}
	for i := range records.Items {
		for _, ip := range records.Items[i].Spec.IPs {
			if other := keeper[ip]; other == nil || other.DeletionTimestamp == nil {
				keeper[ip] = &records.Items[i]
			}
		}
	}
	for _, s := range p.world.ledger.Slots(id.Resource()) {
		for _, a := range s.Addrs {
			pooled[a.String()] = true
		}
		record := keeper[s.Addrs[0].String()]
		if s.Owner == id.Key() || s.Claimed || record != nil && record.DeletionTimestamp != nil {
			continue
		}
		f := freeSlot{from: s.Owner, node: s.Node, addrs: s.Addrs, recorded: departureOf(record, s.Owner)}
		switch lives, leaves := p.holder(s.Owner); {
		case lives:
			continue
		case leaves:
			f.kept = leaving(s.Owner)
		default:
			f.at = p.world.departed(s.Owner, s.Node, s.Addrs, f.recorded, p.silence.patience)
			if s.User != "" {
				f.kept = fmt.Sprintf("the agent there still lists it as used by %s", s.User)
			} else if f.kept = unheard(s.Owner, f.at); f.kept == "" {
				f.kept, f.at = p.unheard(s.Node, s.Addrs, time.Time{})
			}
		}
		free = append(free, f)
	}
	for i := range records.Items {
		r := &records.Items[i]
		if !r.Spec.Slot || r.DeletionTimestamp != nil || slices.ContainsFunc(r.Spec.IPs, func(ip string) bool { return pooled[ip] }) {
			continue
		}
		if f, ok := p.freeRecord(r, id); ok {
			free = append(free, f)
		}
	}
	slices.SortFunc(free, func(x, y freeSlot) int {
		if c := strings.Compare(x.node, y.node); c != 0 || len(x.addrs) == 0 || len(y.addrs) == 0 {
			return c
		}
		return y.addrs[0].Compare(x.addrs[0])
	})
	return free, nil
}

// departureOf is what the FixedIP of a slot, of which there may be none yet, says of the end of a pod; nil: nothing.
func departureOf(r *v1alpha1.FixedIP, owner string) *v1alpha1.Departure {
	if r == nil || r.Status.Departed == nil || pool.OwnerKey(r.Namespace, r.Status.Departed.PodName) != owner {
		return nil
	}
	return r.Status.Departed
}

// unheard says why it is not sure before a time that the former holder of a slot does not run any more; empty where
// it is.
func unheard(owner string, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return fmt.Sprintf("its agent has not listed it since %s was gone, and may take until %s to do so", owner, at.UTC().Format(time.RFC3339))
}

func leaving(owner string) string {
	return fmt.Sprintf("%s, which is being deleted, still has it", owner)
}

// earliest is the first time at which one of the slots may be taken over that is kept now; zero: no time is known.
func earliest(free []freeSlot) (at time.Time) {
	for _, f := range free {
		if !f.at.IsZero() && (at.IsZero() || f.at.Before(at)) {
			at = f.at
		}
	}
	return at
}

// freeRecord is a slot that only its FixedIP knows: its entries went with their node, or were lost.
func (p *Plugin) freeRecord(r *v1alpha1.FixedIP, id identity.Identity) (f freeSlot, ok bool) {
	lives, leaves := p.holder(keyOf(r))
	if lives && r.Spec.PodName != id.PodName || len(r.Spec.IPs) == 0 {
		return freeSlot{}, false
	}
	f.from = keyOf(r)
	placed, err := p.world.fromRecord(r)
	if err != nil {
		f.kept = err.Error()
		return f, true
	}
	f.node, f.addrs = placed.node, placed.addrs
	switch {
	case r.Spec.NodeName == "" || r.Spec.PodName == id.PodName:
		// Nobody had it, or the pod itself has.
	case leaves:
		f.kept = leaving(f.from)
	default:
		f.recorded = departureOf(r, f.from)
		f.at = p.world.departed(f.from, f.node, f.addrs, f.recorded, p.silence.patience)
		f.kept = unheard(f.from, f.at)
	}
	for _, a := range f.addrs {
		if b := p.world.ledger.Blocker(f.from, a); b != nil {
			f.kept = b.Error()
		}
	}
	return f, true
}

// holder tells whether a pod lives, or is being deleted. The scheduler's cache leaves out pods that
// have ended.
func (p *Plugin) holder(owner string) (lives, leaves bool) {
	namespace, name, ok := pool.SplitOwnerKey(owner)
	if !ok {
		return true, false
	}
	pod, err := p.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return false, p.world.departures.lives(owner)
	}
	// An error is none of a cache's; whoever can't be looked up lives.
	return err != nil || pod.DeletionTimestamp == nil, err == nil && pod.DeletionTimestamp != nil
}

// takeable are those that can be taken over now.
func takeable(free []freeSlot) []freeSlot {
	return slices.DeleteFunc(slices.Clone(free), func(f freeSlot) bool { return f.kept != "" })
}

// preFilterSlot narrows a pod that has no slot to the nodes with one to take over. Where as many
// others look for the free ones as there are, it gets a slot of its own, wherever there is room.
func (p *Plugin) preFilterSlot(state fwk.CycleState, pod *corev1.Pod, c *cycle) (*framework.PreFilterResult, *fwk.Status) {
	if _, err := p.owner(c.id); err != nil {
		// A pod whose workload is another by now gets no slot of its successor.
		return nil, p.refuse(pod, cause{owner: c.id.Key(), workload: c.id.Resource()}, c.decided, err.Error())
	}
	free, err := p.freeSlots(c.id)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if !p.world.seekers.seek(c.id.Resource(), pod.UID, len(free)) {
		return p.preFilterAsked(state, pod, c)
	}
	c.seeks, c.free, c.due = true, takeable(free), earliest(free)
	state.Write(stateKey, c)
	if len(c.free) == 0 {
		return nil, p.refuse(pod, p.causeOf(c), c.decided, fmt.Sprintf("its %s has %s, and it takes over one of them: %s", c.id.Owner.Kind, counted(len(free)), describe(free)))
	}
	there := slices.DeleteFunc(slices.Clone(c.free), func(f freeSlot) bool {
		_, err := p.handle.SnapshotSharedLister().NodeInfos().Get(f.node)
		return err != nil
	})
	if len(there) == 0 {
		return nil, p.refuse(pod, p.causeOf(c), c.decided,
			fmt.Sprintf("its %s has the free address %s, which belongs to node %s, which does not exist; it waits for that node to come back", c.id.Owner.Kind, address.Join(c.free[0].addrs), c.free[0].node))
	}
	metrics.Cycle(true)
	nodes := sets.New[string]()
	for _, f := range there {
		nodes.Insert(f.node)
	}
	return &framework.PreFilterResult{NodeNames: nodes}, nil
}

func counted(free int) string {
	if free == 1 {
		return "one address whose pod is gone or going"
	}
	return fmt.Sprintf("%d addresses whose pods are gone or going", free)
}

// shownSlots is how many slots a message tells of.
const shownSlots = 3

// describe says of slots where they are and why they can't be taken over.
func describe(free []freeSlot) string {
	var parts []string
	for _, f := range free[:min(shownSlots, len(free))] {
		if f.node == "" {
			parts = append(parts, f.kept)
			continue
		}
		parts = append(parts, fmt.Sprintf("%s on node %s (%s)", address.Join(f.addrs), f.node, f.kept))
	}
	text := strings.Join(parts, ", ")
	if more := len(free) - shownSlots; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// filterSlot lets the nodes pass that have a slot to take over.
func (c *cycle) filterSlot(node string) *fwk.Status {
	if slices.ContainsFunc(c.free, func(f freeSlot) bool { return f.node == node }) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't have an address of the pod's %s that is free", c.id.Owner.Kind))
}

// assumeSlot decides for one of the slots on the node, in the ledger.
func (p *Plugin) assumeSlot(pod *corev1.Pod, c *cycle, node string) (claim ledger.Claim, err error) {
	err = errors.New("none of them is free")
	for _, f := range c.free {
		if f.node != node {
			continue
		}
		if claim, err = p.world.ledger.AssumeSlot(pod.UID, c.id.Key(), f.from, node, p.families, f.addrs); err == nil {
			return claim, nil
		}
	}
	return ledger.Claim{}, err
}

// slotHelps tells whether the news of a node help a pod that has no slot: there is one on it to take
// over, or the pod need not look for one any more.
func (p *Plugin) slotHelps(c *cycle, node string) bool {
	free, err := p.freeSlots(c.id)
	if err != nil {
		return false
	}
	if c.seeks && (p.world.seekers.others(c.id.Resource(), c.uid) >= len(free) || !earliest(free).Equal(c.due)) {
		// It is to look no more, or may have to wait until another time.
		return true
	}
	return slices.ContainsFunc(takeable(free), func(f freeSlot) bool { return f.node == node })
}

// slotOn tells whether a pod without a slot may take one over on a node.
func (p *Plugin) slotOn(id identity.Identity, node string) bool {
	if !id.Slot {
		return false
	}
	free, err := p.freeSlots(id)
	return err == nil && slices.ContainsFunc(takeable(free), func(f freeSlot) bool { return f.node == node })
}

// explainSlots says why none of the nodes with a free slot can take the pod.
func (p *Plugin) explainSlots(c *cycle, nodes framework.NodeToStatusReader) string {
	var parts []string
	for _, f := range c.free[:min(shownSlots, len(c.free))] {
		info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(f.node)
		if err != nil {
			continue
		}
		reason, mends := hindrance(info.Node(), nodes.Get(f.node))
		parts = append(parts, fmt.Sprintf("%s belongs to node %s, which %s%s", address.Join(f.addrs), f.node, reason, mends))
	}
	return fmt.Sprintf("of the addresses of its %s that are free, %s", c.id.Owner.Kind, strings.Join(parts, "; "))
}

// stillGone looks at the API server whether the former holder of a slot is gone: the entry may be
// that of a pod that our cache does not show yet, for which another scheduler has claimed. One that came
// and went since the slot was chosen may run on.
func (p *Plugin) stillGone(ctx context.Context, c *cycle, claim ledger.Claim) error {
	from := claim.From
	namespace, name, ok := pool.SplitOwnerKey(from)
	if !ok {
		return fmt.Errorf("%q is no pod", from)
	}
	for _, f := range c.free {
		if f.from != from || f.node != claim.Node {
			continue
		}
		if at := p.world.departed(from, f.node, f.addrs, f.recorded, p.silence.patience); !at.IsZero() {
			return fmt.Errorf("%s: %w", unheard(from, at), pool.ErrUnfenced)
		}
		if why, _ := p.unheard(f.node, f.addrs, time.Time{}); why != "" {
			return fmt.Errorf("%s: %w", why, pool.ErrUnfenced)
		}
	}
	pod, err := p.handle.ClientSet().CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look at pod %s, which had the address before: %w", from, err)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return nil
	}
	return fmt.Errorf("pod %s is there and has the address: %w", from, pool.ErrTaken)
}
