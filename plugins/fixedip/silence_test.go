// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// storeOf is a cache of objects.
func storeOf(t *testing.T, objects ...any) toolscache.Indexer {
	t.Helper()
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
	for _, o := range objects {
		if err := store.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

// successor waits for the address of its predecessor.
func successor(uid types.UID, made time.Time) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: uid, CreationTimestamp: metav1.Time{Time: made}}}
}

// A pod that was deleted by force before its agent had told of it may run on: that the agent says nothing
// proves nothing until it has had the time to.
func TestSilenceOfAnAgent(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("fd00::6")
	made := time.Unix(1000, 0)
	pod := types.NamespacedName{Namespace: "db", Name: "mysql-0"}
	// report is what the API server says that the agent of a node lists at a time after the pod was made.
	type report struct {
		after time.Duration
		node  string
		lists []netip.Addr
		// want is how long after the pod was made its silence counts; 0: it does.
		want time.Duration
	}
	for name, reports := range map[string][]report{
		"never listed":                       {{0, "n", nil, time.Minute}, {59 * time.Second, "n", nil, time.Minute}, {time.Minute, "n", nil, 0}},
		"listed, and no more":                {{0, "n", []netip.Addr{a, b}, 0}, {time.Second, "n", nil, 0}},
		"listed on another node":             {{0, "m", []netip.Addr{a, b}, 0}, {time.Second, "n", nil, time.Minute}},
		"one of two listed":                  {{0, "n", []netip.Addr{a}, time.Minute}, {time.Second, "n", nil, time.Minute}, {time.Minute, "n", nil, 0}},
		"one after the other":                {{0, "n", []netip.Addr{a}, time.Minute}, {time.Second, "n", []netip.Addr{b}, 0}, {2 * time.Second, "n", nil, 0}},
		"listed when it had the time before": {{time.Minute, "n", []netip.Addr{a, b}, 0}},
	} {
		pods := storeOf(t, successor("pod", made))
		s := newSilence(time.Minute, corelisters.NewPodLister(pods))
		for i, r := range reports {
			n := pool.Node{Name: r.node, Used: map[netip.Addr]string{}}
			for _, x := range r.lists {
				n.Used[x] = "db/web-0"
			}
			s.note(pod, "pod", n, []netip.Addr{a, b})
			got, unheard := s.until("pod", made, r.node, []netip.Addr{a, b}, made.Add(r.after))
			if (r.want == 0) != got.IsZero() || r.want > 0 && !got.Equal(made.Add(r.want)) || (len(unheard) == 0) != got.IsZero() {
				t.Errorf("%s, %d: until %v, unheard %v, want %v", name, i, got, unheard, r.want)
			}
			// The next of the name has seen nothing yet.
			if other, _ := s.until("another", made, "n", []netip.Addr{a}, made); other.IsZero() {
				t.Errorf("%s, %d: what was seen for one pod counts for another", name, i)
			}
		}
		s.forget("pod")
		if len(s.listed) > 0 {
			t.Errorf("%s: %v is left", name, s.listed)
		}
		// An answer that comes when the pod is bound, or another, or gone, is for nobody.
		n := pool.Node{Name: "n", Used: map[netip.Addr]string{a: "db/mysql-0"}}
		bound := successor("pod", made)
		bound.Spec.NodeName = "n"
		for when, now := range map[string][]any{"bound": {bound}, "another": {successor("next", made)}, "gone": nil} {
			if err := pods.Replace(now, ""); err != nil {
				t.Fatal(err)
			}
			if s.note(pod, "pod", n, []netip.Addr{a}) || len(s.listed) > 0 {
				t.Errorf("%s: noted for a pod that is %s: %v", name, when, s.listed)
			}
		}
	}
}

