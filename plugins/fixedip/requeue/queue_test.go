// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// cluster is a Queue with a fake Domain and the pods that the watch shows.
type cluster struct {
	*Queue
	store toolscache.Store
	// unfit contains the pods that cannot run on a node. Key: "pod/node". full contains the nodes without a free address.
	unfit, full map[string]bool
	slots       FreeSlots
	// evaluations counts the calls of each method of Domain. Key: the name of the method.
	evaluations map[string]int
	// activations contains the pods that were activated since the last call of expect. Timers add pods, too.
	activations struct {
		sync.Mutex
		pods []string
	}
}

func newCluster() *cluster {
	c := &cluster{store: toolscache.NewStore(toolscache.MetaNamespaceKeyFunc), unfit: map[string]bool{}, full: map[string]bool{}, evaluations: map[string]int{}}
	c.Queue = newQueue(c.store, c, func(pods map[string]*corev1.Pod) {
		c.activations.Lock()
		defer c.activations.Unlock()
		c.activations.pods = append(c.activations.pods, slices.Sorted(maps.Keys(pods))...)
	})
	return c
}

func (c *cluster) CanRun(pod *corev1.Pod, node string) bool {
	c.evaluations["CanRun"]++
	return !c.unfit[pod.Name+"/"+node]
}

func (c *cluster) HasFreeAddress(_ *corev1.Pod, _ FreeAddress, node string) bool {
	c.evaluations["HasFreeAddress"]++
	return !c.full[node]
}

func (c *cluster) FreeSlots(string) (FreeSlots, error) {
	c.evaluations["FreeSlots"]++
	return c.slots, nil
}

// pod returns a pod that the watch shows.
func (c *cluster) pod(name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(name)}}
	if err := c.store.Add(pod); err != nil {
		panic(err)
	}
	return pod
}

// waits adds a pod to the queue.
func (c *cluster) waits(name string, on WakeOn) *corev1.Pod {
	pod := c.pod(name)
	c.Add(pod, on, c.Now())
	return pod
}

// wakes fails the test unless the event requeues exactly the pods want. what describes the event.
func (c *cluster) wakes(t *testing.T, what string, e Event, want ...string) {
	t.Helper()
	c.Notify(e)
	c.expect(t, what, want...)
}

// processAll handles all tasks.
func (c *cluster) processAll() {
	for c.work.Len() > 0 {
		c.process()
	}
}

// expect handles all tasks, and fails the test unless exactly the pods want were activated since the last call. what
// describes the events before.
func (c *cluster) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	c.processAll()
	c.activations.Lock()
	defer c.activations.Unlock()
	slices.Sort(c.activations.pods)
	if !slices.Equal(c.activations.pods, want) {
		t.Errorf("%s: requeued %v, want %v", what, c.activations.pods, want)
	}
	c.activations.pods = nil
}

// TestEachCauseWakes checks that an event requeues the pods that wait for its cause, once, and no other pods. Finding S7.
func TestEachCauseWakes(t *testing.T) {
	addr := netip.MustParseAddr("10.0.1.9")
	on := map[string]WakeOn{
		"owner":    On(metrics.Owner, "db/owner"),
		"nodes":    On(metrics.Node, "node-1", "node-2"),
		"addrs":    WakeOn{}.AndHome(addr),
		"workload": On(metrics.Workload, "db/StatefulSet/web"),
		"slots":    {Keys: Keys(metrics.Slot, "db/Deployment/web"), Searching: true},
		"free":     {FreeAddress: &FreeAddress{}},
		"carried":  {FreeAddress: &FreeAddress{Carried: []netip.Addr{addr}}},
		// This pod can run neither on node-1 nor on node-9: see unfit below.
		"requested": {FreeAddress: &FreeAddress{Requested: request.Exactly(addr)}},
	}
	for name, tc := range map[string]struct {
		event Event
		want  []string
	}{
		"a change of the reservation":  {Event{Keys: Keys(metrics.Owner, "db/other", "db/owner")}, []string{"db/owner"}},
		"a change of one of two nodes": {Event{Node: "node-2"}, []string{"db/carried", "db/nodes", "db/requested"}},
		"a subnet with the address":    {Event{Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}, []string{"db/addrs"}},
		"another subnet":               {Event{Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}, nil},
		"a change of the workload":     {Event{Keys: Keys(metrics.Workload, "db/StatefulSet/web")}, []string{"db/workload"}},
		"a free slot":                  {Event{Keys: Keys(metrics.Slot, "db/Deployment/web")}, []string{"db/slots"}},
		"a free address":               {Event{Node: "node-9", Freed: 1}, []string{"db/carried", "db/free"}},
		"a free address on node-1":     {Event{Node: "node-1", Freed: 1}, []string{"db/carried", "db/free", "db/nodes"}},
		"changes of other objects":     {Event{Keys: slices.Concat(Keys(metrics.Owner, "db/x"), Keys(metrics.Workload, "db/x"), Keys(metrics.Slot, "db/x", ""))}, nil},
		"an empty event":               {Event{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.slots = FreeSlots{Count: 1, Searching: 1, Nodes: []string{"node-5"}}
			c.unfit["requested/node-1"], c.unfit["requested/node-9"] = true, true
			for pod, w := range on {
				c.waits(pod, w)
			}
			c.wakes(t, "the event", tc.event, tc.want...)
			c.wakes(t, "the same event again", tc.event)
			if want := len(on) - len(tc.want); len(c.waiting) != want {
				t.Errorf("%d pods wait, want %d", len(c.waiting), want)
			}
		})
	}
}

