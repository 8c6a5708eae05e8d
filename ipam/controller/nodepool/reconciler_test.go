// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/test/controllertest"
)

// slowReader advances the clock by delay in every List.
type slowReader struct {
	client.Reader
	clock *clocktesting.FakeClock
	delay time.Duration
}

func (r slowReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	r.clock.Step(r.delay)
	return r.Reader.List(ctx, list, opts...)
}

// TestCooldownEndsDuringReconcile checks that a node is reconciled again at once if a cooldown ends during a pass. The
// cooldown is not over when the pass begins, so that the pass makes no edit. When the pass ends, the cooldown is over.
func TestCooldownEndsDuringReconcile(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s := newStage(t, controllertest.Objects(node), controllertest.Objects(node))
	s.fill(map[string]pool.Entry{"10.0.1.9": pool.CooldownEntry("", controllertest.Begin)}, nil)
	s.syncLedger()
	s.acknowledge()
	r := s.reconciler(func(o *Reconciler) {
		o.Watermark = nodepool.Watermark{Free: 1, Max: 1}
		o.Cached = slowReader{s.Cached, s.Clock, 5 * time.Second}
	})
	s.Clock.SetTime(controllertest.Begin.Add(9 * time.Second))
	result, err := r.Reconcile(t.Context(), source.ForName("n"))
	if err != nil || s.Patches > 0 || result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
		t.Fatalf("first reconcile: got RequeueAfter %v, error %v and %d patches; want a requeue within a second and no patch", result.RequeueAfter, err, s.Patches)
	}
	if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil || s.Patches != 1 {
		t.Errorf("second reconcile: got error %v and %d patches, want the one patch that ends the cooldown", err, s.Patches)
	}
}

// TestAgentWithoutReportIsAsked checks that an agent is asked for a report if its first report does not arrive within
// askAfter. Before the first report no address of the node is free. An agent that was not restarted when its
// CiliumNode was created again may never report without a request.
func TestAgentWithoutReportIsAsked(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	s := newStage(t, controllertest.Objects(node), controllertest.Objects(node))
	r := s.reconciler(nil)
	for _, step := range []struct {
		name  string
		used  map[string]string
		after time.Duration
		want  []string
	}{
		{name: "no report", want: nil},
		{name: "no report a second before askAfter", after: askAfter - time.Second, want: nil},
		{name: "no report after askAfter", after: time.Second, want: []string{"n"}},
		{name: "a report without addresses of the node itself, as from an agent that has just started", used: map[string]string{"10.0.1.2": "db/x"}, want: []string{"n", "n"}},
		{name: "a complete report", used: map[string]string{"10.0.1.2": "router"}, want: []string{"n", "n"}},
	} {
		s.fill(nil, step.used)
		s.syncLedger()
		s.Clock.Step(step.after)
		result, err := r.Reconcile(t.Context(), source.ForName("n"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.asked, step.want) {
			t.Errorf("%s: got barrier requests for nodes %v, want %v", step.name, s.asked, step.want)
		}
		if requeue := step.want == nil; requeue != (result.RequeueAfter > 0) {
			t.Errorf("%s: got RequeueAfter %v, want a requeue: %t", step.name, result.RequeueAfter, requeue)
		}
	}
}

// TestManagedFieldsAreRemovedOnce checks that a pool that needs no edit is written once to remove the managedFields of its
// CiliumNode: a write that fails is tried again, and fields that return after a successful write stay.
func TestManagedFieldsAreRemovedOnce(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s := newStage(t, controllertest.Objects(node), controllertest.Objects(node))
	s.fill(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.3": pool.ForOwner("router")}, map[string]string{"10.0.1.3": "router"})
	r := s.reconciler(func(o *Reconciler) {
		o.Watermark, o.StripManagedFields = nodepool.Watermark{Free: 1, Max: 9}, true
	})
	for _, step := range []struct {
		name    string
		failure error
		patches int
	}{
		{"the write fails", apierrors.NewForbidden(schema.GroupResource{Resource: "ciliumnodes"}, "n", errors.New("no")), 1},
		{"the write succeeds", nil, 1},
		{"the fields have returned", nil, 0},
	} {
		cn := s.node()
		cn.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		s.update(cn)
		s.syncLedger()
		s.OnPatch = func() (func(), error) { return func() {}, step.failure }
		before := s.Patches
		if _, err := r.Reconcile(t.Context(), source.ForName("n")); (err != nil) != (step.failure != nil) || s.Patches-before != step.patches {
			t.Errorf("%s: got %d patches and error %v, want %d patches and error %v", step.name, s.Patches-before, err, step.patches, step.failure)
		}
	}
}

// TestEntryOfAPodThatOptedOut checks that the controller "pool" writes the entry of a pod on a strict node if the pod
// opted out while a FixedIP with its name retains an address. The controller fixedip writes the entries of other pods
// with a FixedIP (model, seed 1973094). The FixedIP of a slot has another name than its holder.
func TestEntryOfAPodThatOptedOut(t *testing.T) {
	for name, c := range map[string]struct {
		record, ip  string
		annotations map[string]string
		want        []netip.Addr
	}{
		"a pod with a FixedIP": {record: "web-0", ip: "10.0.9.9"},
		"a pod that opted out": {record: "web-0", ip: "10.0.9.9", annotations: map[string]string{identity.AnnotationEnabled: "false"},
			want: []netip.Addr{netip.MustParseAddr("10.0.1.4")}},
		"the holder of a slot": {record: "web-slot-1", ip: "10.0.1.9"},
		"the holder of a slot that opted out": {record: "web-slot-1", ip: "10.0.1.9", annotations: map[string]string{identity.AnnotationEnabled: "false"},
			want: []netip.Addr{netip.MustParseAddr("10.0.1.4")}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0", UID: "1", Annotations: c.annotations}, Spec: corev1.PodSpec{NodeName: "n"}}
			record := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: c.record}, Spec: v1alpha1.FixedIPSpec{PodName: "web-0", IPs: []string{c.ip}}}
			objects := controllertest.Objects(node, pod, record)
			s := newStage(t, objects, objects)
			s.fill(nil, map[string]string{"10.0.1.2": "router"})
			s.syncLedger()
			s.Ledger.SetReservation(fixedips.ReservationOf(record))
			r := s.reconciler(func(o *Reconciler) { o.StrictNodes = labels.Everything() })
			if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil {
				t.Fatal(err)
			}
			n := ciliumpool.FromCiliumNode(s.node())
			if got := n.Owns("db/web-0"); !slices.Equal(got, c.want) {
				t.Errorf("got entries of the pod at %v, want %v; the entries of the pool are %+v", got, c.want, n.Entries)
			}
		})
	}
}

