// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// How long a pod waits for an agent that may not know that an address is its own: while the agent is silent, until it has
// had the time to hear and to say what it gave out meanwhile, and after a time in which the node was not heard of anew. A
// scheduler that begins now goes by what the entry says.
func TestAgentThatMayNotKnow(t *testing.T) {
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
				p := &Plugin{
					world:   &world{ledger: ledger.New()},
					nodes:   corelisters.NewNodeLister(storeOf(t, node)),
					silence: newSilence(patience, nil),
				}
				n := pool.Node{Name: "n", UID: "n", Used: map[netip.Addr]string{}}
				show := func(e pool.Entry) {
					n.Entries = map[netip.Addr]pool.Entry{a: e}
					p.world.ledger.SetNode(n)
				}
				if c.was != nil {
					show(*c.was)
				}
				own := movedID.Entry()
				if c.age > 0 {
					own.Since = now.Add(-c.age).Unix()
				}
				show(own)
				if c.reports {
					n.Used = map[netip.Addr]string{netip.MustParseAddr("10.0.1.7"): "db/other-0"}
					show(own)
				}
				why, at := p.unheard("n", []netip.Addr{a}, now.Add(-c.pod))
				if (why != "") != (c.want > 0) || c.want > 0 && at.Sub(now) != c.want {
					t.Errorf("waits until %v (%v), want %v: %q", at, at.Sub(now), c.want, why)
				}
				claim := ledger.Claim{Owner: movedOwner, Node: "n", Addrs: []netip.Addr{a}}
				if err := p.heard(claim, now.Add(-c.pod)); (err != nil) != (c.want > 0) || err != nil && !errors.Is(err, errUnheard) {
					t.Errorf("a claim that stands: %v", err)
				}
			})
		})
	}
}

// What a claim that stands is worth, by what the API server has.
func TestClaimIsConfirmed(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("10.0.1.7")
	mine := movedID.Entry()
	claim := ledger.Claim{Owner: movedOwner, Node: "n", Addrs: []netip.Addr{a}}
	for name, c := range map[string]struct {
		shown, stands map[netip.Addr]pool.Entry
		used          map[netip.Addr]string
		want          string
	}{
		"it stands":                    {shown: map[netip.Addr]pool.Entry{a: mine, b: {}}, stands: map[netip.Addr]pool.Entry{a: mine}},
		"and its agent lists it":       {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: mine}, used: map[netip.Addr]string{a: movedOwner}},
		"and another has it":           {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: mine}, used: map[netip.Addr]string{a: "db/other-0"}, want: "10.0.1.6 on node n is used by db/other-0: the address is not available"},
		"it was taken":                 {shown: map[netip.Addr]pool.Entry{a: mine}, stands: map[netip.Addr]pool.Entry{a: pool.CooldownEntry("", time.Unix(1, 0))}, want: "the pool of node n has nothing for it, which the watch has yet to show: the address is not available"},
		"another is kept in its place": {shown: map[netip.Addr]pool.Entry{a: mine, b: {}}, stands: map[netip.Addr]pool.Entry{b: mine}, want: "the pool of node n has 10.0.1.7 for it, which the watch has yet to show: the address is not available"},
		"two, both shown":              {shown: map[netip.Addr]pool.Entry{a: mine, b: mine}, stands: map[netip.Addr]pool.Entry{a: mine, b: mine}},
		"two, and another has one":     {shown: map[netip.Addr]pool.Entry{a: mine, b: mine}, stands: map[netip.Addr]pool.Entry{a: mine, b: mine}, used: map[netip.Addr]string{b: "web/x"}, want: "10.0.1.7 on node n is used by a pod of another namespace: the address is not available"},
	} {
		w := &world{ledger: ledger.New()}
		w.ledger.SetNode(pool.Node{Name: "n", UID: "n", Entries: c.shown})
		got := ""
		if err := w.confirm(pool.Node{Name: "n", UID: "n", Entries: c.stands, Used: c.used}, claim); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
