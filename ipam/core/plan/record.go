package plan

import (
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
)

// Situation is all that is known of one identity.
type Situation struct {
	// Record is its FixedIP; nil: there is none.
	Record *v1alpha1.FixedIP
	// Held are the entries of all pools that name it.
	Held []ledger.Holding
	// Pod is the pod of its name; nil: there is none.
	Pod *corev1.Pod
	// Workload is the object that the identity belongs to, as the record or the entries name it.
	Workload Workload
	// Now is the time of the decision.
	Now time.Time
}

// Workload is the owner of an identity.
type Workload struct {
	v1alpha1.OwnerReference
	// Exists tells whether there is an object of that kind and name. UID is then its UID.
	Exists bool
	// Reclaim is the policy that it asks for; nil where it does not exist or its words can't be
	// read, so that what is recorded stays.
	Reclaim *v1alpha1.ReclaimPolicy
	// Excludes tells whether it exists and has fewer replicas than would take in the identity.
	Excludes bool
}

// Step is the one thing to do next about an identity.
type Step int

// The steps. Each is one write at most, so that whatever is interrupted goes on from what the API
// says. Every write changes the situation, and the next step is decided from the new one.
const (
	// Nothing is to be done until the situation changes.
	Nothing Step = iota
	// CreateRecord makes the FixedIP of a claim.
	CreateRecord
	// UpdateRecord brings the spec of the FixedIP up to date, and gives it the finalizer, which
	// one made by a person may lack.
	UpdateRecord
	// UpdateStatus brings the status of the FixedIP up to date.
	UpdateStatus
	// DeleteRecord deletes the FixedIP of a workload that is gone. Look at the workload and the
	// pod live before.
	DeleteRecord
	// ReleaseEntries takes addresses from the identity. Look at the pod live before and after.
	ReleaseEntries
	// FinishRecord removes the finalizer: nothing in any pool names the identity any more.
	FinishRecord
)

func (s Step) String() string {
	return [...]string{"Nothing", "CreateRecord", "UpdateRecord", "UpdateStatus", "DeleteRecord", "ReleaseEntries", "FinishRecord"}[s]
}

// Next is what Decide found.
type Next struct {
	Step Step
	// Spec is the spec to write, for CreateRecord and UpdateRecord.
	Spec v1alpha1.FixedIPSpec
	// Status is the status to write, for UpdateStatus.
	Status v1alpha1.FixedIPStatus
	// Node is where entries are to be released, for ReleaseEntries, and Addrs are which: all where
	// there are none.
	Node  string
	Addrs []netip.Addr
	// At is when the situation changes by time alone; zero: never.
	At time.Time
}

// Decide finds the next step.
//
// A record is made when the pod is bound, and not before: two claims for one pod are possible (a
// scheduler died between claim and bind, its successor read an old cache), and the bind decides
// which of them counts. The other is released. An address is taken from its identity only when the
// pod is gone too: whoever deletes a StatefulSet and keeps its pods means to keep their addresses.
// A pod that comes back under the name before the record is deleted has its address. A record whose
// owner has no UID was made by a person, beforehand: its workload is not gone, it has never been
// there.
func Decide(s Situation) Next {
	switch {
	case s.Record == nil:
		return withoutRecord(s)
	case s.Record.DeletionTimestamp != nil:
		return releasing(s)
	}
	return standing(s)
}

// reclaimable tells whether the addresses of a standing record are to go back, by its policy.
func reclaimable(s Situation, policy v1alpha1.ReclaimPolicy) bool {
	switch {
	case s.Pod != nil:
		return false
	case !s.Workload.Exists:
		return s.Record.Spec.Owner.UID != "" && policy.WhenDeleted != v1alpha1.Retain
	default:
		return s.Workload.Excludes && policy.WhenScaled == v1alpha1.Delete
	}
}

// expire lets the time to live pass, and then deletes the record.
func expire(s Situation, ttl time.Duration) Next {
	if ttl <= 0 {
		return Next{Step: DeleteRecord}
	}
	at := s.Record.Status.ExpiresAt
	if at == nil {
		// Whole seconds are what the API keeps.
		at = &metav1.Time{Time: s.Now.Add(ttl).Truncate(time.Second)}
	}
	if !s.Now.Before(at.Time) {
		return Next{Step: DeleteRecord}
	}
	next := status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, ExpiresAt: at})
	next.At = at.Time
	return next
}

func withoutRecord(s Situation) Next {
	switch {
	case len(s.Held) == 0:
		return Next{}
	case !s.Workload.Exists && s.Pod == nil:
		return Next{Step: ReleaseEntries, Node: s.Held[0].Node}
	case !s.Workload.Exists:
		return Next{}
	}
	h, ok := heldOn(s.Held, boundTo(s.Pod))
	if !ok {
		return Next{}
	}
	addrs, ok := onePerFamily(h.Addrs, s.Pod)
	if !ok {
		return Next{}
	}
	return Next{Step: CreateRecord, Spec: v1alpha1.FixedIPSpec{
		IPs:      address.Strings(addrs),
		NodeName: h.Node,
		Owner:    s.Workload.OwnerReference,
		PodName:  s.Pod.Name,
		Reclaim:  ptr.Deref(s.Workload.Reclaim, identity.DefaultReclaim()),
	}}
}