// TestReportShortages checks that each shortage of a pool is seen in an event. The events of one node must not be merged.
func TestReportShortages(t *testing.T) {
	const ends = "pods without a fixed IP may be unable to start before an IP is released"
	for name, c := range map[string]struct {
		subnets []string
		strict  bool
		want    []string
	}{
		"no shortage": {subnets: []string{"10.0.1.0/24", "fd00::/120"}},
		"one family is short": {subnets: []string{"10.0.1.0/30", "fd00::/120"}, want: []string{
			"The pool has too few free dynamic IPv4 entries, and no IPv4 subnet of the node has a free IP (podCIDRs: 10.0.1.0/30, fd00::/120); missing entries: 6; " + ends,
		}},
		"both families are short": {subnets: []string{"10.0.1.0/30", "fd00::/126"}, want: []string{
			"The pool has too few free dynamic IPv4 entries, and no IPv4 subnet of the node has a free IP (podCIDRs: 10.0.1.0/30, fd00::/126); missing entries: 6; " + ends,
			"The pool has too few free dynamic IPv6 entries, and no IPv6 subnet of the node has a free IP (podCIDRs: 10.0.1.0/30, fd00::/126); missing entries: 5; " + ends,
		}},
		"strict": {subnets: []string{"10.0.1.0/30", "fd00::/126"}, strict: true, want: []string{
			"The node is strict, and its subnets (10.0.1.0/30, fd00::/126) have too few free IPs for the node itself and its pods; missing IPs: 1; pods without an IP cannot start before an IP is released",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var recorded controllertest.MergedEvents
			n := pool.NodePool{Name: "n", PodCIDRs: c.subnets, HasPool: true}
			for _, subnet := range c.subnets {
				n.Subnets = append(n.Subnets, netip.MustParsePrefix(subnet))
			}
			s := &nodepool.State{Watermark: nodepool.Watermark{Free: 8, Max: 8}, Strict: c.strict, Reserved: func(netip.Addr) bool { return false }}
			(&Reconciler{Events: &recorded}).reportShortages(n, s)
			if diff := cmp.Diff(c.want, recorded.Notes); diff != "" {
				t.Errorf("notes of the events (-want +got): %s", diff)
			}
		})
	}
}

