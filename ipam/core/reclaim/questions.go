// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"net/netip"
	"slices"

	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/podutil"
)

// questions are the rules for what an agent has to be asked about. They apply in every state in which there is nothing
// to write. An address that the agent reports as in use by a former pod is not asked about: the answer is known.
var questions = []rule{
	{"unacknowledged", func(v *view) (Action, bool) {
		for _, h := range v.Held {
			addrs := slices.DeleteFunc(slices.Clone(h.Addrs), func(a netip.Addr) bool {
				return !slices.Contains(v.Unacknowledged, a) ||
					slices.ContainsFunc(v.Blockers, func(b ReleaseBlocker) bool { return b.Addr == a && b.User != "" })
			})
			if len(addrs) > 0 {
				return Action{Type: Acknowledge, Node: h.Node, Addrs: addrs}, true
			}
		}
		return Action{}, false
	}},
	{"vacant", when(func(v *view) bool {
		return v.Slot && v.isActive() && v.Pod == nil && v.reserved() && v.Record.Status.VacatedBy != v.Holder
	}, func(v *view) Action {
		a := Action{Type: Vacate, Node: v.Held[0].Node, Addrs: v.Held[0].Addrs, Status: *v.Record.Status.DeepCopy()}
		a.Status.VacatedBy = v.Holder
		return a
	})},
	{"stranded", when(func(v *view) bool {
		return !v.Slot && v.isActive() && v.failover() == v1alpha1.Migrate && podutil.IsUnschedulable(v.Pod) && v.reserved() && v.Record.Status.MovableFor != v.Pod.UID
	}, func(v *view) Action {
		a := Action{Type: AllowMove, Node: v.Held[0].Node, Addrs: v.Held[0].Addrs, Status: *v.Record.Status.DeepCopy()}
		a.Status.MovableFor = v.Pod.UID
		return a
	})},
}

// isActive reports whether there is a FixedIP that is not being deleted.
func (v *view) isActive() bool { return v.Record != nil && v.Record.DeletionTimestamp == nil }

// reserved reports whether one node has all recorded addresses of the identity, and its agent reports none as in use.
func (v *view) reserved() bool {
	return len(v.Held) == 1 && containsAll(v.Held[0].Addrs, v.Record.Spec.IPs) &&
		!slices.ContainsFunc(v.Held[0].Addrs, func(a netip.Addr) bool { return slices.Contains(v.Reported, a) })
}

// recordStranded creates the FixedIP of a claim whose pod was never bound and that its node cannot take any more: only
// a FixedIP can say that the pod may take the addresses to another node.
func (v *view) recordStranded() (Action, bool) {
	if v.Slot || !podutil.IsUnschedulable(v.Pod) || len(v.Held) != 1 || ptr.Deref(v.Workload.Failover, v.Failover) != v1alpha1.Migrate {
		return Action{}, false
	}
	addrs, ok := onePerFamily(v.Held[0].Addrs, v.Pod)
	return v.createRecord(v.Held[0].Node, addrs), ok
}

func (v *view) createRecord(node string, addrs []netip.Addr) Action {
	name := v.Holder
	if v.Pod != nil {
		name = v.Pod.Name
	}
	return Action{Type: CreateRecord, Spec: v1alpha1.FixedIPSpec{
		IPs:      address.Strings(addrs),
		NodeName: node,
		Owner:    v.Workload.OwnerReference,
		Slot:     v.Slot,
		PodName:  name,
		Reclaim:  v.reclaimPolicy(),
		Failover: ptr.Deref(v.Workload.Failover, ""),
	}}
}