func releasing(s Situation) Next {
	switch {
	case !slices.Contains(s.Record.Finalizers, v1alpha1.Finalizer):
		return Next{}
	case boundTo(s.Pod) != "":
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: s.Pod.UID})
	case len(s.Held) > 0:
		return Next{Step: ReleaseEntries, Node: s.Held[0].Node}
	}
	return Next{Step: FinishRecord}
}

func standing(s Situation) Next {
	node := boundTo(s.Pod)
	spec := s.Record.Spec
	if s.Workload.Exists {
		spec.Owner.UID = s.Workload.UID
	}
	spec.Reclaim = ptr.Deref(s.Workload.Reclaim, spec.Reclaim)
	h, held := heldOn(s.Held, node)
	if held {
		// A cluster that has come to have a second family gives it to those that had one.
		if addrs, ok := onePerFamily(h.Addrs, s.Pod); ok && len(addrs) > len(spec.IPs) && all(addrs, spec.IPs) {
			spec.IPs = address.Strings(addrs)
		}
		if len(spec.IPs) > 0 && all(h.Addrs, spec.IPs) {
			spec.NodeName = node
		}
	}
	if !sameSpec(spec, s.Record.Spec) || !slices.Contains(s.Record.Finalizers, v1alpha1.Finalizer) {
		return Next{Step: UpdateRecord, Spec: spec}
	}
	if reclaimable(s, spec.Reclaim) {
		return expire(s, spec.Reclaim.TTL.Duration)
	}
	// What the identity holds beside its record is what a claim left behind. Only once the pod is
	// bound is it sure which of them counts.
	if node != "" && node == spec.NodeName {
		for _, h := range s.Held {
			if h.Node != node {
				return Next{Step: ReleaseEntries, Node: h.Node}
			}
		}
		if beside := besides(h.Addrs, spec.IPs); held && len(beside) > 0 && Spares(s.Pod, beside) {
			return Next{Step: ReleaseEntries, Node: node, Addrs: beside}
		}
	}
	if node != "" {
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: s.Pod.UID})
	}
	return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved})
}

func status(s Situation, want v1alpha1.FixedIPStatus) Next {
	if have := s.Record.Status; have.Phase == want.Phase && have.PodUID == want.PodUID && have.ExpiresAt.Equal(want.ExpiresAt) {
		return Next{}
	}
	return Next{Step: UpdateStatus, Status: want}
}

func boundTo(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Spec.NodeName
}

func heldOn(held []ledger.Holding, node string) (ledger.Holding, bool) {
	for _, h := range held {
		if h.Node == node && node != "" {
			return h, true
		}
	}
	return ledger.Holding{}, false
}

// onePerFamily chooses one address of each family among those that a pod holds on its node. Where
// there are several of one family, somebody has written there by hand, and it is the one that the
// pod runs with; ok is false while that is not known.
func onePerFamily(addrs []netip.Addr, pod *corev1.Pod) (chosen []netip.Addr, ok bool) {
	for _, f := range address.Families {
		var family []netip.Addr
		for _, a := range addrs {
			if address.Of(a) == f {
				family = append(family, a)
			}
		}
		if len(family) > 1 {
			family = slices.DeleteFunc(family, func(a netip.Addr) bool { return !runsWith(pod, a) })
			if len(family) != 1 {
				return nil, false
			}
		}
		chosen = append(chosen, family...)
	}
	return chosen, true
}

// all tells whether every one of the given texts is among the addresses.
func all(addrs []netip.Addr, ips []string) bool {
	return !slices.ContainsFunc(ips, func(ip string) bool { return !slices.Contains(address.Strings(addrs), ip) })
}

// besides are the held addresses that a record does not name although it names one of the family:
// the agent would choose between the two as it pleases.
func besides(held []netip.Addr, ips []string) []netip.Addr {
	var found []netip.Addr
	for _, a := range held {
		sameFamily := slices.ContainsFunc(ips, func(ip string) bool {
			other, err := address.Parse(ip)
			return err == nil && address.Of(other) == address.Of(a)
		})
		if sameFamily && !slices.Contains(ips, a.String()) {
			found = append(found, a)
		}
	}
	return found
}

// Spares tells that a pod runs, and with none of the addresses. One whose addresses are not known
// yet may come to have any that its node's pool gives it.
func Spares(pod *corev1.Pod, addrs []netip.Addr) bool {
	return pod != nil && len(pod.Status.PodIPs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return runsWith(pod, a) })
}

func runsWith(pod *corev1.Pod, a netip.Addr) bool {
	return slices.Contains(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
}

func sameSpec(a, b v1alpha1.FixedIPSpec) bool {
	return slices.Equal(a.IPs, b.IPs) && a.NodeName == b.NodeName && a.Owner == b.Owner && a.PodName == b.PodName && a.Reclaim == b.Reclaim
}
