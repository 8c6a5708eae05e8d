// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/test/controllertest"
)

// slowReader advances the clock by takes in every List.
type slowReader struct {
	client.Reader
	clock *clocktesting.FakeClock
	takes time.Duration
}

func (r slowReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	r.clock.Step(r.takes)
	return r.Reader.List(ctx, list, opts...)
}

// TestRestThatEndsDuringALook checks that a node is reconciled again at once if a cooldown ends during a pass. The
// cooldown is not over when the pass begins and is over when the pass ends, so that the pass yields neither an edit nor a
// later time.
func TestRestThatEndsDuringALook(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s := newStage(t, controllertest.Objects(node), controllertest.Objects(node))
	s.fill(map[string]pool.Entry{"10.0.1.9": pool.CooldownEntry("", controllertest.Begin)}, nil)
	s.syncLedger()
	s.answers()
	r := s.reconciler(func(o *Reconciler) {
		o.Watermark = nodepool.Watermark{Free: 1, Max: 1}
		o.Cached = slowReader{s.Cached, s.Clock, 5 * time.Second}
	})
	s.Clock.SetTime(controllertest.Begin.Add(9 * time.Second))
	result, err := r.Reconcile(t.Context(), source.ForName("n"))
	if err != nil || s.Patches > 0 || result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
		t.Fatalf("after the first look: %v, %v, %d patches; want it to be asked for again at once", result, err, s.Patches)
	}
	if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil || s.Patches != 1 {
		t.Errorf("after the second look: %v, %d patches; want the one that ends the rest", err, s.Patches)
	}
}

// TestAgentWithoutReportIsAsked checks that an agent is asked for a report if its first one does not arrive within
// askAfter. Until it does, no address of the node is free, and an agent that was not restarted when its CiliumNode was
// created again may never report by itself.
func TestAgentWithoutReportIsAsked(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	s := newStage(t, controllertest.Objects(node), controllertest.Objects(node))
	r := s.reconciler(nil)
	for _, step := range []struct {
		what  string
		used  map[string]string
		after time.Duration
		want  []string
	}{
		{what: "no report", want: nil},
		{what: "still none, and time left", after: askAfter - time.Second, want: nil},
		{what: "time to ask", after: time.Second, want: []string{"n"}},
		{what: "a report that lacks the node itself is of an agent that has just started", used: map[string]string{"10.0.1.2": "db/x"}, want: []string{"n", "n"}},
		{what: "it has reported", used: map[string]string{"10.0.1.2": "router"}, want: []string{"n", "n"}},
	} {
		s.fill(nil, step.used)
		s.syncLedger()
		s.Clock.Step(step.after)
		result, err := r.Reconcile(t.Context(), source.ForName("n"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.asked, step.want) {
			t.Errorf("%s: asked the agents of %v, want %v", step.what, s.asked, step.want)
		}
		if waits := step.want == nil; waits != (result.RequeueAfter > 0) {
			t.Errorf("%s: looks again after %v", step.what, result.RequeueAfter)
		}
	}
}

// TestEntryOfAPodThatOptedOut checks that this controller writes the entry of a pod on a strict node if the pod opted out
// while a FixedIP of its name retains an address. It leaves the entries of other pods with a FixedIP to the controller
// fixedip (model, seed 1973094).
func TestEntryOfAPodThatOptedOut(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		want        []netip.Addr
	}{
		"a pod with a FixedIP": {},
		"a pod that opted out": {annotations: map[string]string{identity.AnnotationEnabled: "false"}, want: []netip.Addr{netip.MustParseAddr("10.0.1.4")}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0", UID: "1", Annotations: c.annotations}, Spec: corev1.PodSpec{NodeName: "n"}}
			kept := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0"}, Spec: v1alpha1.FixedIPSpec{PodName: "web-0", IPs: []string{"10.0.9.9"}}}
			objects := controllertest.Objects(node, pod, kept)
			s := newStage(t, objects, objects)
			s.fill(nil, map[string]string{"10.0.1.2": "router"})
			s.syncLedger()
			r := s.reconciler(func(o *Reconciler) { o.StrictNodes = labels.Everything() })
			if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil {
				t.Fatal(err)
			}
			n := ciliumpool.FromCiliumNode(s.node())
			if got := n.Owns("db/web-0"); !slices.Equal(got, c.want) {
				t.Errorf("the pod has entries at %v, want %v; the pool: %+v", got, c.want, n.Entries)
			}
		})
	}
}