// The watch of CiliumNodes may be behind that of pods. A listing that it shows when a pod's predecessor is
// gone may be of one before that, from before a reboot: that it disappears proves nothing about the predecessor,
// which was deleted by force and runs on, and which the agent has not listed yet.
func TestStaleListingIsNoProof(t *testing.T) {
	addr := netip.MustParseAddr("10.0.1.6")
	lists := func(yes bool) pool.Node {
		n := pool.Node{Name: "n", UID: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")},
			Entries: map[netip.Addr]pool.Entry{addr: movedID.Entry()}, Used: map[netip.Addr]string{}}
		if yes {
			n.Used[addr] = movedOwner
		}
		return n
	}
	const silent, listing = "its agent may take", "it lists it"
	for name, c := range map[string]struct {
		// api is what the API server says, watch what the watch shows first; then it shows no listing.
		api, watch bool
		// first and then are what the pod is told.
		first, then string
		woken       bool
	}{
		"an old listing":                    {api: false, watch: true, first: listing, then: silent},
		"a listing that stands":             {api: true, watch: true, first: listing, then: "", woken: true},
		"a listing that is not shown":       {api: true, watch: false, first: silent, then: silent},
		"no listing, and none that was old": {first: silent, then: silent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				pod := successor("pod-1", time.Now())
				reads, woken := 0, 0
				p := &Plugin{
					world: &world{ledger: ledger.New(), live: newLive(ctx, func(context.Context, string) (pool.Node, error) {
						reads++
						return lists(c.api), nil
					})},
					waiting: newWaiting(func(pods map[string]*corev1.Pod) { woken += len(pods) }),
					silence: newSilence(time.Minute, corelisters.NewPodLister(storeOf(t, pod))),
					nodes: corelisters.NewNodeLister(storeOf(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
						Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})),
					movable: true,
				}
				p.world.subscribe(p.waiting)
				defer func() {
					cancel()
					p.world.live.wait()
				}()
				show := func(n pool.Node) { p.world.announce(n.Name, p.world.ledger.SetNode(n)) }
				show(lists(c.watch))
				cy := &cycle{id: movedID, uid: pod.UID, made: time.Now(), reservation: reservation{node: "n", addrs: []netip.Addr{addr}, failover: v1alpha1.Migrate, recorded: true}}
				says := func(want string) {
					t.Helper()
					got := p.mayRun(cy, v1alpha1.Migrate)
					text := map[string]string{silent: "the agent on node n has not listed 10.0.1.6 since this pod was made, and may take until", listing: "the agent on node n still lists 10.0.1.6 as used"}[want]
					if (want == "") != (got == "") || !strings.HasPrefix(got, text) {
						t.Errorf("%q, want %q", got, text)
					}
				}
				says(c.first)
				p.waiting.refuse(pod, cause{owner: cy.id.Key(), until: func(string) bool { return p.mayRun(cy, v1alpha1.Migrate) == "" }}, p.waiting.now())
				synctest.Wait()
				show(lists(false))
				synctest.Wait()
				says(c.then)
				if (woken > 0) != c.woken {
					t.Errorf("woken %d times", woken)
				}
				if want := 0; !c.watch && reads != want || c.watch && (reads < 1 || reads > 2) {
					t.Errorf("the API server was asked %d times", reads)
				}
				time.Sleep(time.Minute)
				says("")
				p.waiting.settle(pod.UID)
			})
		})
	}
}

// A node is read once for all who ask before the read has begun, and again for those who ask later: one
// that is under way may have begun before they had reason to ask.
func TestLiveAsksOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		underway, most, reads := map[string]int{}, 0, 0
		go1 := make(chan struct{})
		var l *live
		l = newLive(ctx, func(_ context.Context, node string) (pool.Node, error) {
			l.mu.Lock()
			reads++
			underway[node]++
			if underway[node] > 1 {
				t.Errorf("two reads of %s at once", node)
			}
			most = max(most, len(underway))
			l.mu.Unlock()
			<-go1
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(underway, node)
			return pool.Node{Name: node}, nil
		})
		answered := map[string]int{}
		ask := func(node, who string) {
			l.ask(node, who, func(n pool.Node) {
				l.mu.Lock()
				defer l.mu.Unlock()
				answered[who+" about "+n.Name]++
			})
		}
		for _, node := range []string{"a", "b", "c", "d"} {
			ask(node, "x")
		}
		synctest.Wait()
		// No other read begins now, and that of a is under way.
		for _, node := range []string{"e", "f", "a"} {
			ask(node, "x")
			ask(node, "x")
		}
		ask("f", "y")
		synctest.Wait()
		if most != liveReaders || reads != liveReaders {
			t.Errorf("%d reads under way of %d", most, reads)
		}
		close(go1)
		synctest.Wait()
		if want := map[string]int{"x about a": 2, "x about b": 1, "x about c": 1, "x about d": 1, "x about e": 1, "x about f": 1, "y about f": 1}; reads != 7 || !maps.Equal(answered, want) {
			t.Errorf("%d reads, answers %v, want %v", reads, answered, want)
		}
		if l.readers != 0 || len(l.line)+len(l.open)+len(l.reading) > 0 {
			t.Errorf("%d readers, %v, %v, %v are left", l.readers, l.line, l.open, l.reading)
		}
		cancel()
		ask("a", "x")
		l.wait()
		if reads != 7 {
			t.Error("asked after the end")
		}
	})
}

// A read that fails is tried again, and then is answered to nobody; the end does not wait for it.
func TestLiveFails(t *testing.T) {
	for name, c := range map[string]struct {
		fails    int
		answered bool
		ends     bool
		reads    int
	}{
		"once":          {fails: 1, answered: true, reads: 2},
		"for good":      {fails: 100, reads: liveTries},
		"until the end": {fails: 100, ends: true, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				reads, answered := 0, false
				l := newLive(ctx, func(context.Context, string) (pool.Node, error) {
					if reads++; reads <= c.fails {
						return pool.Node{}, errors.New("down")
					}
					return pool.Node{}, nil
				})
				l.ask("n", "x", func(pool.Node) { answered = true })
				synctest.Wait()
				if c.ends {
					cancel()
				}
				l.wait()
				if answered != c.answered || reads != c.reads {
					t.Errorf("answered %v after %d reads, want %v, %d", answered, reads, c.answered, c.reads)
				}
			})
		})
	}
}