// TestUnplaced checks that each pod is counted for one cause until it is requeued, with the creation of the oldest pod.
func TestUnplaced(t *testing.T) {
	c := newCluster()
	at := func(name string, created int64, on WakeOn) {
		pod := c.pod(name)
		pod.CreationTimestamp = metav1.Unix(created, 0)
		c.Add(pod, on, c.Now())
	}
	at("one", 10, On(metrics.Owner, "db/a"))
	at("two", 20, On(metrics.Owner, "db/a").And(metrics.Node, "node-1"))
	at("three", 15, On(metrics.Owner, "db/c").And(metrics.Workload, "db/StatefulSet/web").And(metrics.Node, "node-2"))
	at("free", 30, WakeOn{FreeAddress: &FreeAddress{}}.And(metrics.Node, "node-2"))
	at("none", 40, WakeOn{})
	oldest := func(pods int, seconds int64) metrics.Unplaced {
		return metrics.Unplaced{Pods: pods, Oldest: time.Unix(seconds, 0)}
	}
	want := map[metrics.Cause]metrics.Unplaced{metrics.Owner: oldest(1, 10), metrics.Node: oldest(2, 15), metrics.FreeAddress: oldest(1, 30), metrics.Annotation: oldest(1, 40)}
	if got := c.Unplaced(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	c.wakes(t, "a change of the workload", Event{Keys: Keys(metrics.Workload, "db/StatefulSet/web")}, "db/three")
	want[metrics.Node] = oldest(1, 20)
	if got := c.Unplaced(); !maps.Equal(got, want) {
		t.Errorf("after a change of the workload: got %v, want %v", got, want)
	}
}

// TestNoEventIsMissed checks that Add requeues a pod at once if an event since the decision helps the pod, and only
// then. If more events occurred than the queue remembers, Add requeues the pod in any case.
func TestNoEventIsMissed(t *testing.T) {
	idle := slices.Repeat([]Event{{Node: "node-9"}}, recentEvents-1)
	helps := Event{Node: "node-1", Freed: 1}
	for name, tc := range map[string]struct {
		events []Event
		want   []string
	}{
		"no event":                              {nil, nil},
		"an event that helps":                   {[]Event{helps}, []string{"db/mysql-0"}},
		"an event that does not help":           {[]Event{{Node: "node-1"}}, nil},
		"an event that helps, then others":      {append([]Event{helps}, idle...), []string{"db/mysql-0"}},
		"as many events as the queue remembers": {append([]Event{{Node: "node-1"}}, idle...), nil},
		"more events than the queue remembers":  {append([]Event{{Node: "node-1"}, {Node: "node-2"}}, idle...), []string{"db/mysql-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.Notify(helps) // before the decision
			decided := c.Now()
			for _, e := range tc.events {
				c.Notify(e)
			}
			c.Add(c.pod("mysql-0"), WakeOn{FreeAddress: &FreeAddress{}}, decided)
			c.expect(t, "after Add", tc.want...)
			if len(c.waiting) != 1-len(tc.want) {
				t.Errorf("%d pods wait, want %d", len(c.waiting), 1-len(tc.want))
			}
		})
	}
}

// TestOutdatedPodIsNotRefused checks that a pod whose annotations changed while it was being refused is requeued, once.
func TestOutdatedPodIsNotRefused(t *testing.T) {
	c := newCluster()
	before := c.pod("mysql-0")
	now := c.pod("mysql-0")
	now.Annotations = map[string]string{"fixedip.io/ips": "10.0.1.10"}
	c.Add(before, On(metrics.Owner, "db/mysql-0"), c.Now())
	c.expect(t, "Add of the pod without the annotation", "db/mysql-0")
	c.Add(now, On(metrics.Owner, "db/mysql-0"), c.Now())
	c.expect(t, "Add of the pod with the annotation")
}

// TestPodsThatEndWake checks that a pod that waits for another pod is requeued when the other pod has ended or is
// deleted, even if that happens while the waiting pod is being refused.
func TestPodsThatEndWake(t *testing.T) {
	with := func(uid types.UID, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "other", UID: uid}, Status: corev1.PodStatus{Phase: phase}}
	}
	running := with("other", corev1.PodRunning)
	for name, tc := range map[string]struct {
		// now is the other pod after the change; nil: it is deleted.
		now  *corev1.Pod
		want []string
	}{
		"the other pod runs":        {now: with("other", corev1.PodRunning)},
		"the other pod fails":       {now: with("other", corev1.PodFailed), want: []string{"db/mysql-0"}},
		"the other pod is deleted":  {want: []string{"db/mysql-0"}},
		"the other pod is replaced": {now: with("another", corev1.PodRunning), want: []string{"db/mysql-0"}},
	} {
		for _, when := range []string{"after", "before"} {
			t.Run(name+", event "+when+" Add", func(t *testing.T) {
				c := newCluster()
				pod, decided := c.pod("mysql-0"), c.Now()
				if when == "after" {
					c.Add(pod, On(metrics.Owner, "db/other"), decided)
				}
				c.podChanged(running, tc.now)
				if when == "before" {
					c.Add(pod, On(metrics.Owner, "db/other"), decided)
				}
				c.expect(t, name, tc.want...)
			})
		}
	}
}