// TestRestForAPodThatWaits checks that a cooldown lasts for two resyncs while the pod from which the address was released
// has not reported an IP on the node: the pod may have been bound because of the entry, or its agent may have given it the
// address, even if it opted out. It also checks that no cooldown ends while the node is not ready, since a pod that was
// deleted by force may still run there with the address.
func TestRestForAPodThatWaits(t *testing.T) {
	optedOut := map[string]string{identity.AnnotationEnabled: "false"}
	for name, c := range map[string]struct {
		annotations map[string]string
		after       time.Duration
		// unheard is true if the node is not ready. Otherwise heard is since when the node is ready.
		unheard bool
		heard   time.Time
		// elsewhere is the entry of the address in the pool of another node; nil: none. used is true if the agent of that
		// node reports the address as in use.
		elsewhere *pool.Entry
		used      bool
		ends      int
		// again is true if the cooldown is checked again without an event.
		again bool
	}{
		"it counts on the address":           {after: time.Minute},
		"its entry has not been restored":    {after: 10 * time.Minute, ends: 1},
		"it has opted out":                   {annotations: optedOut, after: time.Minute},
		"it has opted out, and still waits":  {annotations: optedOut, after: 10 * time.Minute, ends: 1},
		"nothing is heard of the node":       {annotations: optedOut, after: time.Hour, unheard: true},
		"the node was not heard of just now": {annotations: optedOut, after: time.Hour, heard: controllertest.Begin.Add(time.Hour - 9*time.Second)},
		"the node is heard of again":         {annotations: optedOut, after: time.Hour, heard: controllertest.Begin.Add(time.Hour - 10*time.Second), ends: 1},
		"its entry elsewhere rests":          {annotations: optedOut, after: time.Hour, elsewhere: ptr.To(pool.CooldownEntry("", controllertest.Begin)), again: true},
		"it is listed elsewhere":             {annotations: optedOut, after: time.Hour, used: true, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", Annotations: c.annotations}, Spec: corev1.PodSpec{NodeName: "n"}}
			status := corev1.ConditionTrue
			if c.unheard {
				status = corev1.ConditionUnknown
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.NewTime(c.heard)}}
			s := newStage(t, controllertest.Objects(), controllertest.Objects(node, pod))
			s.fill(map[string]pool.Entry{"10.0.1.9": pool.CooldownEntry("db/mysql-0", controllertest.Begin)}, nil)
			s.syncLedger()
			other := pool.NodePool{Name: "m", UID: "m", Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}}
			if c.elsewhere != nil {
				other.Entries[netip.MustParseAddr("10.0.1.9")] = *c.elsewhere
			}
			if c.used {
				other.Used[netip.MustParseAddr("10.0.1.9")] = "db/mysql-0"
			}
			s.Ledger.SetNode(other)
			s.answers()
			r := s.reconciler(nil)
			n, _ := s.Ledger.Node("n")
			state, err := r.gather(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			state.Now = controllertest.Begin.Add(c.after)
			edits, again := state.ExpireCooldowns(n)
			if len(edits) != c.ends {
				t.Errorf("%d edits end the rest, want %d: %+v", len(edits), c.ends, edits)
			}
			if c.again && !again.Equal(state.Now.Add(10*time.Second)) {
				t.Errorf("it is looked at again at %v", again)
			}
			if next := state.NextRestoreDeadline(n); next.IsZero() != (c.after >= 10*time.Minute) {
				t.Errorf("it is looked at again at %v", next)
			}
		})
	}
}

// TestCooldownEndsAfterALiveLook checks that a cooldown ends only after the pods were read from the API server, and after
// the agent has seen the cooldown and reported (finding C13). A pod that the watch has yet to show may run with the
// address before its agent has reported it.
func TestCooldownEndsAfterALiveLook(t *testing.T) {
	const addr = "10.0.1.9"
	runs := controllertest.Pod(0)
	runs.Status.PodIPs = []corev1.PodIP{{IP: addr}}
	for name, c := range map[string]struct {
		live []client.Object
		// says sets the answer of the agent.
		says func(s *stage)
		want bool
	}{
		"no pod has it":                          {says: (*stage).answers, want: true},
		"a pod that the cache does not show has": {says: (*stage).answers, live: controllertest.Objects(runs)},
		"one that it does not show may have it":  {says: (*stage).answers, live: controllertest.Objects(controllertest.Pod(0))},
		"the agent has not answered":             {says: func(*stage) {}},
		"the agent has seen an earlier entry": {says: func(s *stage) {
			s.answers()
			s.answer.Entries = map[netip.Addr]pool.Entry{netip.MustParseAddr(addr): pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}
		}},
		"the agent uses it": {says: func(s *stage) {
			s.answers()
			s.answer.Used = map[netip.Addr]string{netip.MustParseAddr(addr): "db/web-0"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			s := newStage(t, append(c.live, node), controllertest.Objects(node.DeepCopy()))
			s.fill(map[string]pool.Entry{addr: pool.CooldownEntry("db/web-0", controllertest.Begin)}, nil)
			s.syncLedger()
			c.says(s)
			r := s.reconciler(nil)
			s.Clock.SetTime(controllertest.Begin.Add(time.Minute))
			if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil {
				t.Fatal(err)
			}
			if entries := s.node().Spec.IPAM.Pool; (entries[addr].Owner == "") != c.want {
				t.Errorf("the entries are %v", entries)
			}
		})
	}
}
