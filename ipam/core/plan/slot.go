package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Slot is one slot of a workload whose pods have no lasting names, or what may become one.
type Slot struct {
	// Record is its FixedIP; nil: it is only claimed.
	Record *v1alpha1.FixedIP
	// Held are the entries that carry its addresses, or that its holder has on the node beside them;
	// without addresses there are none.
	Held ledger.Holding
	// Holder is the name of the pod that the entries name, or else the record.
	Holder string
	// Pod is the holder; nil: it is gone.
	Pod *corev1.Pod
}

// Slots puts together what is known of the slots of a workload: its records and its entries. The
// pods are for the caller to fill in.
func Slots(records []v1alpha1.FixedIP, entries []ledger.Slot) []Slot {
	var slots []Slot
	taken := make([]bool, len(entries))
	for i := range records {
		s := Slot{Record: &records[i], Holder: records[i].Spec.PodName}
		for j, e := range entries {
			if !taken[j] && slices.ContainsFunc(address.Strings(e.Addrs), func(a string) bool { return slices.Contains(s.Record.Spec.IPs, a) }) {
				taken[j], s.Held, s.Holder = true, e.Holding, podOf(e.Owner)
				break
			}
		}
		slots = append(slots, s)
	}
	for j, e := range entries {
		if !taken[j] {
			slots = append(slots, Slot{Held: e.Holding, Holder: podOf(e.Owner)})
		}
	}
	return slots
}

// Surplus tells which of the slots a workload has beyond what it needs: its replicas, and the pods
// that an update may add to them, since an update would otherwise give an address back and take
// another with each pod. Only slots whose pods are gone are among them: first those whose time runs
// already, then those with the lowest addresses, which were given out last. A workload that does not
// say how many replicas it has needs them all.
func Surplus(slots []Slot, w identity.Workload) []bool {
	surplus := make([]bool, len(slots))
	if w.Replicas == nil {
		return surplus
	}
	var gone []int
	standing := 0
	for i, s := range slots {
		if s.Record != nil && s.Record.DeletionTimestamp != nil {
			continue
		}
		standing++
		if s.Pod == nil {
			gone = append(gone, i)
		}
	}
	slices.SortFunc(gone, func(x, y int) int {
		return cmp.Or(cmp.Compare(waits(slots[x]), waits(slots[y])), slots[x].first().Compare(slots[y].first()))
	})
	for _, i := range gone[:max(0, min(len(gone), standing-int(*w.Replicas)-int(w.Surge)))] {
		surplus[i] = true
	}
	return surplus
}

// waits orders slots whose time to live has begun before the others.
func waits(s Slot) int {
	if s.Record != nil && s.Record.Status.ExpiresAt != nil {
		return 0
	}
	return 1
}

// first is the lowest address of a slot.
func (s Slot) first() netip.Addr {
	if len(s.Held.Addrs) > 0 {
		return s.Held.Addrs[0]
	}
	if s.Record != nil && len(s.Record.Spec.IPs) > 0 {
		if a, err := address.Parse(s.Record.Spec.IPs[0]); err == nil {
			return a
		}
	}
	return netip.Addr{}
}

// DecideSlot finds the next step about one slot. The situation is the slot's: its record, its
// entries, its holder. Workload.Excludes tells that the slot is surplus.
//
// The holder is whom the entries name: the scheduler hands a slot on in the pool, and the record
// follows. A slot goes back when its workload is gone or it is surplus, by the policy, and when its
// record is deleted; never while its pod is there, bound or not: a pod that has claimed is on its way
// to the node.
func DecideSlot(s Situation, holder string) Next {
	switch {
	case s.Record == nil:
		return slotWithoutRecord(s)
	case s.Record.DeletionTimestamp != nil:
		return slotReleasing(s, holder)
	}
	spec := s.Record.Spec
	spec.PodName = holder
	switch {
	case s.Workload.Exists:
		spec.Owner.UID = s.Workload.UID
	case restored(s.Record) && s.Pod == nil:
		spec.Owner.UID = ""
	}
	spec.Reclaim = ptr.Deref(s.Workload.Reclaim, spec.Reclaim)
	node := boundTo(s.Pod)
	for _, h := range s.Held {
		if addrs, ok := onePerFamily(h.Addrs, s.Pod); h.Node == node && ok && len(addrs) > len(spec.IPs) && all(addrs, spec.IPs) && (s.Asked || recordable(addrs, s.Pod)) {
			spec.IPs = address.Strings(addrs)
		}
		if all(h.Addrs, spec.IPs) {
			spec.NodeName = h.Node
		}
	}
	if !sameSpec(spec, s.Record.Spec) || unmarked(s.Record) {
		return Next{Step: UpdateRecord, Spec: spec}
	}
	if reclaimable(s, spec.Reclaim) {
		return expire(s, spec.Reclaim.TTL.Duration)
	}
	if h, held := heldOn(s.Held, node); held {
		if beside := address.Besides(h.Addrs, spec.IPs); len(beside) > 0 && Spares(s.Pod, beside) {
			return Next{Step: ReleaseEntries, Node: node, Addrs: beside}
		}
	}
	if node != "" && node == spec.NodeName {
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: s.Pod.UID})
	}
	return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved})
}

