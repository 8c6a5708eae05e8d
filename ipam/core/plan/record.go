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

// Decide finds the next step.
//
// A record is made when the pod runs with what was claimed for it, and not before: two claims for
// one pod are possible (a scheduler died between claim and bind, its successor read an old cache),
// and the bind decides which of them counts; and an agent may not have seen the claim (see Verify).
// Where it was asked for, there is nothing to wait for. The other claim is released. An address is
// taken from its identity only when the pod is gone too: whoever deletes a StatefulSet and keeps its
// pods means to keep their addresses. A pod that comes back under the name before the record is
// deleted has its address. A record whose owner has no UID was made by a person, beforehand: its
// workload is not gone, it has never been there. The same goes for one that was restored
// from a backup before its workload.
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
	reclaim := ptr.Deref(s.Workload.Reclaim, identity.DefaultReclaim())
	switch {
	case s.Workload.OptsOut:
		if s.Guessed || mayHave(s.Pod, s.Held) || s.Pod != nil && !identity.OptsOut(s.Pod.Annotations) {
			return Next{}
		}
		return releaseAll(s)
	case !s.Workload.Exists && s.Guessed:
		// A person wrote them, for whoever comes under the name.
		return Next{}
	case !s.Workload.Exists && s.Pod == nil:
		return releaseAll(s)
	case !s.Workload.Exists:
		return Next{}
	case s.Pod == nil && s.Workload.Excludes && !s.Guessed && reclaim.WhenScaled == v1alpha1.Delete:
		// Its pod went before it ran, and no other is to come: nobody makes a record that could go.
		return releaseAll(s)
	}
	if next, ok := unannounce(s); s.Pod == nil && ok {
		return next
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
		Reclaim:  reclaim,
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
// which may be none, and what is announced on the pod's own node while the pod does not run. An address
// that was moved is taken where it is; then its home says that it leaves, its way there is barred, and only
// then is it free to rest at home: whoever was about to bring it there fails (see pool.Move). One watch shows
// all pools, in the order of their writes: what is seen barred while the home is seen to say that it leaves
// stays so until the home is written to. As long as the agent there lists it, its pod may run there, of which the agent
// at home knows nothing: it does not come home. What is contested stands. ok is false where nothing else is left.
func release(s Situation, but string) (next Next, ok bool) {
	for _, h := range s.Held {
		if h.Node != but && s.contest(h.Addrs) == "" {
			return Next{Step: ReleaseEntries, Node: h.Node}, true
		}
	}
	for _, h := range s.Arriving {
		switch {
		case h.Node != boundTo(s.Pod):
			return Next{Step: ReleaseEntries, Node: h.Node}, true
		case Spares(s.Pod, h.Addrs):
			// What the pod has there besides is another matter. One that does not run yet may come to have
			// what is announced, and is waited for.
			return Next{Step: ReleaseEntries, Node: h.Node, Addrs: h.Addrs}, true
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
		case a.Listed && (s.Record == nil || s.Record.DeletionTimestamp == nil || !Overdue(s)):
			return Next{At: s.Now.Add(lookAgain)}, true
		default:
			return Next{Step: ReleaseHome, Node: a.Home, From: a.At, Addrs: a.Addrs, Generation: a.Generation}, true
		}
	}
	return Next{}, false
}

// unannounce takes an announcement back that was left behind by a pod that is gone: a move that was only announced
// binds nobody, and whoever comes next may go elsewhere or not come at all.
func unannounce(s Situation) (next Next, ok bool) {
	for _, h := range s.Arriving {
		if announced := heldAny(s.Held, h.Addrs); len(announced) > 0 {
			return Next{Step: ReleaseEntries, Node: h.Node, Addrs: announced}, true
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
	why := s.contestBut(but)
	switch {
	case why != "" && !Overdue(s):
		next := untilOverdue(s)
		next.At, next.Why = earlier(next.At, s.Now.Add(lookAgain)), why
		return next
	case len(s.Arriving) > 0 && !Overdue(s):
		// It is announced on the pod's own node, and the pod does not run yet.
		return untilOverdue(s)
	case node == "" || replaced(s):
	case holds:
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing, PodUID: s.Pod.UID})
	case !Spares(s.Pod, namedBy(s.Record)) && !Overdue(s):
		// The node may be gone, and the pod may stay for ever.
		return untilOverdue(s)
	}
	return Next{Step: FinishRecord}
}

// untilOverdue waits with a record that is being deleted for its pod, or for what is in the way, but not for ever.
func untilOverdue(s Situation) Next {
	want := v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReleasing}
	if s.Pod != nil {
		want.PodUID = s.Pod.UID
	}
	next := status(s, want)
	if s.Deadline > 0 {
		next.At = s.Record.DeletionTimestamp.Add(s.Deadline)
	}
	return next
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

// restored reports whether a FixedIP was restored from a backup. A new FixedIP, whose controller may have been killed
// right after it was created, has no UID annotation yet.
func restored(r *v1alpha1.FixedIP) bool {
	uid, ok := r.Annotations[v1alpha1.AnnotationUID]
	return ok && uid != string(r.UID)
}

// unmarked reports whether a FixedIP lacks the finalizer or the UID annotation.
func unmarked(r *v1alpha1.FixedIP) bool {
	return r.Annotations[v1alpha1.AnnotationUID] != string(r.UID) || !slices.Contains(r.Finalizers, v1alpha1.Finalizer)
}

func standing(s Situation) Next {
	node := boundTo(s.Pod)
	spec := s.Record.Spec
	switch {
	case s.Workload.Exists:
		spec.Owner.UID = s.Workload.UID
	case restored(s.Record) && s.Pod == nil:
		// The workload may be restored later, and then takes the FixedIP over. The owner's UID is one from before
		// the backup: with it the workload would count as deleted.
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
	if !sameSpec(spec, s.Record.Spec) || unmarked(s.Record) {
		return Next{Step: UpdateRecord, Spec: spec}
	}
	reclaims := reclaimable(s, spec.Reclaim)
	var expiry Next
	if reclaims {
		expiry = expire(s, spec.Reclaim.TTL.Duration)
		if why := s.contestBut(""); expiry.Step == DeleteRecord && why != "" {
			expiry = status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, ExpiresAt: s.Record.Status.ExpiresAt})
			expiry.At, expiry.Why = s.Now.Add(lookAgain), why
		} else if expiry.Step == DeleteRecord {
			return expiry
		}
	}
	if next, ok := supplanting(s, spec); ok {
		return next
	}
	if next, ok := unannounce(s); s.Pod == nil && ok {
		return next
	}
	// What is kept for a pod that may come back has to stand in a pool as well.
	at, addrs, in := projection(s)
	if in == nil && len(addrs) > 0 {
		return Next{Step: ProjectEntries, Node: at, Addrs: addrs}
	}
	next := settled(s, spec, h, held, reclaims, expiry)
	if in != nil || len(s.Contested) > 0 {
		next.At = earlier(next.At, s.Now.Add(lookAgain))
	}
	return next
}

