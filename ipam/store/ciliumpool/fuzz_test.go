// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
)

// FuzzCiliumNode checks, for any content of a CiliumNode, that decoding loses no entry, that the edits that the controller
// and the scheduler plan take no address from a pod, and that their patches can be applied and have exactly the planned
// result.
func FuzzCiliumNode(f *testing.F) {
	for _, seed := range []nodeText{
		{"10.0.1.0/24,fd00::/120", "10.0.1.1,10.0.1.254=db/mysql-0=db/StatefulSet/mysql,fd00::a=router", "10.0.1.254=db/mysql-0 [restored],10.0.1.1=db/other", "-"},
		{"10.0.1.0/29,10.0.1.0/29", "10.0.1.1=fixedip.io/cooldown=since=2026-11-21T10:00:00Z,10.0.1.2=fixedip.io/cooldown=soon;new=field,10.0.1.3=fixedip.io/moved=node=node-2;pod=db/leaving", "-", "-"},
		{"10.0.1.0/28,10.0.1.0/30,10.0.0/8,::ffff:10.9.0.0/120,10.0.1.77/24", "-", "10.0.1.2=router", ""},
		{"10.0.1.0/28", "10.0.1.1,10.0.1.2,10.0.1.3,10.0.1.4==x,10.0.1.05,::ffff:10.0.1.6=db/a,192.168.0.1=db/b", "10.0.1.1=db/web", "10.0.1.2=marked-for-release,10.0.1.3=ready-for-release,10.0.1.7=released,10.0.1.8=later,x=released"},
		{"::/0,0.0.0.0/0", "", "", "-"},
		{"10.0.1.4/31,fd00::1/128", "fd00::1=db/Mysql 0/x=///", "fd00::1=db/newcomer", "fd00::1=do-not-release"},
		{"10.0.1.0/30", "10.0.1.1=db/newcomer=db/Pod/newcomer,10.0.1.2=db/newcomer=db/Pod/newcomer", "10.0.1.1=db/newcomer,10.0.1.2=ingress", "10.0.1.1=ready-for-release"},
		{"-", "-", "-", "-"},
	} {
		for variant := range byte(16) {
			f.Add(seed.podCIDRs, seed.pool, seed.used, seed.releases, variant)
		}
	}
	f.Fuzz(func(t *testing.T, podCIDRs, entries, used, releases string, variant byte) {
		cn := nodeText{podCIDRs, entries, used, releases}.ciliumNode()
		n := FromCiliumNode(&cn)
		checkDecoded(t, &cn, n)
		world := surroundings{variant: variant, n: n}
		for what, edits := range world.plans() {
			world.checkEdits(t, what, edits)
			after := applied(t, what, cn, encode(n, nil, edits, variant%2 == 0, false))
			if diff := cmp.Diff(n.With(edits).Entries, after.Entries, compareAddrs); diff != "" {
				t.Errorf("%s: the result of the patch differs from the plan (-want +got): %s", what, diff)
			}
		}
		if withdrawn := n.Withdrawable(); len(withdrawn) > 0 {
			want := maps.Clone(n.Handshakes)
			for _, a := range withdrawn {
				delete(want, a)
			}
			after := applied(t, "WithdrawHandshakes", cn, encodeWithdrawal(n, withdrawn))
			if diff := cmp.Diff(want, after.Handshakes, compareAddrs, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("WithdrawHandshakes: the result of the patch differs from the plan (-want +got): %s", diff)
			}
		}
		world.checkClaims(t)
	})
}

// nodeText is the content of a CiliumNode in a short form for the fuzzer. Each field is a list with commas between the
// elements: an entry is address=owner=resource, a handshake is address=state. "-" means that the list is missing.
type nodeText struct{ podCIDRs, pool, used, releases string }

func (w nodeText) ciliumNode() ciliumv2.CiliumNode {
	elements := func(list string) (elements []string, some bool) {
		if list == "-" {
			return nil, false
		}
		// The API server returns valid UTF-8 only.
		return strings.FieldsFunc(strings.ToValidUTF8(list, "?"), func(r rune) bool { return r == ',' }), true
	}
	allocations := func(list string) ipamtypes.AllocationMap {
		entries, some := elements(list)
		if !some {
			return nil
		}
		all := ipamtypes.AllocationMap{}
		for _, e := range entries {
			parts := append(strings.SplitN(e, "=", 3), "", "")
			all[parts[0]] = ipamtypes.AllocationIP{Owner: parts[1], Resource: parts[2]}
		}
		return all
	}
	cn := ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Generation: 3}}
	if subnets, some := elements(w.podCIDRs); some {
		cn.Spec.IPAM.PodCIDRs = append([]string{}, subnets...)
	}
	cn.Spec.IPAM.Pool, cn.Status.IPAM.Used = allocations(w.pool), allocations(w.used)
	if states, some := elements(w.releases); some {
		cn.Status.IPAM.ReleaseIPs = map[string]ipamtypes.IPReleaseStatus{}
		for _, s := range states {
			key, state, _ := strings.Cut(s, "=")
			cn.Status.IPAM.ReleaseIPs[key] = ipamtypes.IPReleaseStatus(state)
		}
	}
	return cn
}

