package plan

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
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
	// Contested are those of what is held that can't be taken from the identity yet.
	Contested []Contest
	// Pod is the pod of its name; nil: there is none.
	Pod *corev1.Pod
	// Idle is since when the identity is known to have no pod that is bound to a node; zero: that is not known.
	Idle time.Time
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
	// Why is why nothing is taken from the identity that should be; empty: nothing is in the way.
	Why string
}