// supplanting takes from a name what pools have for it in place of its recorded addresses: what a claim left behind whose
// pod has gone before it ran, or what was adopted for a pod that went meanwhile. Whoever comes would get that.
//
// A pod that is bound already counts on it: see settled. One that waits is not placed by it, except under Reassign, but
// by what is recorded if that is held elsewhere; and once it is bound there, settled takes the rest. One that opts out
// is to have nothing of all this.
func supplanting(s Situation, spec v1alpha1.FixedIPSpec) (next Next, ok bool) {
	waits := s.Pod != nil && !identity.OptsOut(s.Pod.Annotations)
	if boundTo(s.Pod) != "" || waits && cmp.Or(spec.Failover, s.Failover) == v1alpha1.Reassign {
		return Next{}, false
	}
	recorded := func(addrs []netip.Addr) bool { return all(addrs, spec.IPs) }
	elsewhere := slices.ContainsFunc(s.Held, func(h ledger.Holding) bool { return recorded(h.Addrs) }) ||
		slices.ContainsFunc(s.Away, func(a ledger.Absence) bool { return recorded(a.Addrs) })
	for _, h := range s.Held {
		left := address.Besides(h.Addrs, spec.IPs)
		if len(left) > 0 && s.contest(left) == "" && (!waits || !elsewhere || recorded(h.Addrs)) {
			return Next{Step: ReleaseEntries, Node: h.Node, Addrs: left}, true
		}
	}
	return Next{}, false
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
		if beside := address.Besides(h.Addrs, spec.IPs); len(beside) > 0 && Spares(s.Pod, beside) && s.contest(beside) == "" {
			return Next{Step: ReleaseEntries, Node: node, Addrs: beside}
		}
	}
	for _, h := range s.Arriving {
		// Only what is not bound yet moves. This pod runs without what was announced for it.
		if Spares(s.Pod, h.Addrs) {
			return Next{Step: ReleaseEntries, Node: h.Node, Addrs: h.Addrs}
		}
	}
	if node != "" {
		return status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: s.Pod.UID})
	}
	return afterGap(s, status(s, v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved}))
}

// Gap is how long a FixedIP is reported as in use after its pod is gone. A pod that restarts is back before that, and
// its FixedIP is written once instead of twice.
const Gap = 5 * time.Second

// afterGap delays the report that no pod has the addresses, unless the report says more than that.
func afterGap(s Situation, next Next) Next {
	due := s.Idle.Add(Gap)
	if s.Idle.IsZero() || !s.Now.Before(due) || next.Step != UpdateStatus || s.Record.Status.Phase != v1alpha1.PhaseInUse ||
		next.Status.Departed != nil || !sameConditions(s.Record.Status.Conditions, next.Status.Conditions) {
		return next
	}
	return Next{At: due}
}

// status brings the status to phase, pod and time of want, and the rest up to date.
func status(s Situation, want v1alpha1.FixedIPStatus) Next {
	want.Conditions, want.Departed = conditions(s), departed(s)
	have := s.Record.Status
	if have.Phase == want.Phase && have.PodUID == want.PodUID && have.ExpiresAt.Equal(want.ExpiresAt) && have.Departed == want.Departed && sameConditions(have.Conditions, want.Conditions) {
		return Next{}
	}
	return Next{Step: UpdateStatus, Status: want}
}
