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
)

// Situation is all that is known of one identity.
type Situation struct {
	// Record is its FixedIP; nil: there is none.
	Record *v1alpha1.FixedIP
	// Held are the entries of all pools that name it.
	Held []ledger.Holding
	// Arriving are the announcements of moves of its addresses, and Away what its addresses' homes say
	// of where they are.
	Arriving []ledger.Holding
	Away     []ledger.Absence
	// Pod is the pod of its name; nil: there is none.
	Pod *corev1.Pod
	// Workload is the object that the identity belongs to, as the record or the entries name it.
	Workload Workload
	// Failover is the policy of identities whose record says none.
	Failover v1alpha1.Failover
	// Asked tells whether the pod asks for the addresses that were claimed for it: it is to have
	// these and no others.
	Asked bool
	// Guessed: nobody has written down whose the entries are, and there is no record.
	Guessed bool
	// Places are the homes of the addresses that the record names; none while it is being deleted.
	Places []Place
	// Now is the time of the decision.
	Now time.Time
	// Deadline is how long after its deletion a record goes at the latest that no pool knows any more;
	// 0: it waits for its pod.
	Deadline time.Duration
}

// Workload is the owner of an identity.
type Workload struct {
	v1alpha1.OwnerReference
	// Exists tells whether there is an object of that kind and name. UID is then its UID.
	Exists bool
	// Reclaim is the policy that it asks for; nil where it does not exist or its words can't be
	// read, so that what is recorded stays.
	Reclaim *v1alpha1.ReclaimPolicy
	// Failover is the same of the policy for a node that can't take its pod.
	Failover *v1alpha1.Failover
	// Excludes tells whether it exists and has fewer replicas than would take in the identity.
	Excludes bool
	// OptsOut tells whether it exists and makes pods without fixed addresses.
	OptsOut bool
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
	// ProjectEntries writes the entries of recorded addresses that no pool has.
	ProjectEntries
	// DeleteRecord deletes the FixedIP of a workload that is gone. Look at the workload and the
	// pod live before.
	DeleteRecord
	// ReplaceRecord deletes the FixedIP of a pod that got other addresses on another node (Reassign),
	// so that one of those is made: the addresses of a FixedIP never change. Look at the pod live
	// before.
	ReplaceRecord
	// ReleaseEntries takes addresses from the identity, those announced for it too. Look at the pod
	// live before and after.
	ReleaseEntries
	// Depart marks at home that addresses are about to leave the node that they were moved to.
	Depart
	// Bar marks addresses as released on the node that they were moved to, whether or not they have
	// arrived.
	Bar
	// ReleaseHome ends the absence of addresses that are barred where they were. Look at the pod live
	// before.
	ReleaseHome
	// FinishRecord removes the finalizer: nothing in any pool names the identity any more.
	FinishRecord
)

func (s Step) String() string {
	return [...]string{"Nothing", "CreateRecord", "UpdateRecord", "UpdateStatus", "ProjectEntries", "DeleteRecord", "ReplaceRecord", "ReleaseEntries", "Depart", "Bar", "ReleaseHome", "FinishRecord"}[s]
}

// Next is what Decide found.
type Next struct {
	Step Step
	// Spec is the spec to write, for CreateRecord and UpdateRecord.
	Spec v1alpha1.FixedIPSpec
	// Status is the status to write, for UpdateStatus.
	Status v1alpha1.FixedIPStatus
	// Node is where entries are to be released, for ReleaseEntries, Depart, Bar and ReleaseHome, and Addrs
	// are which: all where there are none. For ProjectEntries they say which entries are to be written,
	// and where.
	Node  string
	Addrs []netip.Addr
	// From is the node that the addresses were away on, for Depart and ReleaseHome.
	From string
	// Generation is what that of Node has to be, for ReleaseHome.
	Generation int64
	// At is when the situation changes by time alone; zero: never.
	At time.Time
}

// Decide finds the next step.
//
// A record is made when the pod runs with what was claimed for it, and not before: two claims for
// one pod are possible (a scheduler died between claim and bind, its successor read an old cache),
// and the bind decides which of them counts; and an agent may not have seen the claim (see Verify).
// Where it was asked for, there is nothing to wait for. The other claim is released. An address is
// taken from its identity only when the pod is gone too: whoever deletes a StatefulSet and keeps its
// pods means to keep their addresses. A pod that comes back under the name before the record is
// deleted has its address. A record whose owner has no UID was made by a person, beforehand: its
// workload is not gone, it has never been there. The same goes for one that comes from a backup and
// is here before its workload: nobody has written its status yet.
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
	case s.Workload.OptsOut && (s.Pod == nil || identity.OptsOut(s.Pod.Annotations)):
		// Treated as deleted, except that a pod without a fixed address may be there already.
		return policy.WhenDeleted != v1alpha1.Retain && !mayHave(s.Pod, s.Held)
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

