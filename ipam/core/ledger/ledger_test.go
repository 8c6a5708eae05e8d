// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/test/gen"
)

var (
	v4        = []address.Family{address.IPv4}
	noRequest request.Addresses
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// node returns the pool of a node with one subnet. The owner of all used addresses is db/old-0.
func node(name, subnet string, entries map[string]pool.Entry, used ...string) pool.NodePool {
	return gen.NodePool(name, subnet, entries, gen.UsedBy("db/old-0", used...))
}

func TestAssumeChooses(t *testing.T) {
	released := func(sec int64) pool.Entry { return pool.CooldownEntry("", time.Unix(sec, 0)) }
	full := map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.3": {}, "10.0.1.4": released(30), "10.0.1.5": released(10), "10.0.1.6": released(20)}
	for name, c := range map[string]struct {
		node    pool.NodePool
		want    string
		wantErr string
	}{
		"the highest address of an empty subnet":              {node: node("n", "10.0.1.0/29", nil), want: "10.0.1.6"},
		"the next address below the fixed ones":               {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.6": pool.ForOwner("db/x-0")}), want: "10.0.1.5"},
		"a dynamic entry is skipped":                          {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.6": {}, "10.0.1.5": {}}), want: "10.0.1.4"},
		"a used address is skipped":                           {node: node("n", "10.0.1.0/29", nil, "10.0.1.6", "10.0.1.5"), want: "10.0.1.4"},
		"an address that cools down is skipped":               {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.6": released(1)}), want: "10.0.1.5"},
		"all addresses are taken except those that cool down": {node: node("n", "10.0.1.0/29", full), wantErr: "the subnets of node n (10.0.1.0/29) have no free IPv4 address"},
		"the address of the pod's entry":                      {node: node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.2": pool.ForOwner("db/mysql-0")}), want: "10.0.1.2"},
		"no address is left":                                  {node: node("n", "10.0.1.0/30", map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}), wantErr: "the subnets of node n (10.0.1.0/30) have no free IPv4 address"},
		"the agent has not reported":                          {node: unreported(), wantErr: "the Cilium agent of node n has not reported yet which addresses its pods use, so that no address there is known to be free; check the cilium pod of the node"},
		"a node without a subnet":                             {node: pool.NodePool{Name: "n"}, wantErr: "the subnets of node n (none) have no free IPv4 address"},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			l.SetNode(c.node)
			claim, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/mysql-0", Node: "n"}, Families: v4})
			if c.wantErr != "" {
				if err == nil || err.Error() != c.wantErr {
					t.Fatalf("got error %v, want %s", err, c.wantErr)
				}
				return
			}
			if err != nil || len(claim.Addrs) != 1 || claim.Addrs[0] != addr(c.want) {
				t.Fatalf("got claim %+v and error %v, want %s", claim, err, c.want)
			}
		})
	}
}

// unreported returns the pool of a node whose agent has not reported since its CiliumNode was created.
func unreported() pool.NodePool {
	n := node("n", "10.0.1.0/29", nil)
	n.Unreported = true
	return n
}

func TestAssumeExact(t *testing.T) {
	n := node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": pool.ForOwner("db/other-0"), "10.0.1.3": pool.CooldownEntry("", time.Unix(1, 0)), "10.0.1.4": pool.ForOwner("db/mysql-0")}, "10.0.1.5")
	for want, wantErr := range map[string]string{
		"10.0.1.6": "",
		"10.0.1.4": "",
		"10.0.1.3": "IP 10.0.1.3 on node n has been cooling down since 1970-01-01T00:00:01Z",
		"10.0.1.1": "IP 10.0.1.1 has a dynamic entry in the pool of node n, so that any pod may be using it",
		"10.0.1.2": "IP 10.0.1.2 on node n belongs to pod db/other-0",
		"10.0.1.5": "IP 10.0.1.5 on node n is still in use by pod db/old-0",
		"10.0.2.1": "IP 10.0.2.1 is not in the subnets of node n (10.0.1.0/29)",
	} {
		l := ledger.New()
		l.SetNode(n)
		claim, err := l.Assume("uid", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/mysql-0", Node: "n", Addrs: []netip.Addr{addr(want)}}, Families: v4})
		if wantErr == "" {
			if err != nil || !slices.Equal(claim.Addrs, []netip.Addr{addr(want)}) {
				t.Errorf("%s: got claim %+v and error %v, want a claim of that address", want, claim, err)
			}
			if _, err := l.Assume("uid-2", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/mysql-1", Node: "n", Addrs: []netip.Addr{addr(want)}}, Families: v4}); err == nil {
				t.Errorf("%s: a second pod got the same address, want an error", want)
			}
		} else if err == nil || err.Error() != wantErr {
			t.Errorf("%s: got error %v, want %s", want, err, wantErr)
		}
	}
}

// TestClaimLifeCycle checks that a claim counts from Assume until Forget, and only once if the pool has its entry too.
func TestClaimLifeCycle(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("n", "10.0.1.0/29", nil))
	claim, err := l.Assume("uid-1", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/mysql-0", Node: "n"}, Families: v4})
	if err != nil || l.IsClaimed(claim) || l.Available("n", address.IPv4) != 5 {
		t.Fatalf("after Assume: got error %v, IsClaimed %v and Available %d, want none, false and 5", err, l.IsClaimed(claim), l.Available("n", address.IPv4))
	}
	if other, err := l.Assume("uid-2", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/mysql-1", Node: "n"}, Families: v4}); err != nil || other.Addrs[0] == claim.Addrs[0] {
		t.Fatalf("second claim: got %v and error %v, want another address than %v", other.Addrs, err, claim.Addrs)
	}
	l.SetNode(node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.6": pool.ForOwner("db/mysql-0")}))
	if !l.IsClaimed(claim) || l.Available("n", address.IPv4) != 4 {
		t.Fatalf("after the watch showed the entry: got IsClaimed %v and Available %d, want true and 4", l.IsClaimed(claim), l.Available("n", address.IPv4))
	}
	if _, grew := l.Forget("uid-1"); grew || !l.IsClaimed(claim) {
		t.Fatalf("Forget of a written claim: got grew %v and IsClaimed %v, want false and true", grew, l.IsClaimed(claim))
	}
	if _, grew := l.Forget("uid-2"); !grew || l.Available("n", address.IPv4) != 5 {
		t.Fatalf("Forget of an unwritten claim: got grew %v and Available %d, want true and 5", grew, l.Available("n", address.IPv4))
	}
	if _, grew := l.Forget("uid-2"); grew {
		t.Fatal("second Forget: got grew true, want false")
	}
}

// TestClaimedElsewhere checks that ClaimedOnOtherNode finds the claim of another pod with the same name on another node.
func TestClaimedElsewhere(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("n", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.6": pool.ForOwner("db/mysql-0")}))
	l.SetNode(node("m", "10.0.2.0/29", nil))
	if _, err := l.Assume("uid-1", ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/mysql-0", Node: "m", Addrs: []netip.Addr{addr("10.0.1.6")}}, Carry: true}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ uid, owner, node, want string }{
		{"uid-2", "db/mysql-0", "n", "m"},
		{"uid-2", "db/mysql-0", "m", ""},
		{"uid-1", "db/mysql-0", "n", ""},
		{"uid-2", "db/mysql-1", "n", ""},
	} {
		if at, _ := l.ClaimedOnOtherNode(types.UID(c.uid), c.owner, c.node); at != c.want {
			t.Errorf("ClaimedOnOtherNode(%s, %s, %s) = %q, want %q", c.uid, c.owner, c.node, at, c.want)
		}
	}
	l.Forget("uid-1")
	if at, ok := l.ClaimedOnOtherNode("uid-2", "db/mysql-0", "n"); ok {
		t.Errorf("got a claim on node %s after Forget, want none", at)
	}
}

func TestHomeAndOverlaps(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("node-1", "10.0.1.0/29", nil))
	if home, ok := l.Home(addr("10.0.1.3")); !ok || home != "node-1" {
		t.Fatalf("Home(10.0.1.3) returns %q, %v; want node-1", home, ok)
	}
	if home, ok := l.Home(addr("10.0.9.3")); ok {
		t.Fatalf("got home %q for an address in no subnet, want none", home)
	}
	l.SetNode(node("node-2", "10.0.1.0/30", nil))
	for _, n := range []string{"node-1", "node-2"} {
		if other, overlaps := l.OverlapsWith(n); !overlaps || other == n || l.Available(n, address.IPv4) != 0 {
			t.Errorf("%s: got an overlap with %q and Available %d, want the other node and 0", n, other, l.Available(n, address.IPv4))
		}
		if _, err := l.Assume(types.UID(n), ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/" + n, Node: n}, Families: v4}); err == nil {
			t.Errorf("%s: got a claim in an overlapping subnet, want an error", n)
		}
	}
	if home, ok := l.Home(addr("10.0.1.2")); ok {
		t.Fatalf("got home %q for an address in an overlapping subnet, want none", home)
	}
	l.RemoveNode("node-2")
	if other, overlaps := l.OverlapsWith("node-1"); overlaps || l.Available("node-1", address.IPv4) != 6 {
		t.Fatalf("after the removal of node-2: got an overlap with %q and Available %d, want no overlap and 6", other, l.Available("node-1", address.IPv4))
	}
}

func TestNodeChangeOwners(t *testing.T) {
	l := ledger.New()
	entry := func(owner string) map[string]pool.Entry {
		return map[string]pool.Entry{"10.0.1.6": pool.ForOwner(owner), "10.0.1.5": pool.ForOwner("db/stays-0")}
	}
	for _, step := range []struct {
		entries map[string]pool.Entry
		want    []string
	}{
		{entry("db/mysql-0"), []string{"db/mysql-0", "db/stays-0"}},
		{entry("db/mysql-0"), nil},
		{entry("db/mysql-1"), []string{"db/mysql-0", "db/mysql-1"}},
		{entry("router"), []string{"db/mysql-1"}},
		{nil, []string{"db/stays-0"}},
	} {
		if got := l.SetNode(node("n", "10.0.1.0/29", step.entries)); !slices.Equal(got.Owners, step.want) {
			t.Errorf("after SetNode with entries %v: got owners %v, want %v", step.entries, got.Owners, step.want)
		}
	}
}

// TestConcurrentClaims checks that concurrent calls of Assume never give one address to two pods, also while other goroutines
// call Available.
func TestConcurrentClaims(t *testing.T) {
	l := ledger.New()
	l.SetNode(node("n", "10.0.1.0/24", nil))
	var mu sync.Mutex
	owners := map[netip.Addr]string{}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			uid := types.UID(fmt.Sprint(i))
			if l.Available("n", address.IPv4) == 0 {
				t.Error("got Available 0 on a node with 254 addresses and at most 64 claims, want more")
			}
			claim, err := l.Assume(uid, ledger.ClaimRequest{Claim: ledger.Claim{Owner: fmt.Sprintf("db/mysql-%d", i), Node: "n"}, Families: v4})
			if err != nil {
				t.Errorf("Assume for db/mysql-%d returns error %v, want a claim", i, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if other, taken := owners[claim.Addrs[0]]; taken {
				t.Errorf("%s and %s both got %s, want different addresses", claim.Owner, other, claim.Addrs[0])
			}
			owners[claim.Addrs[0]] = claim.Owner
		})
	}
	wg.Wait()
}
