// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

func TestSize(t *testing.T) {
	l := ledger.New()
	steps := []struct {
		what string
		do   func()
		want ledger.Size
	}{
		{"an empty ledger", func() {}, ledger.Size{}},
		{"a node without entries", func() { l.SetNode(node("n1", "10.0.1.0/29", nil)) }, ledger.Size{Nodes: 1}},
		{"dynamic and node-owned entries do not count", func() {
			l.SetNode(node("n2", "10.0.2.0/29", map[string]pool.Entry{"10.0.2.1": {}, "10.0.2.2": pool.ForOwner("router"), "10.0.2.6": pool.ForOwner("db/a-0")}))
		}, ledger.Size{Nodes: 2, Entries: 1}},
		{"one owner on two nodes", func() {
			l.SetNode(node("n1", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.6": pool.ForOwner("db/a-0")}))
		}, ledger.Size{Nodes: 2, Entries: 2}},
		{"a claim in flight", func() {
			if _, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/b-0", Node: "n1"}, Families: v4}); err != nil {
				t.Fatal(err)
			}
		}, ledger.Size{Nodes: 2, Entries: 2, Claims: 1}},
		{"the claim was forgotten", func() { l.Forget("uid") }, ledger.Size{Nodes: 2, Entries: 2}},
		{"a node was removed", func() { l.RemoveNode("n2") }, ledger.Size{Nodes: 1, Entries: 1}},
	}
	for _, s := range steps {
		s.do()
		if got := l.Size(); got != s.want {
			t.Errorf("%s: got %+v, want %+v", s.what, got, s.want)
		}
	}
}