// mayHave tells whether a pod may have any of the addresses that its name holds.
func mayHave(pod *corev1.Pod, held []ledger.Holding) bool {
	h, ok := heldOn(held, boundTo(pod))
	return ok && !Spares(pod, h.Addrs)
}

// Overdue tells whether a record should have been gone by now.
func Overdue(s Situation) bool {
	return s.Record.DeletionTimestamp != nil && s.Deadline > 0 && !s.Now.Before(s.Record.DeletionTimestamp.Add(s.Deadline))
}

// namedBy are the addresses that a record names.
func namedBy(r *v1alpha1.FixedIP) []netip.Addr {
	var addrs []netip.Addr
	for _, k := range Keeps(r) {
		addrs = append(addrs, k.Addr)
	}
	return addrs
}

func withoutRecord(s Situation) Next {
	switch {
	case s.Workload.OptsOut:
		if s.Guessed || mayHave(s.Pod, s.Held) || s.Pod != nil && !identity.OptsOut(s.Pod.Annotations) {
			return Next{}
		}
		next, _ := release(s, "")
		return next
	case !s.Workload.Exists && s.Guessed:
		// A person wrote them, for whoever comes under the name.
		return Next{}
	case !s.Workload.Exists && s.Pod == nil:
		next, _ := release(s, "")
		return next
	case !s.Workload.Exists:
		return Next{}
	}
	h, ok := heldOn(s.Held, boundTo(s.Pod))
	if !ok {
		return Next{}
	}
	addrs, ok := onePerFamily(h.Addrs, s.Pod)
	if !ok || !s.Asked && !recordable(addrs, s.Pod) {
		return Next{}
	}
	return Next{Step: CreateRecord, Spec: v1alpha1.FixedIPSpec{
		IPs:      address.Strings(addrs),
		NodeName: h.Node,
		Owner:    s.Workload.OwnerReference,
		PodName:  s.Pod.Name,
		Reclaim:  ptr.Deref(s.Workload.Reclaim, identity.DefaultReclaim()),
		Failover: ptr.Deref(s.Workload.Failover, ""),
	}}
}

// beside is the situation without the absences of a record's own addresses: those end with the record.
func beside(s Situation, ips []string) Situation {
	s.Away = slices.DeleteFunc(slices.Clone(s.Away), func(a ledger.Absence) bool {
		return slices.ContainsFunc(a.Addrs, func(x netip.Addr) bool { return slices.Contains(ips, x.String()) })
	})
	return s
}

// release finds the next step of taking everything from an identity but what it holds on one node,
// which may be none. An address that was moved is taken where it is; then its home says that it leaves,
// its way there is barred, and only then is it free to rest at home: whoever was about to bring it there
// fails (see pool.Move). One watch shows all pools, in the order of their writes: what is seen barred
// while the home is seen to say that it leaves stays so until the home is written to. ok is false where
// nothing is left.
func release(s Situation, but string) (next Next, ok bool) {
	for _, held := range [][]ledger.Holding{s.Held, s.Arriving} {
		for _, h := range held {
			if h.Node != but {
				return Next{Step: ReleaseEntries, Node: h.Node}, true
			}
		}
	}
	kept, _ := heldOn(s.Held, but)
	for _, a := range s.Away {
		switch {
		case a.At == but && !slices.ContainsFunc(a.Addrs, func(x netip.Addr) bool { return !slices.Contains(kept.Addrs, x) }):
		case !a.Leaving:
			return Next{Step: Depart, Node: a.Home, From: a.At, Addrs: a.Addrs}, true
		case !a.Barred:
			return Next{Step: Bar, Node: a.At, Addrs: a.Addrs}, true
		default:
			return Next{Step: ReleaseHome, Node: a.Home, From: a.At, Addrs: a.Addrs, Generation: a.Generation}, true
		}
	}
	return Next{}, false
}

func releasing(s Situation) Next {
	switch {
	case !slices.Contains(s.Record.Finalizers, v1alpha1.Finalizer):
		return Next{}
	}
	// What the pod does not hold on its node is none of its business. What it does hold there goes
	// when it is gone, unless nothing of it is this record's: then the pod has other addresses, and
	// gets a record of those. Where it runs without what it holds, that goes at once.
	node, holds := boundTo(s.Pod), mayHave(s.Pod, s.Held)
	but := ""
	if holds {
		but = node
	}
	if next, ok := release(s, but); ok {
		return next
	}
	switch {
	case node == "" || replaced(s):
	case holds:
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: s.Pod.UID})
	case !Spares(s.Pod, namedBy(s.Record)) && !Overdue(s):
		// The node may be gone, and the pod may stay for ever.
		next := status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: s.Pod.UID})
		if s.Deadline > 0 {
			next.At = s.Record.DeletionTimestamp.Add(s.Deadline)
		}
		return next
	}
	return Next{Step: FinishRecord}
}

