package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
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
}

// Workload is the owner of an identity.
type Workload struct {
	v1alpha1.OwnerReference
	// Exists tells whether there is an object of that kind and name. UID is then its UID.
	Exists bool
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
	// UpdateRecord brings the spec of the FixedIP up to date.
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
	// Node is where entries are to be released, for ReleaseEntries.
	Node string
}

// Decide finds the next step.
//
// A record is made when the pod is bound, and not before: two claims for one pod are possible (a
// scheduler died between claim and bind, its successor read an old cache), and the bind decides
// which of them counts. The other is released. An address is taken from its identity only when the
// workload is gone and the pod is gone too: whoever deletes a StatefulSet and keeps its pods means
// to keep their addresses.
func Decide(s Situation) Next {
	switch {
	case s.Record == nil:
		return withoutRecord(s)
	case s.Record.DeletionTimestamp != nil:
		return releasing(s)
	case !s.Workload.Exists && s.Pod == nil:
		return Next{Step: DeleteRecord}
	}
	return standing(s)
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
	return Next{Step: CreateRecord, Spec: v1alpha1.FixedIPSpec{
		IPs:      address.Strings(h.Addrs),
		NodeName: h.Node,
		Owner:    s.Workload.OwnerReference,
		PodName:  s.Pod.Name,
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
	if h, ok := heldOn(s.Held, node); ok {
		if len(spec.IPs) == 0 {
			spec.IPs = address.Strings(h.Addrs)
		}
		if slices.Equal(spec.IPs, address.Strings(h.Addrs)) {
			spec.NodeName = node
		}
	}
	if !sameSpec(spec, s.Record.Spec) {
		return Next{Step: UpdateRecord, Spec: spec}
	}
	// What the identity holds beside its record is what a claim left behind. Only once the pod is
	// bound is it sure which of them counts.
	if node != "" && node == spec.NodeName {
		for _, h := range s.Held {
			if h.Node != node {
				return Next{Step: ReleaseEntries, Node: h.Node}
			}
		}
	}
	if node != "" {
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: s.Pod.UID})
	}
	return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved})
}

func status(s Situation, want v1alpha1.FixedIPStatus) Next {
	if s.Record.Status == want {
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

func sameSpec(a, b v1alpha1.FixedIPSpec) bool {
	return slices.Equal(a.IPs, b.IPs) && a.NodeName == b.NodeName && a.Owner == b.Owner && a.PodName == b.PodName
}
