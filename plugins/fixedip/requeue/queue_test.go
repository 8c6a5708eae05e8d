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

// cluster is a fake Domain, and the pods that the watch shows.
type cluster struct {
	*Queue
	store toolscache.Store
	// unfit are pods and nodes, "pod/node", that do not fit. full are nodes without room.
	unfit, full map[string]bool
	slots       FreeSlots
	// evaluations counts the calls of each method.
	evaluations map[string]int
	// activations has the pods that were activated since the last look. Timers add to it too.
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

// wakes fails the test unless the event wakes the pods.
func (c *cluster) wakes(t *testing.T, what string, e Event, want ...string) {
	t.Helper()
	c.Notify(e)
	c.expect(t, what, want...)
}

// settle makes all looks at the cluster that have to be made.
func (c *cluster) settle() {
	for c.work.Len() > 0 {
		c.process()
	}
}

func (c *cluster) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	c.settle()
	c.activations.Lock()
	defer c.activations.Unlock()
	slices.Sort(c.activations.pods)
	if !slices.Equal(c.activations.pods, want) {
		t.Errorf("%s: woken %v, want %v", what, c.activations.pods, want)
	}
	c.activations.pods = nil
}

// Each pod is woken by each of its causes, once, and by nothing else. Finding S7.
func TestEachCauseWakes(t *testing.T) {
	addr := netip.MustParseAddr("10.0.1.9")
	on := map[string]WakeOn{
		"owner":    On(metrics.Owner, "db/owner"),
		"nodes":    On(metrics.Node, "node-1", "node-2"),
		"addrs":    WakeOn{}.AndHome(addr),
		"workload": On(metrics.Workload, "db/StatefulSet/web"),
		"slots":    {Keys: Keys(metrics.Slot, "db/Deployment/web"), Searching: true},
		"room":     {FreeAddress: &FreeAddress{}},
		"carried":  {FreeAddress: &FreeAddress{Carried: []netip.Addr{addr}}},
		// An address that it asks for is free on node-2 only.
		"requested": {FreeAddress: &FreeAddress{Requested: request.Exactly(addr)}},
	}
	for name, tc := range map[string]struct {
		event Event
		want  []string
	}{
		"its reservation":        {Event{Keys: Keys(metrics.Owner, "db/other", "db/owner")}, []string{"db/owner"}},
		"one of its nodes":       {Event{Node: "node-2"}, []string{"db/carried", "db/nodes", "db/requested"}},
		"a subnet with its home": {Event{Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}, []string{"db/addrs"}},
		"another subnet":         {Event{Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}}, nil},
		"its workload":           {Event{Keys: Keys(metrics.Workload, "db/StatefulSet/web")}, []string{"db/workload"}},
		"a slot":                 {Event{Keys: Keys(metrics.Slot, "db/Deployment/web")}, []string{"db/slots"}},
		"an address":             {Event{Node: "node-9", Freed: 1}, []string{"db/carried", "db/room"}},
		"an address on its node": {Event{Node: "node-1", Freed: 1}, []string{"db/carried", "db/nodes", "db/room"}},
		"other objects":          {Event{Keys: slices.Concat(Keys(metrics.Owner, "db/x"), Keys(metrics.Workload, "db/x"), Keys(metrics.Slot, "db/x", ""))}, nil},
		"nothing":                {Event{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.slots = FreeSlots{Count: 1, Searching: 1, Nodes: []string{"node-5"}}
			c.unfit["requested/node-1"], c.unfit["requested/node-9"] = true, true
			for pod, w := range on {
				c.waits(pod, w)
			}
			c.wakes(t, "first", tc.event, tc.want...)
			c.wakes(t, "again", tc.event)
			if want := len(on) - len(tc.want); len(c.waiting) != want {
				t.Errorf("%d pods wait, want %d", len(c.waiting), want)
			}
		})
	}
}