// replaced tells whether the pod holds, on the node that it is bound to, other addresses than those of
// the record, in each family of the record's, and runs with none of the record's.
func replaced(s Situation) bool {
	h, ok := heldOn(s.Held, boundTo(s.Pod))
	if !ok || len(s.Record.Spec.IPs) == 0 {
		return false
	}
	for _, ip := range s.Record.Spec.IPs {
		a, err := address.Parse(ip)
		if err != nil || slices.Contains(h.Addrs, a) || runsWith(s.Pod, a) ||
			!slices.ContainsFunc(h.Addrs, func(other netip.Addr) bool { return address.Of(other) == address.Of(a) }) {
			return false
		}
	}
	return true
}

func standing(s Situation) Next {
	node := boundTo(s.Pod)
	spec := s.Record.Spec
	switch {
	case s.Workload.Exists:
		spec.Owner.UID = s.Workload.UID
	case s.Record.Status.Phase == "" && s.Pod == nil:
		// Nobody has seen this one before, and its workload is not here: it comes from a backup, and
		// the UID from another life. A workload that comes takes it over.
		spec.Owner.UID = ""
	}
	spec.Reclaim = ptr.Deref(s.Workload.Reclaim, spec.Reclaim)
	spec.Failover = ptr.Deref(s.Workload.Failover, spec.Failover)
	h, held := heldOn(s.Held, node)
	if held {
		// A cluster that has come to have a second family gives it to those that had one.
		if addrs, ok := onePerFamily(h.Addrs, s.Pod); ok && len(addrs) > len(spec.IPs) && all(addrs, spec.IPs) && (s.Asked || recordable(addrs, s.Pod)) {
			spec.IPs = address.Strings(addrs)
		}
		if len(spec.IPs) > 0 && all(h.Addrs, spec.IPs) {
			spec.NodeName = node
		}
	} else if len(s.Held) == 1 && len(s.Arriving)+len(s.Away) == 0 && len(spec.IPs) > 0 && all(s.Held[0].Addrs, spec.IPs) {
		// The subnet has another node now. What moves alone follows its pod.
		spec.NodeName = s.Held[0].Node
	}
	if spec.NodeName == "" && node == "" {
		spec.NodeName = placed(s.Held, spec.IPs)
	}
	if !sameSpec(spec, s.Record.Spec) || !slices.Contains(s.Record.Finalizers, v1alpha1.Finalizer) {
		return Next{Step: UpdateRecord, Spec: spec}
	}
	reclaims := reclaimable(s, spec.Reclaim)
	var expiry Next
	if reclaims {
		if expiry = expire(s, spec.Reclaim.TTL.Duration); expiry.Step == DeleteRecord {
			return expiry
		}
	}
	// What is kept for a pod that may come back has to stand in a pool as well.
	at, addrs, in := projection(s)
	if in == nil && len(addrs) > 0 {
		return Next{Step: ProjectEntries, Node: at, Addrs: addrs}
	}
	next := settled(s, spec, h, held, reclaims, expiry)
	if in != nil {
		next.At = earlier(next.At, s.Now.Add(lookAgain))
	}
	return next
}

// lookAgain is how often it is looked whether what is in the way of an entry has gone: most of it
// goes without an event for the identity.
const lookAgain = 10 * time.Second

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// settled is what is left to do about a standing record whose spec is up to date.
func settled(s Situation, spec v1alpha1.FixedIPSpec, h ledger.Holding, held, reclaims bool, expiry Next) Next {
	node := boundTo(s.Pod)
	if reclaims {
		return expiry
	}
	if cmp.Or(spec.Failover, s.Failover) == v1alpha1.Reassign && replaced(s) {
		return Next{Step: ReplaceRecord}
	}
	// What the identity holds beside its record is what a claim or a move left behind. Only once the
	// pod is bound is it sure which of them counts. Where the pod's own node gives it nothing, that node
	// may be gone, and what is held elsewhere is all there is.
	if held && node == spec.NodeName {
		if next, ok := release(beside(s, spec.IPs), node); ok {
			return next
		}
		if beside := besides(h.Addrs, spec.IPs); len(beside) > 0 && Spares(s.Pod, beside) {
			return Next{Step: ReleaseEntries, Node: node, Addrs: beside}
		}
	}
	if node != "" {
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: s.Pod.UID})
	}
	return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved})
}

// status brings the status to phase, pod and time of want, and the conditions up to date.
func status(s Situation, want v1alpha1.FixedIPStatus) Next {
	want.Conditions = conditions(s)
	have := s.Record.Status
	if have.Phase == want.Phase && have.PodUID == want.PodUID && have.ExpiresAt.Equal(want.ExpiresAt) && sameConditions(have.Conditions, want.Conditions) {
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
	return slices.Equal(a.IPs, b.IPs) && a.NodeName == b.NodeName && a.Owner == b.Owner && a.PodName == b.PodName && a.Slot == b.Slot && a.Reclaim == b.Reclaim && a.Failover == b.Failover
}