// departed is the last pod of a slot where it is gone: what the record says already, if it is about that pod.
func departed(s Situation) *v1alpha1.Departure {
	if name := s.Record.Spec.PodName; s.Record.Spec.Slot && s.Pod == nil && name != "" {
		if said := s.Record.Status.Departed; said != nil && said.PodName == name {
			return said
		}
		return Departed(name, s.Now)
	}
	return nil
}

// Departed is a pod that was gone at a time. Whole seconds are what the API keeps.
func Departed(pod string, by time.Time) *v1alpha1.Departure {
	return &v1alpha1.Departure{PodName: pod, At: metav1.NewTime(by.Add(time.Second - 1).Truncate(time.Second))}
}

// Departs tells whether the step says of a pod for the first time that it is gone, which the caches alone don't
// prove: the API server has to be asked before.
func (n Next) Departs(record *v1alpha1.FixedIP) bool {
	return n.Step == UpdateStatus && n.Status.Departed != nil && n.Status.Departed != record.Status.Departed
}

// slotWithoutRecord decides about a claim: it becomes a slot when its pod runs with it (see Decide).
// One whose pod is bound elsewhere, or that belongs to nothing any more, goes back. One whose pod is
// gone is a slot for the next.
func slotWithoutRecord(s Situation) Next {
	if len(s.Held) == 0 {
		return Next{}
	}
	h, node := s.Held[0], boundTo(s.Pod)
	reclaim := ptr.Deref(s.Workload.Reclaim, identity.DefaultReclaim())
	switch {
	case s.Pod == nil && (!s.Workload.Exists || s.Workload.Excludes && reclaim.WhenScaled == v1alpha1.Delete):
		return Next{Step: ReleaseEntries, Node: h.Node, Addrs: h.Addrs}
	case node == "" || !s.Workload.Exists:
		return Next{}
	case node != h.Node:
		return Next{Step: ReleaseEntries, Node: h.Node, Addrs: h.Addrs}
	}
	addrs, ok := onePerFamily(h.Addrs, s.Pod)
	if !ok || !s.Asked && !recordable(addrs, s.Pod) {
		return Next{}
	}
	return Next{Step: CreateRecord, Spec: v1alpha1.FixedIPSpec{
		IPs:      address.Strings(addrs),
		NodeName: h.Node,
		Owner:    s.Workload.OwnerReference,
		Slot:     true,
		PodName:  s.Pod.Name,
		Reclaim:  reclaim,
	}}
}

// slotReleasing decides about a slot that goes back. Its record names the pod that has it until then, also where
// the slot was handed on at the last moment.
func slotReleasing(s Situation, holder string) Next {
	switch {
	case !slices.Contains(s.Record.Finalizers, v1alpha1.Finalizer):
		return Next{}
	case s.Pod != nil && s.Record.Spec.PodName != holder:
		spec := s.Record.Spec
		spec.PodName = holder
		return Next{Step: UpdateRecord, Spec: spec}
	case s.Pod != nil:
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: s.Pod.UID})
	case len(s.Held) > 0:
		return Next{Step: ReleaseEntries, Node: s.Held[0].Node, Addrs: s.Held[0].Addrs}
	}
	return Next{Step: FinishRecord}
}

func podOf(owner string) string {
	_, name, _ := pool.SplitOwnerKey(owner)
	return name
}