// An event between the decision and Add is not lost, and an event that does not help wakes nothing.
func TestNoEventIsMissed(t *testing.T) {
	idle := slices.Repeat([]Event{{Node: "node-9"}}, recentEvents-1)
	helps := Event{Node: "node-1", Freed: 1}
	for name, tc := range map[string]struct {
		events []Event
		want   []string
	}{
		"none":                  {nil, nil},
		"one that helps":        {[]Event{helps}, []string{"db/mysql-0"}},
		"one that does not":     {[]Event{{Node: "node-1"}}, nil},
		"among others":          {append([]Event{helps}, idle...), []string{"db/mysql-0"}},
		"as many as remembered": {append([]Event{{Node: "node-1"}}, idle...), nil},
		"more than remembered":  {append([]Event{{Node: "node-1"}, {Node: "node-2"}}, idle...), []string{"db/mysql-0"}},
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
				t.Errorf("%d pods wait", len(c.waiting))
			}
		})
	}
}

// A pod whose annotations changed while it was refused is tried again, once.
func TestOutdatedPodIsNotRefused(t *testing.T) {
	c := newCluster()
	before := c.pod("mysql-0")
	now := c.pod("mysql-0")
	now.Annotations = map[string]string{"fixedip.io/ips": "10.0.1.10"}
	c.Add(before, On(metrics.Owner, "db/mysql-0"), c.Now())
	c.expect(t, "refused as it was", "db/mysql-0")
	c.Add(now, On(metrics.Owner, "db/mysql-0"), c.Now())
	c.expect(t, "refused as it is")
}

// A pod that waits for another pod to end is tried again when that has ended or is deleted, also if that happens while
// it is being refused.
func TestPodsThatEndWake(t *testing.T) {
	with := func(uid types.UID, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "other", UID: uid}, Status: corev1.PodStatus{Phase: phase}}
	}
	running := with("other", corev1.PodRunning)
	for name, tc := range map[string]struct {
		// now is the other pod as the watch shows it then; nil: it is deleted.
		now  *corev1.Pod
		want []string
	}{
		"it stays":            {now: with("other", corev1.PodRunning)},
		"it ends":             {now: with("other", corev1.PodFailed), want: []string{"db/mysql-0"}},
		"it is deleted":       {want: []string{"db/mysql-0"}},
		"it is created again": {now: with("another", corev1.PodRunning), want: []string{"db/mysql-0"}},
	} {
		for _, refused := range []string{"before", "after"} {
			t.Run(name+" "+refused, func(t *testing.T) {
				c := newCluster()
				pod, decided := c.pod("mysql-0"), c.Now()
				if refused == "before" {
					c.Add(pod, On(metrics.Owner, "db/other"), decided)
				}
				c.podChanged(running, tc.now)
				if refused == "after" {
					c.Add(pod, On(metrics.Owner, "db/other"), decided)
				}
				c.expect(t, "then", tc.want...)
			})
		}
	}
}

// Finding S1. With 100 slot pods waiting, what agents report about ordinary pods costs no look at the cluster, and one
// report about a slot costs one, whatever the number of pods.
func TestSlotsAreEvaluatedOncePerEvent(t *testing.T) {
	c := newCluster()
	c.slots = FreeSlots{Count: 100, Searching: 100}
	for i := range 100 {
		c.waits(fmt.Sprintf("web-%d", i), WakeOn{Keys: Keys(metrics.Slot, "db/Deployment/web"), Searching: true}.And(metrics.Owner, fmt.Sprintf("db/web-%d", i)))
	}
	for i := range 300 {
		c.Notify(Event{Node: fmt.Sprintf("node-%d", i)})
	}
	c.settle()
	if len(c.evaluations) != 0 {
		t.Errorf("events that concern no waiting pod: %v", c.evaluations)
	}
	for range 300 {
		c.Notify(Event{Keys: Keys(metrics.Slot, "db/Deployment/web")})
	}
	c.expect(t, "no slot can be taken over")
	if want := map[string]int{"FreeSlots": 1}; !maps.Equal(c.evaluations, want) {
		t.Errorf("a burst of events about the workload: %v, want %v", c.evaluations, want)
	}
}

