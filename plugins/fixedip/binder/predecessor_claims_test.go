// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

func namedPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(name)}}
}

// TestPredecessorClaim checks that, if a pod is deleted while its address is being moved, the next pod of the name waits
// until the claim of the former pod has ended, and not longer. Without the wait, the next pod would rely on an entry that
// is about to be removed.
func TestPredecessorClaim(t *testing.T) {
	const owner = "db/mysql-0"
	mine := netip.MustParseAddr("10.0.1.6")
	l := ledger.New()
	l.SetNode(pool.NodePool{Name: "home", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/29")}, Entries: map[netip.Addr]pool.Entry{mine: pool.ForOwner(owner)}})
	l.SetNode(pool.NodePool{Name: "other", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.2.0/29")}})
	b := &Binder{Shared: &Shared{Cache: &cache.Cache{Ledger: l}}}
	var notified []string
	b.Cache.Subscribe(func(e requeue.Event) {
		for _, k := range e.Keys {
			notified = append(notified, k.Name)
		}
	})
	former := namedPod("mysql-0")
	if _, err := l.Assume(former.UID, ledger.ClaimRequest{Claim: ledger.Claim{Owner: owner, Node: "other", Addrs: []netip.Addr{mine}}, Carry: true}); err != nil {
		t.Fatal(err)
	}
	p := &Plan{id: identity.Identity{Namespace: "db", PodName: "mysql-0"}, uid: "next", reservation: reservation{nodesWithEntries: []string{"home"}}}
	if refusal := b.claimedElsewhere(p, "home"); refusal == nil || !strings.Contains(refusal.Reason, "being claimed on node other") {
		t.Fatalf("during the claim: got %v, want a refusal that names node other", refusal)
	}
	b.Forget(former)
	if !slices.Equal(notified, []string{owner}) {
		t.Errorf("Forget of a claim notified %v, want [%s]", notified, owner)
	}
	if refusal := b.claimedElsewhere(p, "home"); refusal != nil {
		t.Errorf("after the claim: got refusal %v, want none", refusal)
	}
	notified = nil
	b.Forget(former)
	if notified != nil {
		t.Errorf("Forget without a claim notified %v, want nothing", notified)
	}
}
