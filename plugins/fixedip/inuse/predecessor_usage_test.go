// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"context"
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

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

const movedOwner = "db/mysql-0"

// storeOf returns a cache of objects.
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

// successor returns a pod that waits for the address of the former pod of its name.
func successor(uid types.UID, made time.Time) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: uid, CreationTimestamp: metav1.Time{Time: made}}}
}

// A pod that was deleted by force before its agent reported it may still run: that the agent does not list its address
// proves nothing until the agent has had the time to report.
func TestPredecessorUsage(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("fd00::6")
	made := time.Unix(1000, 0)
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
		u := newPredecessorUsage(time.Minute, corelisters.NewPodLister(pods))
		of := func(uid types.UID, node string, addrs ...netip.Addr) Subject {
			return Subject{Owner: "db/mysql-0", UID: uid, Created: made, Node: node, Addrs: addrs}
		}
		for i, r := range reports {
			n := pool.Node{Name: r.node, Used: map[netip.Addr]string{}}
			for _, x := range r.lists {
				n.Used[x] = "db/web-0"
			}
			u.note(of("pod", r.node, a, b), n, []netip.Addr{a, b})
			got, unlisted := u.until(of("pod", r.node, a, b), made.Add(r.after))
			if (r.want == 0) != got.IsZero() || r.want > 0 && !got.Equal(made.Add(r.want)) || (len(unlisted) == 0) != got.IsZero() {
				t.Errorf("%s, %d: until %v, unlisted %v, want %v", name, i, got, unlisted, r.want)
			}
			// The next of the name has seen nothing yet.
			if other, _ := u.until(of("another", "n", a), made); other.IsZero() {
				t.Errorf("%s, %d: what was seen for one pod counts for another", name, i)
			}
		}
		u.forget("pod")
		if len(u.listed) > 0 {
			t.Errorf("%s: %v is left", name, u.listed)
		}
		// An answer that comes when the pod is bound, or another, or gone, is for nobody.
		n := pool.Node{Name: "n", Used: map[netip.Addr]string{a: "db/mysql-0"}}
		bound := successor("pod", made)
		bound.Spec.NodeName = "n"
		for when, now := range map[string][]any{"bound": {bound}, "another": {successor("next", made)}, "gone": nil} {
			if err := pods.Replace(now, ""); err != nil {
				t.Fatal(err)
			}
			if u.note(of("pod", "n", a), n, []netip.Addr{a}) || len(u.listed) > 0 {
				t.Errorf("%s: noted for a pod that is %s: %v", name, when, u.listed)
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
			Entries: map[netip.Addr]pool.Entry{addr: pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")}, Used: map[netip.Addr]string{}}
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
	}{
		"an old listing":                    {api: false, watch: true, first: listing, then: silent},
		"a listing that stands":             {api: true, watch: true, first: listing, then: ""},
		"a listing that is not shown":       {api: true, watch: false, first: silent, then: silent},
		"no listing, and none that was old": {first: silent, then: silent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				pod := successor("pod-1", time.Now())
				reads, woken := 0, 0
				c2 := &cache.Cache{Ledger: ledger.New()}
				c2.Subscribe(func(e requeue.Event) {
					if e.Node == "n" {
						woken++
					}
				})
				j := newJudge(c2, nil, corelisters.NewNodeLister(storeOf(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
					Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})),
					corelisters.NewPodLister(storeOf(t, pod)), time.Minute)
				j.reader = newLiveReader(ctx, func(context.Context, string) (pool.Node, error) {
					reads++
					return lists(c.api), nil
				})
				defer func() {
					cancel()
					j.reader.wait()
				}()
				show := func(n pool.Node) { c2.PoolChanged(n.Name, c2.Ledger.SetNode(n)) }
				show(lists(c.watch))
				s := Subject{Owner: movedOwner, UID: pod.UID, Created: time.Now(), Node: "n", Addrs: []netip.Addr{addr}}
				says := func(want string) {
					t.Helper()
					got := j.ByPredecessor(s, true).Reason
					text := map[string]string{silent: "the agent on node n has not listed 10.0.1.6 since this pod was created, and may take until", listing: "the agent on node n still lists 10.0.1.6 as used"}[want]
					if (want == "") != (got == "") || !strings.HasPrefix(got, text) {
						t.Errorf("%q, want %q", got, text)
					}
				}
				says(c.first)
				synctest.Wait()
				show(lists(false))
				synctest.Wait()
				says(c.then)
				if woken == 0 {
					t.Error("no event tells that the agent lists something else")
				}
				if want := 0; !c.watch && reads != want || c.watch && (reads < 1 || reads > 2) {
					t.Errorf("the API server was asked %d times", reads)
				}
				time.Sleep(time.Minute)
				says("")
			})
		})
	}
}