// TestSlotsAreEvaluatedOncePerEvent checks, with 100 pods that wait for a slot, that events about nodes cause no call of the
// Domain, and that a burst of events about the slots causes one call. Finding S1.
func TestSlotsAreEvaluatedOncePerEvent(t *testing.T) {
	c := newCluster()
	c.slots = FreeSlots{Count: 100, Searching: 100}
	for i := range 100 {
		c.waits(fmt.Sprintf("web-%d", i), WakeOn{Keys: Keys(metrics.Slot, "db/Deployment/web"), Searching: true}.And(metrics.Owner, fmt.Sprintf("db/web-%d", i)))
	}
	for i := range 300 {
		c.Notify(Event{Node: fmt.Sprintf("node-%d", i)})
	}
	c.processAll()
	if len(c.evaluations) != 0 {
		t.Errorf("events that concern no waiting pod caused calls of the Domain: %v, want none", c.evaluations)
	}
	for range 300 {
		c.Notify(Event{Keys: Keys(metrics.Slot, "db/Deployment/web")})
	}
	c.expect(t, "no slot can be taken over")
	if want := map[string]int{"FreeSlots": 1}; !maps.Equal(c.evaluations, want) {
		t.Errorf("a burst of events about the slots caused calls of the Domain: %v, want %v", c.evaluations, want)
	}
}

// TestFreedAddressWakesOnePod checks that a freed address requeues the first pod that can run on the node, and that the
// next pod is requeued, once, if the first cannot use the address. Finding S3.
func TestFreedAddressWakesOnePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		pods := map[string]*corev1.Pod{}
		for _, name := range []string{"a", "b", "c", "d"} {
			pods[name] = c.waits(name, WakeOn{FreeAddress: &FreeAddress{}})
		}
		c.unfit["a/node-1"] = true
		for _, name := range []string{"a", "b", "c", "d"} {
			c.unfit[name+"/other-group"] = true
		}
		c.wakes(t, "a free address on a node that no pod can run on", Event{Node: "other-group", Freed: 1})
		c.wakes(t, "a free address", Event{Node: "node-1", Freed: 1}, "db/b")
		// Pod b could not be placed for another reason, and waits for a free address again.
		c.Add(pods["b"], WakeOn{FreeAddress: &FreeAddress{}}, c.Now())
		c.expect(t, "the first pod could not use the address", "db/c")
		c.PassOn("c")
		c.expect(t, "the second pod could not use the address", "db/d")
		c.Add(pods["d"], WakeOn{FreeAddress: &FreeAddress{}}, c.Now())
		c.expect(t, "the last pod could not use the address")
		c.Remove("c")
		c.Notify(Event{Node: "node-1", Freed: 1})
		c.wakes(t, "two addresses, one by one", Event{Node: "node-1", Freed: 1})
		time.Sleep(wakeInterval)
		synctest.Wait()
		c.expect(t, "after the interval", "db/b", "db/d")
		c.Remove("b")
		c.Remove("d")
		c.expect(t, "the addresses are used")
	})
}