// checkDecoded checks that every entry and subnet of the CiliumNode is either decoded or reported as malformed, and
// that the decoded entries, subnets and used addresses are those of the CiliumNode.
func checkDecoded(t *testing.T, cn *ciliumv2.CiliumNode, n pool.NodePool) {
	t.Helper()
	if skipped := len(cn.Spec.IPAM.Pool) + len(cn.Spec.IPAM.PodCIDRs) - len(n.Entries) - len(n.Subnets); len(n.Malformed) != skipped {
		t.Errorf("%d entries and subnets were not decoded, but Malformed is %q", skipped, n.Malformed)
	}
	for a, e := range n.Entries {
		got := cn.Spec.IPAM.Pool[a.String()]
		if want, _ := DecodeEntry(got); e != want || got.Resource != writtenResource(n, a) {
			t.Errorf("entry %+v of %s was decoded as %+v with resource %q, want %+v with its own resource", got, a, e, writtenResource(n, a), want)
		}
	}
	for i, s := range n.Subnets {
		if s != s.Masked() || s.Addr().Is4In6() || slices.ContainsFunc(n.Subnets[:i], s.Overlaps) {
			t.Errorf("got subnets %v, want masked, disjoint subnets without IPv4-mapped addresses", n.Subnets)
		}
	}
	for a := range n.Used {
		if _, ok := cn.Status.IPAM.Used[a.String()]; !ok {
			t.Errorf("Used has %s, which status.ipam.used does not have", a)
		}
	}
}

// writtenResource returns the resource of an entry as the CiliumNode has it.
func writtenResource(n pool.NodePool, a netip.Addr) string {
	if written, other := n.Resources[a]; other {
		return written
	}
	return EncodeEntry(n.Entries[a]).Resource
}

// surroundings is the state of the cluster on which decisions about the node depend. It is derived from variant, so
// that the fuzzer can vary it.
type surroundings struct {
	variant byte
	n       pool.NodePool
}

func (w surroundings) reserved(a netip.Addr) bool {
	b := a.As16()
	return w.variant&4 != 0 && b[15]%5 == 0
}
func (w surroundings) held(a netip.Addr) bool { b := a.As16(); return w.variant&8 != 0 && b[15]%3 == 0 }

func (w surroundings) watermark(f address.Family) nodepool.Watermark {
	size := int64(0)
	for _, s := range w.n.Subnets {
		if address.Of(s.Addr()) == f {
			size = max(size, address.Size(s))
		}
	}
	return nodepool.Watermark{Free: int(w.variant%11) + 2, Excess: int(w.variant % 3)}.ForNode(20, size)
}

// occupants returns the pods that the node may have: the owners of its entries, the users of its addresses, and a new pod.
func (w surroundings) occupants() []nodepool.PodAddresses {
	var pods []nodepool.PodAddresses
	add := func(owner string, addrs ...netip.Addr) {
		namespace, name, ok := pool.SplitOwnerKey(owner)
		if ok && !slices.ContainsFunc(pods, func(o nodepool.PodAddresses) bool { return o.Namespace == namespace && o.Name == name }) {
			pods = append(pods, nodepool.PodAddresses{Namespace: namespace, Name: name, Addrs: addrs})
		}
	}
	for a, owner := range w.n.Used {
		add(owner, a)
	}
	for _, e := range w.n.Entries {
		add(e.Owner())
	}
	add("db/newcomer")
	return pods
}

var fuzzNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// plans returns edits that the controller may write to the pool of the node. Key: their purpose.
func (w surroundings) plans() map[string][]pool.EntryChange {
	all := map[string][]pool.EntryChange{}
	expired := nodepool.State{Now: fuzzNow, Cooldown: time.Minute, Held: w.held, OnOtherNode: func(netip.Addr) bool { return false }, Acknowledged: func(pool.NodePool, netip.Addr) bool { return true }}
	all["expire"], _ = expired.ExpireCooldowns(w.n)
	all["strict"], _ = nodepool.Strict(w.n, w.occupants(), w.reserved)
	for _, f := range address.Families {
		all["fill "+f.String()], _ = nodepool.FillDynamic(w.n, f, w.watermark(f), w.reserved)
		all["withdraw "+f.String()] = nodepool.Surplus(w.n, f, w.watermark(f), fuzzNow, w.held, w.reserved)
	}
	all["release"] = w.n.Release("db/mysql-0", nil, fuzzNow)
	return all
}