// Finding S3. One freed address wakes one pod, the first that the node suits, and a pod that cannot use it leaves it to
// the next, once.
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
		c.wakes(t, "an address of another node group", Event{Node: "other-group", Freed: 1})
		c.wakes(t, "an address", Event{Node: "node-1", Freed: 1}, "db/b")
		// The pod b does not fit for another reason: it waits for something else, or for the same again.
		c.Add(pods["b"], WakeOn{FreeAddress: &FreeAddress{}}, c.Now())
		c.expect(t, "the first pod could not use it", "db/c")
		c.PassOn("c")
		c.expect(t, "the second pod could not use it", "db/d")
		c.Add(pods["d"], WakeOn{FreeAddress: &FreeAddress{}}, c.Now())
		c.expect(t, "each pod was tried")
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

// A pod that asks for an address is woken when that is free, also if the node has no more free addresses than before,
// and by nothing else that happens on the node. One change wakes one pod, since the claim of the first wakes the next.
func TestRequestedAddressWakes(t *testing.T) {
	c := newCluster()
	asks := WakeOn{FreeAddress: &FreeAddress{Requested: request.Exactly(netip.MustParseAddr("10.0.1.9"))}}
	c.full["node-1"] = true
	c.waits("a", asks)
	c.waits("b", asks)
	c.waits("other", WakeOn{FreeAddress: &FreeAddress{}})
	c.wakes(t, "another address changes", Event{Node: "node-1"})
	c.full["node-1"] = false
	c.wakes(t, "the address becomes free, and another one is taken", Event{Node: "node-1"}, "db/a")
	c.Remove("a")
	c.wakes(t, "the pod has claimed one address", Event{Node: "node-1"}, "db/b")
	c.PassOn("b")
	c.wakes(t, "both are free", Event{Node: "node-1", Freed: 2}, "db/other")
}

// A free slot wakes one pod. Pods that search although there are fewer slots than pods that search are woken, too.
func TestFreeSlotWakesOnePod(t *testing.T) {
	c := newCluster()
	for _, name := range []string{"a", "b", "c"} {
		c.waits(name, WakeOn{Keys: Keys(metrics.Slot, "w"), Searching: true})
	}
	c.waits("d", WakeOn{Keys: Keys(metrics.Slot, "w"), FreeAddress: &FreeAddress{}})
	event := Event{Keys: Keys(metrics.Slot, "w")}
	c.slots = FreeSlots{Count: 3, Searching: 3}
	c.wakes(t, "none can be taken over", event)
	c.slots.Nodes = []string{"node-1"}
	c.wakes(t, "one can be taken over", event, "db/a")
	c.wakes(t, "it is about to be taken over", event)
	c.PassOn("a")
	c.expect(t, "it could not be used", "db/b")
	c.Remove("b")
	c.slots = FreeSlots{Count: 1, Searching: 2}
	c.wakes(t, "one pod too many searches", event, "db/c")
	c.slots = FreeSlots{Count: 2, Searching: 1, Nodes: []string{"node-1"}}
	c.wakes(t, "more slots than pods that search", event, "db/d")
}

// A pod is woken at most once per interval. Finding S7.
func TestWakeInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		on := On(metrics.Owner, "db/a")
		pod := c.waits("a", on)
		event := Event{Keys: Keys(metrics.Owner, "db/a")}
		c.wakes(t, "the first", event, "db/a")
		c.Add(pod, on, c.Now())
		for range 10 {
			c.Notify(event)
		}
		c.expect(t, "within the interval")
		time.Sleep(wakeInterval)
		synctest.Wait()
		c.expect(t, "after the interval", "db/a")
	})
}

// Finding S5. A pod that is deleted during its own cycle does not stay in the queue, and neither does one that is
// deleted later.
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
		t.Errorf("%d pods wait; keys %v, woken %v, offers %v", len(c.waiting), c.byKey, c.woken, c.offers)
	}
	c.expect(t, "deleted pods")
}

// A pod whose annotations change is woken, whatever it waits for.
func TestAnnotationsWake(t *testing.T) {
	c := newCluster()
	before := c.waits("a", WakeOn{})
	after := before.DeepCopy()
	after.Annotations = map[string]string{"fixedip.io/enabled": "true"}
	c.podChanged(before, after)
	c.expect(t, "changed", "db/a")
}
