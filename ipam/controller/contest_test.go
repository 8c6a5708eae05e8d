package controller

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
)

// What can't be taken from a name yet: what another pod has, and what its agent may have given to another.
func TestContests(t *testing.T) {
	const owner, silence = "db/mysql-0", time.Minute
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	a := netip.MustParseAddr("10.0.1.6")
	since := func(age time.Duration) pool.Entry {
		return pool.Entry{Kind: pool.Owned, Purpose: pool.ForWorkload, Owner: owner, Workload: "db/StatefulSet/mysql", Since: now.Add(-age).Unix()}
	}
	node := func(ready corev1.ConditionStatus, age time.Duration) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(now.Add(-age))},
		}}}
	}
	up := node(corev1.ConditionTrue, time.Hour)
	const until = "the agent of node n has not reported since 10.0.1.6, which was for anybody, was given to this pod, and may have given it to another; it is waited for until "
	for name, c := range map[string]struct {
		entry pool.Entry
		// used is who has the address, as the agent said after it could know whose it is; reports: it said something then.
		used    string
		reports bool
		node    *corev1.Node
		want    string
	}{
		"it was claimed":                {entry: pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), node: up},
		"its pod has it":                {entry: since(time.Second), used: owner, reports: true, node: up},
		"another has it":                {entry: since(time.Hour), used: "db/other-0", node: up, want: "the agent of node n lists 10.0.1.6 as used by db/other-0, which had it before the agent knew whose it is; it is waited for until that pod is gone"},
		"one of another namespace does": {entry: since(time.Hour), used: "web/other-0", node: up, want: "the agent of node n lists 10.0.1.6 as used by a pod of another namespace, which had it before the agent knew whose it is; it is waited for until that pod is gone"},
		"the agent may not know":        {entry: since(time.Second), node: up, want: until + "2026-11-24T12:01:59Z at the latest"},
		"or have said":                  {entry: since(2*silence - time.Second), node: up, want: until + "2026-11-24T12:00:01Z at the latest"},
		"it would have":                 {entry: since(2 * silence), node: up},
		"it has":                        {entry: since(time.Second), reports: true, node: up},
		"its node was away":             {entry: since(time.Hour), node: node(corev1.ConditionTrue, silence), want: until + "2026-11-24T12:01:00Z at the latest"},
		"its node is away":              {entry: since(time.Hour), node: node(corev1.ConditionUnknown, time.Hour), want: "node n is not heard of, and its agent may not know whose 10.0.1.6 is; it is waited for until it is back, or deleted"},
		"its node is gone":              {entry: since(time.Second)},
	} {
		builder := fake.NewClientBuilder().WithScheme(kinds)
		if c.node != nil {
			builder = builder.WithObjects([]client.Object{c.node}...)
		}
		r := &recordReconciler{ledger: ledger.New(), cached: builder.Build(), clock: clocktesting.NewFakeClock(now), silence: silence}
		n := pool.Node{Name: "n", UID: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{a: c.entry}, Used: map[netip.Addr]string{}}
		if c.used != "" && !c.reports {
			n.Used[a] = c.used
		}
		r.ledger.SetNode(n)
		if c.reports {
			n.Used = map[netip.Addr]string{a.Next(): "db/other-1"}
			if c.used != "" {
				n.Used[a] = c.used
			}
			r.ledger.SetNode(n)
		}
		var want []plan.Contest
		if c.want != "" {
			want = []plan.Contest{{Addr: a, User: c.used, Why: c.want}}
		}
		got, err := r.contests(t.Context(), owner, r.ledger.Held(owner))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// Why an address does not go back is said on its FixedIP and on the pod that has it, to each in words that it may read.
func TestContestedIsTold(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "other-0"}}
	contested := []plan.Contest{
		{Addr: netip.MustParseAddr("10.0.1.6"), User: "web/other-0", Why: "another has it"},
		{Addr: netip.MustParseAddr("10.0.1.7"), User: "web/gone-0", Why: "one that is gone has it"},
		{Addr: netip.MustParseAddr("10.0.1.8"), Why: "somebody may have it"},
	}
	onPod := "Warning AddressOfAnother Runs with 10.0.1.6, which is kept for a pod of another namespace and can't go back before this pod is gone; delete it"
	for name, c := range map[string]struct {
		record *v1alpha1.FixedIP
		want   []string
	}{
		"with a record":    {&v1alpha1.FixedIP{}, []string{"Warning ReleaseWaits Its address does not go back yet: another has it", onPod}},
		"without a record": {nil, []string{onPod}},
	} {
		recorder := events.NewFakeRecorder(10)
		r := &recordReconciler{cached: fake.NewClientBuilder().WithScheme(kinds).WithObjects(other).Build(), events: recorder}
		if err := r.tellContested(t.Context(), "db/mysql-0", plan.Situation{Record: c.record, Contested: contested}, "another has it"); err != nil {
			t.Fatal(err)
		}
		close(recorder.Events)
		var got []string
		for e := range recorder.Events {
			got = append(got, e)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}
