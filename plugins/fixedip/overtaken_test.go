// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// A pod was deleted while its address was on its way to another node. The next of its name would have counted on
// the entry that was just being taken: it waits until the claim of the one before it has ended, and not longer.
func TestOvertaken(t *testing.T) {
	const owner = "db/mysql-0"
	mine := netip.MustParseAddr("10.0.1.6")
	l := ledger.New()
	l.SetNode(pool.Node{Name: "home", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/29")}, Entries: map[netip.Addr]pool.Entry{mine: pool.ForOwner(owner)}})
	l.SetNode(pool.Node{Name: "other", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/29")}})
	var woken []string
	p := &Plugin{world: &world{ledger: l}}
	p.waiting = newWaiting(func(pods map[string]*corev1.Pod) {
		for key := range pods {
			woken = append(woken, key)
		}
	})
	p.world.subscribe(p.waiting)
	former, next := waitingPod("mysql-0"), waitingPod("mysql-0")
	former.UID, next.UID = "former", "next"
	if _, err := l.AssumeMoved(former.UID, owner, "other", []netip.Addr{mine}); err != nil {
		t.Fatal(err)
	}
	decided := p.waiting.now()
	if at, ok := p.world.overtakes(next.UID, owner, "home"); !ok || at != "other" {
		t.Fatalf("overtakes on node %q, %t", at, ok)
	}
	p.refuse(next, cause{owner: owner}, decided, "")
	p.forget(former)
	if !slices.Equal(woken, []string{owner}) {
		t.Errorf("woken when the claim has ended: %v", woken)
	}
	if at, ok := p.world.overtakes(next.UID, owner, "home"); ok {
		t.Errorf("overtakes on node %s once it has ended", at)
	}
	woken = nil
	p.forget(former)
	if woken != nil {
		t.Errorf("woken by nothing: %v", woken)
	}
}