// TestCooldownForWaitingPod checks that a cooldown lasts for two resyncs while the pod from which the address was released
// has not reported an IP on the node. That pod may have been bound because of the entry, or the agent may have given it the
// address, even if the pod opted out. No cooldown ends while the node is not ready, since a pod that was deleted by force
// may still run there with the address. Nor does a cooldown end while another node still has the address.
func TestCooldownForWaitingPod(t *testing.T) {
	optedOut := map[string]string{identity.AnnotationEnabled: "false"}
	for name, c := range map[string]struct {
		annotations map[string]string
		after       time.Duration
		// notReady is true if the node is not ready. Otherwise readySince is the time at which the node became ready.
		notReady   bool
		readySince time.Time
		// otherEntry is the entry of the address in the pool of another node; nil: there is none. used is true if the agent
		// of that node reports the address as used.
		otherEntry *pool.Entry
		used       bool
		// edits is the number of edits that end the cooldown.
		edits int
		// recheck is true if the cooldown is checked again without an event.
		recheck bool
	}{
		"within two resyncs":                       {after: time.Minute},
		"after two resyncs":                        {after: 10 * time.Minute, edits: 1},
		"opted out, within two resyncs":            {annotations: optedOut, after: time.Minute},
		"opted out, after two resyncs":             {annotations: optedOut, after: 10 * time.Minute, edits: 1},
		"the node is not ready":                    {annotations: optedOut, after: time.Hour, notReady: true},
		"the node has not been ready long enough":  {annotations: optedOut, after: time.Hour, readySince: controllertest.Begin.Add(time.Hour - 9*time.Second)},
		"the node is ready for the whole cooldown": {annotations: optedOut, after: time.Hour, readySince: controllertest.Begin.Add(time.Hour - 10*time.Second), edits: 1},
		"another pool has a cooldown entry":        {annotations: optedOut, after: time.Hour, otherEntry: ptr.To(pool.CooldownEntry("", controllertest.Begin)), recheck: true},
		"another agent reports the address":        {annotations: optedOut, after: time.Hour, used: true, recheck: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", Annotations: c.annotations}, Spec: corev1.PodSpec{NodeName: "n"}}
			status := corev1.ConditionTrue
			if c.notReady {
				status = corev1.ConditionUnknown
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(c.readySince)}}
			s := newStage(t, controllertest.Objects(), controllertest.Objects(node, pod))
			s.fill(map[string]pool.Entry{"10.0.1.9": pool.CooldownEntry("db/mysql-0", controllertest.Begin)}, nil)
			s.syncLedger()
			other := pool.NodePool{Name: "m", UID: "m", Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}}
			if c.otherEntry != nil {
				other.Entries[netip.MustParseAddr("10.0.1.9")] = *c.otherEntry
			}
			if c.used {
				other.Used[netip.MustParseAddr("10.0.1.9")] = "db/mysql-0"
			}
			s.Ledger.SetNode(other)
			s.acknowledge()
			r := s.reconciler(nil)
			n, _ := s.Ledger.Node("n")
			state, err := r.gather(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			state.Now = controllertest.Begin.Add(c.after)
			edits, next := state.ExpireCooldowns(n)
			if len(edits) != c.edits {
				t.Errorf("got edits %+v, want %d that end the cooldown", edits, c.edits)
			}
			if want := state.Now.Add(10 * time.Second); c.recheck && !next.Equal(want) {
				t.Errorf("ExpireCooldowns: got next check at %v, want %v", next, want)
			}
			if deadline := state.NextRestoreDeadline(n); deadline.IsZero() != (c.after >= 10*time.Minute) {
				t.Errorf("NextRestoreDeadline: got %v, want zero only after two resyncs", deadline)
			}
		})
	}
}

// TestCooldownEndsAfterALiveLook checks that a cooldown does not end while the API server shows a pod that has the address, or
// a pod with the name of the previous owner that has no IP yet. Nor does the cooldown end before the agent has acknowledged
// it, or while the agent reports the address as used (finding C13). A pod that the cache does not show yet may run with the
// address before its agent has reported the address.
func TestCooldownEndsAfterALiveLook(t *testing.T) {
	const addr = "10.0.1.9"
	running := controllertest.Pod(0)
	running.Status.PodIPs = []corev1.PodIP{{IP: addr}}
	for name, c := range map[string]struct {
		live []client.Object
		// answer sets the answer of the agent.
		answer func(s *stage)
		want   bool
	}{
		"no pod has the address":                         {answer: (*stage).acknowledge, want: true},
		"a pod that is not in the cache has the address": {answer: (*stage).acknowledge, live: controllertest.Objects(running)},
		"a pod that is not in the cache has no IP yet":   {answer: (*stage).acknowledge, live: controllertest.Objects(controllertest.Pod(0))},
		"the agent has not answered":                     {answer: func(*stage) {}},
		"the agent has acknowledged only an earlier entry": {answer: func(s *stage) {
			s.acknowledge()
			s.answer.Entries = map[netip.Addr]pool.Entry{netip.MustParseAddr(addr): pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}
		}},
		"the agent reports the address as used": {answer: func(s *stage) {
			s.acknowledge()
			s.answer.Used = map[netip.Addr]string{netip.MustParseAddr(addr): "db/web-0"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			s := newStage(t, append(c.live, node), controllertest.Objects(node.DeepCopy()))
			s.fill(map[string]pool.Entry{addr: pool.CooldownEntry("db/web-0", controllertest.Begin)}, nil)
			s.syncLedger()
			c.answer(s)
			r := s.reconciler(nil)
			s.Clock.SetTime(controllertest.Begin.Add(time.Minute))
			if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil {
				t.Fatal(err)
			}
			if entries := s.node().Spec.IPAM.Pool; (entries[addr].Owner == "") != c.want {
				t.Errorf("got entries %v, want an ended cooldown: %t", entries, c.want)
			}
		})
	}
}
