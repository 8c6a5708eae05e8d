// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// A workload whose pods have no stable names has a set of slots. A slot contains the addresses of one pod on one node.
// A new pod takes over a slot whose pod has stopped. If too few slots are free, the new pod gets a slot of its own, as
// in a first placement, so a workload gets at most as many slots as it has had pods at the same time. A new pod also
// waits for the slot of a pod that is being deleted; otherwise each rollout would need one more address.
//
// At most as many pods search for a slot as slots are free. So a free slot whose node cannot take a pod makes only one
// pod wait.

// freeSlot is a slot whose pod does not exist any more, has ended, or is being deleted, or whose pod needs the slot again
// because the pool entries were lost.
type freeSlot struct {
	// from is the last holder, as pool entries name it.
	from  string
	node  string
	addrs []netip.Addr
	// blocked is the reason why the slot cannot be taken over yet; empty if it can.
	blocked string
}

// freeSlots returns the free slots of a workload, sorted by node and then by address, the highest address first. It
// leaves out slots that are being claimed, slots whose FixedIP is being deleted, and slots whose pool entries name
// nextPod. nextPod is the pod that needs a slot, "namespace/name"; empty: no particular pod.
func (b *Binder) freeSlots(workload, nextPod string) ([]freeSlot, error) {
	records, err := b.Cache.FixedIPsOf(workload)
	if err != nil {
		return nil, err
	}
	var free []freeSlot
	// pooled contains the addresses that slots have in pools. Key: the address.
	pooled := map[string]bool{}
	// reservedBy contains the FixedIP that names an address; of several, one that is being deleted. Key: the address.
	reservedBy := map[string]*v1alpha1.FixedIP{}
	for i := range records {
		for _, ip := range records[i].Spec.IPs {
			if other := reservedBy[ip]; other == nil || other.DeletionTimestamp == nil {
				reservedBy[ip] = &records[i]
			}
		}
	}
	for _, s := range b.Cache.Ledger.Slots(workload) {
		for _, a := range s.Addrs {
			pooled[a.String()] = true
		}
		record := reservedBy[s.Addrs[0].String()]
		if s.Owner == nextPod || s.Claimed || record != nil && record.DeletionTimestamp != nil {
			continue
		}
		if f, ok := b.slotOf(s, record); ok {
			free = append(free, f)
		}
	}
	for i := range records {
		r := &records[i]
		if r.Spec.AssignedTo != v1alpha1.Slot || r.DeletionTimestamp != nil || slices.ContainsFunc(r.Spec.IPs, func(ip string) bool { return pooled[ip] }) {
			continue
		}
		if f, ok := b.freeRecord(r, nextPod); ok {
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

// slotOf returns a free slot that is in a pool. ok is false if the pod that has the slot exists and is not being
// deleted. record is the FixedIP of the slot; nil: there is none.
func (b *Binder) slotOf(s ledger.Slot, record *v1alpha1.FixedIP) (f freeSlot, ok bool) {
	f = freeSlot{from: s.Owner, node: s.Node, addrs: s.Addrs}
	switch lives, terminating := b.lives(s.Owner); {
	case terminating:
		f.blocked = "pod " + s.Owner + ", which is being deleted, still has the address"
	case lives:
		return f, false
	case s.User != "":
		f.blocked = fmt.Sprintf("the agent there still reports the address as used by %s", pool.RedactOwner(s.User, s.Owner))
	case record == nil || pool.OwnerKey(record.Namespace, record.Status.VacatedBy) != s.Owner:
		f.blocked = fmt.Sprintf("the controller and the agent there have not confirmed yet that pod %s has stopped", s.Owner)
	}
	return f, true
}

// freeRecord returns a free slot that has a FixedIP but no pool entries, because the entries were deleted with their
// node or lost. ok is false if the FixedIP names no addresses. It is also false if a pod other than nextPod has the
// slot, exists, and is not being deleted.
func (b *Binder) freeRecord(r *v1alpha1.FixedIP, nextPod string) (f freeSlot, ok bool) {
	owner := cache.KeyOf(r)
	if lives, _ := b.lives(owner); lives && owner != nextPod || len(r.Spec.IPs) == 0 {
		return freeSlot{}, false
	}
	f.from = owner
	placed, err := b.fromFixedIP(r)
	if err != nil {
		f.blocked = err.Error()
		return f, true
	}
	f.node, f.addrs = placed.node, placed.addrs
	f.blocked = "the controller has not written the entry of the address into the pool there yet"
	for _, a := range f.addrs {
		if blocker := b.Cache.Ledger.Blocker(f.from, a); blocker != nil {
			f.blocked = blocker.Error()
		}
	}
	return f, true
}

// available returns the slots that can be taken over now.
func available(free []freeSlot) []freeSlot {
	return slices.DeleteFunc(slices.Clone(free), func(f freeSlot) bool { return f.blocked != "" })
}

// findSlot plans for a pod without a slot. A slot is free if its pod does not exist any more, has ended, or is being
// deleted. A free slot is available if it can be taken over now. The plan has the nodes with an available slot. If the
// other pods that search already need all free slots, the pod gets a new slot, as in a first placement. If slots are free
// but none is available, or no node with an available slot exists, findSlot returns a Refusal, and the pod waits.
func (b *Binder) findSlot(p *Plan, pod *corev1.Pod) (*Plan, error) {
	workload := p.id.Resource()
	if _, err := b.workloadOf(p.id); err != nil {
		// If the workload was deleted and created again, a pod of the old workload gets no slot of the new one.
		return nil, &Refusal{Reason: err.Error(), WakeOn: p.wakeOn().And(metrics.Workload, workload)}
	}
	free, err := b.freeSlots(workload, p.id.Key())
	if err != nil {
		return nil, err
	}
	if !b.slots.search(workload, pod.UID, len(free), func() bool { return b.exists(pod) }) {
		return b.findFirst(p, pod)
	}
	p.searching, p.slots = true, available(free)
	if len(p.slots) == 0 {
		return nil, refuse(b.wakeOnFreeAddress(p), "its %s has %s; the pod waits until it can take over such an IP: %s", p.id.Owner.Kind, counted(len(free)), describe(free))
	}
	var nodes []string
	for _, f := range p.slots {
		if b.node(f.node) != nil {
			nodes = append(nodes, f.node)
		}
	}
	if len(nodes) == 0 {
		return nil, refuse(b.wakeOnFreeAddress(p), "its %s has the free %s on node %s, but that node does not exist; the pod waits until that node exists again, or until it can take over another address", p.id.Owner.Kind, addressText(p.slots[0].addrs), p.slots[0].node)
	}
	p.Nodes = sets.New(nodes...)
	return p, nil
}

func counted(free int) string {
	if free == 1 {
		return "the IPs of one pod that has ended, was deleted or is being deleted"
	}
	return fmt.Sprintf("the IPs of %d pods that have ended, were deleted or are being deleted", free)
}

// shownSlots is the maximum number of slots that a message names.
const shownSlots = 3

// describe returns the text about free slots that cannot be taken over: the first shownSlots of them with their nodes and
// the reasons, and the number of the others.
func describe(free []freeSlot) string {
	var parts []string
	for _, f := range free[:min(shownSlots, len(free))] {
		if f.node == "" {
			parts = append(parts, f.blocked)
			continue
		}
		parts = append(parts, fmt.Sprintf("%s on node %s (%s)", address.Join(f.addrs), f.node, f.blocked))
	}
	text := strings.Join(parts, ", ")
	if more := len(free) - shownSlots; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// fitsSlot returns nil if the node has a slot that the pod can take over.
func (p *Plan) fitsSlot(node string) error {
	if slices.ContainsFunc(p.slots, func(f freeSlot) bool { return f.node == node }) {
		return nil
	}
	return refuse(requeue.WakeOn{}, "node(s) had no free address of the pod's %s", p.id.Owner.Kind)
}

// explainSlots returns why none of the nodes with a free slot can take the pod.
func (b *Binder) explainSlots(p *Plan, pod *corev1.Pod, refused func(string) []string) string {
	existing := slices.DeleteFunc(slices.Clone(p.slots), func(f freeSlot) bool { return b.node(f.node) == nil })
	var parts []string
	for _, f := range existing[:min(shownSlots, len(existing))] {
		reason, remedy := hindrance(pod, b.node(f.node), refused(f.node))
		parts = append(parts, fmt.Sprintf("%s %s to node %s, which %s%s", address.Join(f.addrs), verb(f.addrs, "belongs", "belong"), f.node, reason, remedy))
	}
	if more := len(existing) - shownSlots; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("no node can take the pod with a free address of its %s: %s", p.id.Owner.Kind, strings.Join(parts, "; "))
}

// slotWaiters contains the pods that search for a free slot of their workload. The zero value is ready for use.
type slotWaiters struct {
	mu sync.Mutex
	// workloads contains the workload of each searching pod, named as in pool entries. Key: the UID of a pod that the watch
	// shows. search adds a pod. A pod is removed when search returns false for it, when Assume has claimed its address, or
	// when the pod is deleted.
	workloads map[types.UID]string
}

// search registers a pod as searching for a free slot, and returns true. It returns false, and the pod is not registered any
// more, if the pod does not exist, or if at least as many other pods search already as slots are free (free). exists reports
// whether the watch shows the pod. search calls exists under mu, so that a later deletion of the pod leads to a call of
// remove.
func (s *slotWaiters) search(workload string, uid types.UID, free int, exists func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.workloads, uid)
	if s.searching(workload) >= free || !exists() {
		return false
	}
	if s.workloads == nil {
		s.workloads = map[types.UID]string{}
	}
	s.workloads[uid] = workload
	return true
}

// count returns the number of pods that search for a slot of the workload.
func (s *slotWaiters) count(workload string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.searching(workload)
}

// searching is count without the lock. Called under mu.
func (s *slotWaiters) searching(workload string) (n int) {
	for _, w := range s.workloads {
		if w == workload {
			n++
		}
	}
	return n
}

// remove removes a pod, and returns the workload for whose slots the pod was searching; empty if it was not searching.
func (s *slotWaiters) remove(uid types.UID) (workload string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	workload = s.workloads[uid]
	delete(s.workloads, uid)
	return workload
}