// TestRequestedAddressWakes checks that a pod that requests an address is requeued when this address becomes free, even
// if the number of free addresses of the node does not grow. No other change of the node requeues the pod. If the number does
// not grow, one event requeues only one pod, because the claim of the first pod causes the event that requeues the next.
func TestRequestedAddressWakes(t *testing.T) {
	c := newCluster()
	on := WakeOn{FreeAddress: &FreeAddress{Requested: request.Exactly(netip.MustParseAddr("10.0.1.9"))}}
	c.full["node-1"] = true
	c.waits("a", on)
	c.waits("b", on)
	c.waits("other", WakeOn{FreeAddress: &FreeAddress{}})
	c.wakes(t, "another address changes", Event{Node: "node-1"})
	c.full["node-1"] = false
	c.wakes(t, "the address becomes free, and another one is taken", Event{Node: "node-1"}, "db/a")
	c.Remove("a")
	c.wakes(t, "the first pod has claimed an address", Event{Node: "node-1"}, "db/b")
	c.PassOn("b")
	c.wakes(t, "two addresses become free", Event{Node: "node-1", Freed: 2}, "db/other")
}

// TestFreeSlotWakesOnePod checks that a free slot requeues one pod, that searching pods are requeued if more pods
// search than slots are free, and that other pods are requeued if fewer search.
func TestFreeSlotWakesOnePod(t *testing.T) {
	c := newCluster()
	for _, name := range []string{"a", "b", "c"} {
		c.waits(name, WakeOn{Keys: Keys(metrics.Slot, "w"), Searching: true})
	}
	c.waits("d", WakeOn{Keys: Keys(metrics.Slot, "w"), FreeAddress: &FreeAddress{}})
	event := Event{Keys: Keys(metrics.Slot, "w")}
	c.slots = FreeSlots{Count: 3, Searching: 3}
	c.wakes(t, "no slot can be taken over", event)
	c.slots.Nodes = []string{"node-1"}
	c.wakes(t, "one slot can be taken over", event, "db/a")
	c.wakes(t, "the slot is offered to a pod already", event)
	c.PassOn("a")
	c.expect(t, "the first pod could not use the slot", "db/b")
	c.Remove("b")
	c.slots = FreeSlots{Count: 1, Searching: 2}
	c.wakes(t, "more pods search than slots are free", event, "db/c")
	c.slots = FreeSlots{Count: 2, Searching: 1, Nodes: []string{"node-1"}}
	c.wakes(t, "fewer pods search than slots are free", event, "db/d")
}

// TestWakeInterval checks that a pod is requeued at most once per wakeInterval. Finding S7.
func TestWakeInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		on := On(metrics.Owner, "db/a")
		pod := c.waits("a", on)
		event := Event{Keys: Keys(metrics.Owner, "db/a")}
		c.wakes(t, "the first event", event, "db/a")
		c.Add(pod, on, c.Now())
		for range 10 {
			c.Notify(event)
		}
		c.expect(t, "further events within the interval")
		time.Sleep(wakeInterval)
		synctest.Wait()
		c.expect(t, "after the interval", "db/a")
	})
}

// TestDeletedPodsDoNotRemain checks that the queue forgets a pod that is deleted while it waits, and does not add a pod that
// was deleted during its cycle. Finding S5.
func TestDeletedPodsDoNotRemain(t *testing.T) {
	c := newCluster()
	deleted := c.waits("deleted", WakeOn{FreeAddress: &FreeAddress{}})
	during := c.pod("during")
	for _, pod := range []*corev1.Pod{deleted, during} {
		if err := c.store.Delete(pod); err != nil {
			t.Fatal(err)
		}
		c.podChanged(pod, nil)
	}
	c.Add(during, On(metrics.Owner, "db/during"), c.Now())
	c.Retry(during)
	if len(c.waiting) != 0 || len(c.byKey)+len(c.woken)+len(c.offers) != 0 {
		t.Errorf("the queue remembers deleted pods: %d pods wait, keys %v, requeued %v, offers %v", len(c.waiting), c.byKey, c.woken, c.offers)
	}
	c.expect(t, "Add and Retry of a deleted pod")
}

// TestAnnotationsWake checks that a pod is requeued if its annotations change, whatever it waits for.
func TestAnnotationsWake(t *testing.T) {
	c := newCluster()
	before := c.waits("a", WakeOn{})
	after := before.DeepCopy()
	after.Annotations = map[string]string{"fixedip.io/enabled": "true"}
	c.podChanged(before, after)
	c.expect(t, "a change of the annotations", "db/a")
}
