// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
)

// A pod waits for an agent that may not know that an address is the pod's: until the agent has reported, or has had the
// time to see the entry and to report what it assigned meanwhile. That time begins again when the node becomes ready. A
// scheduler that starts goes by the time in the entry.
func TestUnacknowledged(t *testing.T) {
	const patience = time.Minute
	a := netip.MustParseAddr("10.0.1.6")
	for name, c := range map[string]struct {
		// was is the entry that the scheduler saw first; nil: it began with what stands.
		was *pool.Entry
		// age is how long the entry has said that it is the name's; 0: it does not say.
		age time.Duration
		// ready is for how long the node has been ready; 0: it is not.
		ready time.Duration
		// reports: the agent has given out something else since.
		reports bool
		// pod is for how long the pod has been there.
		pod time.Duration
		// want is how long the pod waits at most; 0: it does not.
		want time.Duration
	}{
		"just now":                            {was: &pool.Entry{}, age: time.Second, ready: time.Hour, want: 119 * time.Second},
		"just now, and the scheduler is new":  {age: time.Second, ready: time.Hour, want: 119 * time.Second},
		"it has heard, and may not have said": {age: 90 * time.Second, ready: time.Hour, pod: 80 * time.Second, want: 30 * time.Second},
		"it would have said":                  {age: 2 * time.Minute, ready: time.Hour},
		"it has reported":                     {was: &pool.Entry{}, age: time.Second, ready: time.Hour, reports: true},
		"its node was not heard of":           {age: time.Hour, ready: 30 * time.Second, want: 90 * time.Second},
		"its node is not heard of":            {age: time.Second, want: 119 * time.Second},
		"by hand":                             {was: &pool.Entry{}, ready: time.Hour, pod: 20 * time.Second, want: 40 * time.Second},
		"by hand, long ago":                   {was: &pool.Entry{}, ready: time.Hour, pod: time.Minute},
		"by hand, and the scheduler is new":   {ready: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(24 * time.Hour)
				now := time.Now()
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
				if c.ready > 0 {
					node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-c.ready))}}
				}
				l := ledger.New()
				j := newJudge(&cache.Cache{Ledger: l}, nil, corelisters.NewNodeLister(storeOf(t, node)), nil, patience)
				n := pool.Node{Name: "n", UID: "n", Used: map[netip.Addr]string{}}
				show := func(e pool.Entry) {
					n.Entries = map[netip.Addr]pool.Entry{a: e}
					l.SetNode(n)
				}
				if c.was != nil {
					show(*c.was)
				}
				own := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
				if c.age > 0 {
					own.Since = now.Add(-c.age).Unix()
				}
				show(own)
				if c.reports {
					n.Used = map[netip.Addr]string{netip.MustParseAddr("10.0.1.7"): "db/other-0"}
					show(own)
				}
				v := j.Unacknowledged(Subject{Owner: movedOwner, Node: "n", Addrs: []netip.Addr{a}, Created: now.Add(-c.pod)})
				if (v.Reason != "") != (c.want > 0) || c.want > 0 && v.Until.Sub(now) != c.want || !v.Until.Equal(v.WakeOn.At) {
					t.Errorf("waits until %v (%v), want %v: %q", v.Until, v.Until.Sub(now), c.want, v.Reason)
				}
			})
		})
	}
}
