// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/controllertest"
	"fixedip.io/fixedip/test/gen"
)

// stage is a node "n" that has the addresses of the pods db/web-0 to db/web-2.
type stage struct {
	*controllertest.Stage
	t *testing.T
	c *Controller
}

func newStage(t *testing.T) *stage {
	s := controllertest.New(t, index.Each, nil, nil)
	return &stage{s, t, &Controller{Ledger: s.Ledger, Cached: s.Cached, Events: s.Recorder, Clock: s.Clock}}
}

func (s *stage) create(objects ...client.Object) {
	s.t.Helper()
	for _, o := range objects {
		if err := s.Cached.Create(s.t.Context(), o); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *stage) delete(o client.Object) {
	s.t.Helper()
	if err := s.Cached.Delete(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
}

// reconcile reconciles node n, and returns the events that were recorded since the last call.
func (s *stage) reconcile() (events []string) { return s.reconcileNode("n") }

func (s *stage) reconcileNode(name string) (events []string) {
	s.t.Helper()
	if _, err := s.c.Reconcile(s.t.Context(), source.ForName(name)); err != nil {
		s.t.Fatal(err)
	}
	for len(s.Recorder.Events) > 0 {
		events = append(events, <-s.Recorder.Events)
	}
	return events
}

// reconcileTwice reconciles node n now and after the delay of the event, and returns the events of the second reconcile.
func (s *stage) reconcileTwice() (events []string) {
	s.t.Helper()
	if early := s.reconcile(); len(early) > 0 {
		s.t.Errorf("got events %q before the delay, want none", early)
	}
	s.Clock.Step(eventDelay)
	return s.reconcile()
}

func (s *stage) counts() []metrics.WaitingPods {
	s.t.Helper()
	counts, err := s.c.Counts(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return counts
}

func node(name string, cordoned bool) *corev1.Node {
	return gen.Node(name, func(n *corev1.Node) { n.Spec.Unschedulable = cordoned })
}

// unschedulable returns a pod for which a scheduler finds no node from now on.
func (s *stage) unschedulable(name string) *corev1.Pod {
	return gen.Pod(name, func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(s.Clock.Now()),
		}}
	})
}

// addUnreserved adds the entry of an unreserved pod to the pool of node n.
func (s *stage) addUnreserved(name string) {
	n, _ := s.Ledger.Node("n")
	entry := n.Set(netip.MustParseAddr("10.0.1.100"), pool.UnreservedEntry("db", name))
	s.Ledger.SetNode(n.With([]pool.EntryChange{entry}))
}

// record returns the FixedIP of a pod.
func record(pod, node string) *v1alpha1.FixedIP {
	return gen.FixedIP(pod, func(r *v1alpha1.FixedIP) { r.Spec.NodeName, r.Spec.IPs = node, []string{"10.0.9.9"} })
}

// TestReconcile checks that an event on the Node names the pods that wait for the node, and that the next event follows
// when another pod waits, whether or not the first pods still wait (finding R3 in docs/project/findings.md).
func TestReconcile(t *testing.T) {
	const begin = "Warning PodsWaitForNode Pods wait for the node, which has their IPs and is "
	for name, steps := range map[string]func(s *stage) (got, want any){
		"a drained node": func(s *stage) (got, want any) {
			s.create(node("n", true), s.unschedulable("web-0"), s.unschedulable("web-1"), s.unschedulable("other-0"))
			return [][]string{s.reconcileTwice(), s.reconcile()}, [][]string{
				{begin + "cordoned: db/web-0, db/web-1; the pods can run when the node is uncordoned, or when it is deleted and another node has its subnet; with the failover policy Migrate or Reassign a pod runs on another node"}, nil}
		},
		"a node that is drained again": func(s *stage) (got, want any) {
			s.create(node("n", false), s.unschedulable("web-0"))
			first := s.reconcileTwice()
			s.delete(s.unschedulable("web-0"))
			none := s.reconcile()
			s.create(s.unschedulable("web-1"))
			return [][]string{first, none, s.reconcileTwice()}, [][]string{
				{begin + "ready: db/web-0; the events of the pods explain why the node cannot take them"}, nil,
				{begin + "ready: db/web-1; the events of the pods explain why the node cannot take them"}}
		},
		"another pod waits while the first still waits": func(s *stage) (got, want any) {
			s.create(node("n", false), s.unschedulable("web-1"))
			first := s.reconcileTwice()
			s.create(s.unschedulable("web-0"))
			return [][]string{first, s.reconcileTwice(), s.reconcileTwice()}, [][]string{
				{begin + "ready: db/web-1; the events of the pods explain why the node cannot take them"},
				{begin + "ready: db/web-0, db/web-1; the events of the pods explain why the node cannot take them"}, nil}
		},
		"a new leader after the delay": func(s *stage) (got, want any) {
			s.create(node("n", false), s.unschedulable("web-0"))
			early := s.reconcile()
			s.Clock.Step(eventDelay)
			s.c = &Controller{Ledger: s.Ledger, Cached: s.Cached, Events: s.Recorder, Clock: s.Clock}
			return [][]string{early, s.reconcile()}, [][]string{nil, {begin + "ready: db/web-0; the events of the pods explain why the node cannot take them"}}
		},
		"a node that is being deleted": func(s *stage) (got, want any) {
			n := node("n", false)
			n.Finalizers = []string{"example.com/drain"}
			s.create(n, s.unschedulable("web-0"))
			s.delete(n)
			return s.reconcileTwice(), []string{begin + "being deleted: db/web-0; the events of the pods explain why the node cannot take them"}
		},
		"an unreserved pod with an entry, which another node can take too": func(s *stage) (got, want any) {
			s.addUnreserved("plain-0")
			s.create(node("n", true), s.unschedulable("plain-0"))
			return [][]string{s.reconcileTwice()}, [][]string{nil}
		},
		"a node that is gone": func(s *stage) (got, want any) {
			s.create(s.unschedulable("db-0"), record("db-0", "gone"))
			early := s.reconcileNode("gone")
			s.Clock.Step(time.Hour)
			return [][]string{early, s.reconcileNode("gone")}, [][]string{nil, nil}
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := steps(newStage(t))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("events (-want +got): %s", diff)
			}
		})
	}
}

func TestCounts(t *testing.T) {
	s := newStage(t)
	s.addUnreserved("plain-0")
	s.create(node("n", true), s.unschedulable("web-0"), s.unschedulable("web-1"), s.unschedulable("other-0"), s.unschedulable("plain-0"))
	s.create(s.unschedulable("db-0"), record("db-0", "lost"))
	s.create(controllertest.Pod(2))
	// The API has times without fractions of a second.
	since := s.Clock.Now().Truncate(time.Second)
	want := []metrics.WaitingPods{{Node: "lost", State: nodeutil.Gone, Pods: 1, Since: since}, {Node: "n", State: nodeutil.Cordoned, Pods: 2, Since: since}}
	if diff := cmp.Diff(want, s.counts()); diff != "" {
		t.Errorf("counts (-want +got): %s", diff)
	}
}