// checkEdits checks that edits require the current entries, change each entry once, add no entry outside the subnets, change
// no moved or foreign entry, and take no address from a pod that has it, except for a release.
func (w surroundings) checkEdits(t *testing.T, what string, edits []pool.EntryChange) {
	t.Helper()
	for i, e := range edits {
		now, exists := w.n.Entries[e.Addr]
		if exists != (e.From != nil) || exists && now != *e.From {
			t.Errorf("%s: the edit of %s requires entry %+v, but the entry is %+v", what, e.Addr, e.From, now)
		}
		if slices.ContainsFunc(edits[:i], func(o pool.EntryChange) bool { return o.Addr == e.Addr }) {
			t.Errorf("%s: %s has two edits, want one", what, e.Addr)
		}
		if !exists && !w.n.Home(e.Addr) {
			t.Errorf("%s: the edit adds %s, which is in none of the subnets %v", what, e.Addr, w.n.Subnets)
		}
		if now.Kind == pool.Owned && what != "release" {
			t.Errorf("%s: the edit takes %s from its owner %s", what, e.Addr, now.Owner())
		}
		if now.Kind == pool.Moved || now.Kind == pool.Foreign {
			t.Errorf("%s: the edit changes the entry of %s, which is of kind %s", what, e.Addr, now.Kind)
		}
		if user, used := w.n.Used[e.Addr]; used && e.To != nil && e.To.Allocatable() && e.To.Owner() != user {
			t.Errorf("%s: the edit offers %s to %q, but %q uses the address", what, e.Addr, e.To.Owner(), user)
		}
	}
}

// checkClaims checks that a ledger that reports available addresses chooses one for a pod, and that no other pod has
// that address.
func (w surroundings) checkClaims(t *testing.T) {
	t.Helper()
	// The ledger chooses no address before the agent has reported.
	w.n.Unreported = false
	l := ledger.New()
	l.SetNode(w.n)
	for _, f := range address.Families {
		uid := types.UID("pod-" + f.String())
		claim, err := l.Assume(uid, ledger.ClaimRequest{Claim: ledger.Claim{Owner: "db/newcomer", Node: w.n.Name}, Families: []address.Family{f}})
		owns := len(w.n.With(nil).Release("db/newcomer", nil, fuzzNow)) > 0
		if available := l.Available(w.n.Name, f); err != nil {
			if available > 0 && !owns {
				t.Errorf("%d %s addresses are available, but Assume returned error %v", available, f, err)
			}
			continue
		}
		for _, a := range claim.Addrs {
			now, exists := w.n.Entries[a]
			if !w.n.Home(a) || exists && !now.OwnedBy("db/newcomer") || w.n.InUse(a) && w.n.Used[a] != "db/newcomer" {
				t.Errorf("Assume chose %s on a node with subnets %v, but the address is outside of them or taken: entry %+v, used by %q", a, w.n.Subnets, now, w.n.Used[a])
			}
			if _, err := w.n.Claim([]netip.Addr{a}, pool.OwnedEntry("db", "newcomer", "StatefulSet", "new")); err != nil && !owns {
				t.Errorf("Assume chose %s, which cannot be claimed: %v", a, err)
			}
		}
		l.Forget(uid)
	}
}

// applied returns the pool of the node after a patch, applied as by the API server.
func applied(t *testing.T, what string, cn ciliumv2.CiliumNode, operations []operation) pool.NodePool {
	t.Helper()
	doc, err := document(cn)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		t.Fatal(err)
	}
	ops, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("%s: decode the patch: %v", what, err)
	}
	after, err := ops.Apply(doc)
	if err != nil {
		t.Fatalf("%s: apply patch %s to %s: %v", what, patch, doc, err)
	}
	var changed ciliumv2.CiliumNode
	if err := kjson.UnmarshalCaseSensitivePreserveInts(after, &changed); err != nil {
		t.Fatalf("%s: decode the patched CiliumNode: %v", what, err)
	}
	return FromCiliumNode(&changed)
}

// document returns the JSON of a CiliumNode as the API server stores it. It includes empty podCIDRs and empty maps of the pool
// and of release-ips, which the JSON of the Go type omits.
func document(cn ciliumv2.CiliumNode) ([]byte, error) {
	doc, err := json.Marshal(cn)
	ipam, status := map[string]any{}, map[string]any{}
	if s := cn.Spec.IPAM.PodCIDRs; s != nil {
		ipam["podCIDRs"] = s
	}
	if p := cn.Spec.IPAM.Pool; p != nil {
		ipam["pool"] = p
	}
	if r := cn.Status.IPAM.ReleaseIPs; r != nil {
		status["release-ips"] = r
	}
	written, writtenErr := json.Marshal(map[string]any{"spec": map[string]any{"ipam": ipam}, "status": map[string]any{"ipam": status}})
	if err := errors.Join(err, writtenErr); err != nil {
		return nil, err
	}
	return jsonpatch.MergePatch(doc, written)
}
