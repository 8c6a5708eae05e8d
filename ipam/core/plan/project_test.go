package plan_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

// place is the home of an address on node-1.
func place(change ...func(*plan.Place)) []plan.Place {
	p := plan.Place{Addr: addr("10.0.1.6"), Home: "node-1"}
	for _, c := range change {
		c(&p)
	}
	return []plan.Place{p}
}

func entry(e pool.Entry) func(*plan.Place) { return func(p *plan.Place) { p.Entry = &e } }

// running is a pod that runs with its address.
func running(ips ...string) *corev1.Pod {
	p := podOn("node-1", ips...)
	p.Status.Phase = corev1.PodRunning
	return p
}

// optedOut is the pod with the word that it is to have no fixed address.
func optedOut(p *corev1.Pod) *corev1.Pod {
	p.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
	return p
}

// A record whose addresses are in no pool gets its entries, unless somebody may have them.
func TestProjection(t *testing.T) {
	project := plan.Next{Step: plan.ProjectEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6")}}
	waiting := func(reason, message string) plan.Next {
		return plan.Next{
			Step: plan.UpdateStatus,
			Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Conditions: []metav1.Condition{{
				Type: "Projected", Status: metav1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.Time{Time: now},
			}}},
			At: now.Add(10 * time.Second),
		}
	}
	// runs is waiting for a pod that runs on the node.
	runs := func(reason, message string) plan.Next {
		n := waiting(reason, message)
		n.Status.Phase, n.Status.PodUID = v1alpha1.PhaseInUse, "pod-1"
		return n
	}
	stands := []metav1.Condition{{Type: "Projected", Status: metav1.ConditionTrue, Reason: "EntriesStand", Message: "Every address has its entry in the pool of a node", LastTransitionTime: metav1.Time{Time: now}}}
	without := kept(spec.Reclaim)
	both := kept(spec.Reclaim)
	both.Spec.IPs = append(both.Spec.IPs, "fd00::6")
	dual := func(home string) []plan.Place { return append(place(), plan.Place{Addr: addr("fd00::6"), Home: home}) }
	restored := record(func(r *v1alpha1.FixedIP) {
		r.Status, r.Annotations = v1alpha1.FixedIPStatus{}, map[string]string{v1alpha1.AnnotationUID: "of-another-life"}
	})
	orphaned := spec.DeepCopy()
	orphaned.Owner.UID = ""
	for name, c := range map[string]struct {
		situation plan.Situation
		want      plan.Next
	}{
		"nobody has it":                  {plan.Situation{Record: without, Places: place(), Workload: standing}, project},
		"the pod waits":                  {plan.Situation{Record: without, Places: place(), Pod: podOn(""), Workload: standing}, project},
		"the pod runs, its entry went":   {plan.Situation{Record: record(), Places: place(), Pod: running("10.0.1.6"), Workload: standing}, project},
		"the pod runs elsewhere":         {plan.Situation{Record: record(), Places: place(), Pod: podOn("node-2", "10.0.2.9"), Workload: standing}, project},
		"its time to live passes":        {plan.Situation{Record: kept(policy("Delete", "Retain", time.Hour)), Places: place(), Workload: gone}, project},
		"its workload is gone":           {plan.Situation{Record: kept(policy("Delete", "Retain", 0)), Places: place(), Workload: gone}, plan.Next{Step: plan.DeleteRecord}},
		"it is being deleted":            {plan.Situation{Record: record(deleting), Workload: standing}, plan.Next{Step: plan.FinishRecord}},
		"its owner was cleared":          {plan.Situation{Record: record(), Places: place(entry(pool.Entry{})), Pod: running("10.0.1.6"), Workload: standing}, project},
		"an entry for it is on its way":  {plan.Situation{Record: without, Places: place(entry(pool.Owned("db", "mysql-0", "StatefulSet", "mysql"))), Workload: standing}, project},
		"both families on one node":      {plan.Situation{Record: both, Places: dual("node-1"), Workload: standing}, plan.Next{Step: plan.ProjectEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.6"), addr("fd00::6")}}},
		"one family stands":              {plan.Situation{Record: both, Places: dual("node-1"), Held: []ledger.Holding{held("node-1", "fd00::6")}, Workload: standing}, project},
		"all stands, and nobody said so": {plan.Situation{Record: without, Places: place(), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Workload: standing}, plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Conditions: stands}}},

		"restored before its workload": {plan.Situation{Record: restored, Places: place(), Workload: gone}, plan.Next{Step: plan.UpdateRecord, Spec: *orphaned}},
		"then it stands by itself": {plan.Situation{Record: record(func(r *v1alpha1.FixedIP) { r.Spec, r.Status = *orphaned, v1alpha1.FixedIPStatus{} }), Places: place(), Workload: plan.Workload{OwnerReference: unborn}},
			project},
		"and the node is told where it has it": {plan.Situation{Record: record(func(r *v1alpha1.FixedIP) { r.Spec, r.Spec.NodeName, r.Status = *orphaned, "", v1alpha1.FixedIPStatus{} }), Held: []ledger.Holding{held("node-1", "10.0.1.6")}, Places: place(), Workload: plan.Workload{OwnerReference: unborn}},
			plan.Next{Step: plan.UpdateRecord, Spec: *orphaned}},

		"its home is not there": {plan.Situation{Record: without, Places: place(func(p *plan.Place) { p.Home = "" }), Workload: standing},
			waiting("NoHome", "10.0.1.6 is in no node's subnet, or in those of two; it waits for the one node that has it")},
		"a dynamic entry": {plan.Situation{Record: without, Places: place(entry(pool.Entry{})), Workload: standing},
			waiting("MayBeInUse", "10.0.1.6 is a dynamic entry in the pool of node node-1, which any pod may be using; it can be had when the agent there has given it back")},
		"another pod's entry": {plan.Situation{Record: without, Places: place(entry(pool.Entry{Owner: "db/other-0"})), Workload: standing},
			waiting("OwnedByPod", "10.0.1.6 on node node-1 belongs to pod db/other-0; remove one of the two")},
		"the router's": {plan.Situation{Record: without, Places: place(entry(pool.Entry{Owner: "router"})), Workload: standing},
			waiting("OwnedByNode", `10.0.1.6 on node node-1 is kept for "router"; delete the FixedIP and ask for another address`)},
		"used by another pod": {plan.Situation{Record: without, Places: place(func(p *plan.Place) { p.User = "db/other-0" }), Workload: standing},
			waiting("UsedByPod", "10.0.1.6 on node node-1 is used by pod db/other-0; it can be had when that pod is gone and the agent no longer lists it")},
		"named by a record that comes first": {plan.Situation{Record: without, Places: place(func(p *plan.Place) { p.Rival = "db/older" }), Workload: standing},
			waiting("HeldByRecord", "10.0.1.6 is named by FixedIP db/older too, which comes first; delete one of the two")},
		"it rests": {plan.Situation{Record: without, Places: place(entry(pool.Released(now))), Workload: standing},
			waiting("Resting", "10.0.1.6 on node node-1 was released at 1970-01-01T00:16:40Z and rests; it can be had when it has cooled down")},
		"it rests, and its pod waits": {plan.Situation{Record: without, Places: place(entry(pool.Released(now))), Pod: podOn(""), Workload: standing},
			waiting("Resting", "10.0.1.6 on node node-1 was released at 1970-01-01T00:16:40Z and rests; it can be had when it has cooled down")},
		"it rests, and its pod runs with it": {plan.Situation{Record: record(), Places: place(entry(pool.Released(now))), Pod: running("10.0.1.6"), Workload: standing},
			project},
		"it rests, and its pod runs with it, by another name's word": {plan.Situation{Record: without, Places: place(entry(pool.Released(now)), func(p *plan.Place) { p.User = "db/other-0" }), Pod: running("10.0.1.6"), Workload: standing},
			runs("UsedByPod", "10.0.1.6 on node node-1 is used by pod db/other-0; it can be had when that pod is gone and the agent no longer lists it")},
		"it rests, and its pod that runs with it has another there": {plan.Situation{Record: without, Places: place(entry(pool.Released(now))), Held: []ledger.Holding{held("node-1", "10.0.1.7")}, Pod: running("10.0.1.6"), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}, At: now.Add(10 * time.Second)}},
		"it is on its way to another node": {plan.Situation{Record: without, Places: place(entry(pool.Away("node-2", "db/mysql-0"))), Workload: standing},
			plan.Next{At: now.Add(10 * time.Second)}},
		"another pod took it along": {plan.Situation{Record: without, Places: place(entry(pool.Away("node-2", "db/other-0"))), Workload: standing},
			waiting("OwnedByPod", "10.0.1.6, at home on node node-1, belongs to pod db/other-0 and is away on another node; remove one of the two")},
		"its pod has another on the node": {plan.Situation{Record: without, Places: place(), Held: []ledger.Holding{held("node-1", "10.0.1.7")}, Pod: podOn("node-1", "10.0.1.7"), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, At: now.Add(10 * time.Second), Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1", Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionProjected, Status: metav1.ConditionFalse, Reason: "HoldsAnother", LastTransitionTime: metav1.NewTime(now),
				Message: "10.0.1.6 can't be its pod's on node node-1 beside 10.0.1.7, which the pool there has for it; delete the pod, and that goes back"}}}}},
		"its pod had another on the node, and is gone": {plan.Situation{Record: without, Places: place(), Held: []ledger.Holding{held("node-1", "10.0.1.7")}, Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"its pod had another on another node, and is gone": {plan.Situation{Record: without, Places: place(), Held: []ledger.Holding{held("node-2", "10.0.2.7")}, Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"what its pod has in its place goes while it waits": {plan.Situation{Record: record(), Places: place(), Held: []ledger.Holding{held("node-1", "10.0.1.7")}, Pod: podOn(""), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"and so does what it has on another node": {plan.Situation{Record: record(), Places: place(), Held: []ledger.Holding{held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"and what it has beside it": {plan.Situation{Record: record(), Places: place(), Held: []ledger.Holding{held("node-1", "10.0.1.6", "10.0.1.7")}, Pod: podOn(""), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-1", Addrs: []netip.Addr{addr("10.0.1.7")}}},
		"but not where its scheduler brings it to the recorded one": {plan.Situation{Record: without, Places: place(), Held: []ledger.Holding{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: standing},
			plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Conditions: stands}}},
		"nor where the recorded one is on its way": {plan.Situation{Record: without, Places: place(entry(pool.Away("node-3", "db/mysql-0"))), Held: []ledger.Holding{held("node-2", "10.0.2.7")}, Away: awayAt("node-3"), Pod: podOn(""), Workload: standing},
			plan.Next{At: now.Add(10 * time.Second)}},
		"nor where that may come in its place":   {plan.Situation{Record: record(reassigns), Places: place(), Held: []ledger.Holding{held("node-2", "10.0.2.7")}, Pod: podOn(""), Workload: standing}, project},
		"nor what a pod counts on that is bound": {plan.Situation{Record: record(), Places: place(), Held: []ledger.Holding{held("node-2", "10.0.2.7")}, Pod: podOn("node-2"), Workload: standing}, project},
		"a pod that opts out is to have none of it, though the recorded one is held": {plan.Situation{Record: without, Places: place(), Held: []ledger.Holding{held("node-1", "10.0.1.6"), held("node-2", "10.0.2.7")}, Pod: optedOut(podOn("")), Workload: standing},
			plan.Next{Step: plan.ReleaseEntries, Node: "node-2", Addrs: []netip.Addr{addr("10.0.2.7")}}},
		"the families have two homes": {plan.Situation{Record: both, Places: dual("node-2"), Workload: standing},
			waiting("TwoHomes", "its addresses 10.0.1.6, fd00::6 are in the subnets of two nodes, node-1 and node-2, and no pod can be on both; delete it and ask for addresses of one node")},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, plan.Decide(at(c.situation)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

// What was said once is not said again, and what others say is left alone.
func TestConditionsAreQuiet(t *testing.T) {
	s := plan.Situation{Record: kept(spec.Reclaim), Places: place(entry(pool.Entry{})), Workload: standing}
	s.Record.Status.Conditions = []metav1.Condition{{Type: "Mismatch", Status: metav1.ConditionTrue, Reason: "Other"}}
	next := plan.Decide(at(s))
	if next.Step != plan.UpdateStatus || len(next.Status.Conditions) != 2 || next.Status.Conditions[0] != s.Record.Status.Conditions[0] {
		t.Fatalf("%+v", next)
	}
	s.Record.Status = next.Status
	s.Now = now.Add(time.Hour)
	if again := plan.Decide(s); again.Step != plan.Nothing || !again.At.Equal(now.Add(time.Hour+10*time.Second)) {
		t.Errorf("an hour later: %+v", again)
	}
}

// An entry is written where the address is free, and nowhere else.
func TestProject(t *testing.T) {
	mine := pool.Owned("db", "mysql-0", "StatefulSet", "mysql")
	n := node(map[string]pool.Entry{
		"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.3": {Owner: "db/other-0"}, "10.0.1.4": pool.Released(now), "10.0.1.5": mine,
	}, "10.0.1.2", "10.0.1.6")
	// none has nothing for the pod.
	none := node(map[string]pool.Entry{"10.0.1.4": pool.Released(now), "10.0.1.8": pool.Released(now)}, "10.0.1.8")
	n.Used[addr("10.0.1.6")] = "db/other-1"
	for a, c := range map[string]struct {
		own   bool
		taken bool
		edits int
	}{
		"10.0.1.1":   {own: true, edits: 1},
		"10.0.1.2":   {own: true, taken: true},
		"10.0.1.3":   {taken: true},
		"10.0.1.4":   {taken: true},
		"10.0.1.5":   {},
		"10.0.1.6":   {taken: true},
		"10.0.9.200": {taken: true},
	} {
		edits, err := plan.Project(n, []netip.Addr{addr(a)}, mine, func(netip.Addr) bool { return c.own }, now)
		if len(edits) != c.edits || errors.Is(err, pool.ErrTaken) != c.taken {
			t.Errorf("%s: %v, %v", a, edited(edits), err)
		}
	}
	// The agent lists the second, and not for the pod.
	for a, want := range map[string]int{"10.0.1.4": 1, "10.0.1.8": 0} {
		edits, err := plan.Project(none, []netip.Addr{addr(a)}, mine, func(netip.Addr) bool { return true }, now)
		if len(edits) != want || errors.Is(err, pool.ErrTaken) != (want == 0) {
			t.Errorf("%s, which rests, and that the pod runs with: %v, %v", a, edited(edits), err)
		}
		if _, err := plan.Project(none, []netip.Addr{addr(a)}, mine, func(netip.Addr) bool { return false }, now); !errors.Is(err, pool.ErrTaken) {
			t.Errorf("%s, which rests, and that the pod does not have: %v", a, err)
		}
	}
	if edits, err := plan.Project(n, []netip.Addr{addr("10.0.1.4")}, mine, func(netip.Addr) bool { return true }, now); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("one that rests beside another of the pod: %v, %v", edited(edits), err)
	}
	if edits, err := plan.Project(n, []netip.Addr{addr("10.0.1.1")}, mine, func(netip.Addr) bool { return false }, now); !errors.Is(err, pool.ErrTaken) {
		t.Errorf("a dynamic entry that another pod may have: %v, %v", edited(edits), err)
	}
}

func TestPrecedes(t *testing.T) {
	at := func(name string, sec int64) *v1alpha1.FixedIP {
		return &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, CreationTimestamp: metav1.Unix(sec, 0)}}
	}
	none := func(*v1alpha1.FixedIP) bool { return false }
	for name, c := range map[string]struct {
		a, b  *v1alpha1.FixedIP
		holds func(*v1alpha1.FixedIP) bool
		want  bool
	}{
		"the older":                  {at("b", 1), at("a", 2), none, true},
		"not the younger":            {at("b", 2), at("a", 1), none, false},
		"the first of the alphabet":  {at("a", 1), at("b", 1), none, true},
		"the one whose entry stands": {at("b", 2), at("a", 1), func(f *v1alpha1.FixedIP) bool { return f.Name == "b" }, true},
	} {
		if got := plan.Precedes(c.a, c.b, c.holds); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The entry of a pod without a workload names none, so that nobody takes it for somebody else's.
func TestEntryOf(t *testing.T) {
	r := record()
	if got, want := plan.EntryOf(r), pool.Owned("db", "mysql-0", "StatefulSet", "mysql"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}
	if got, want := plan.EntryOf(r), pool.Alone("db", "mysql-0"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
