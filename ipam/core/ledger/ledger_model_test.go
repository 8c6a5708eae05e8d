// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
)

// model is the reference implementation of a ledger. It has no indexes: it computes each answer from the current pools,
// claims and reservations.
type model struct {
	nodes   map[string]pool.NodePool
	claims  map[types.UID]ledger.Claim
	records map[string]ledger.Reservation
}

// decides reports whether claims on the node are possible: the node is known, and its subnets overlap those of no other
// node.
func (m *model) decides(name string) bool {
	n, ok := m.nodes[name]
	for other, o := range m.nodes {
		for _, s := range o.Subnets {
			if other != name && slices.ContainsFunc(n.Subnets, s.Overlaps) {
				return false
			}
		}
	}
	return ok
}

// free returns the addresses of a node that a claim may choose: claimable addresses that no FixedIP reserves.
func (m *model) free(name string, f address.Family) []netip.Addr {
	var free []netip.Addr
	for _, s := range m.nodes[name].Subnets {
		for a := range address.Up(s) {
			if _, reserved := m.reservationOf(a); address.Of(a) == f && !reserved && m.claimableBy("default/new-0", name, a) {
				free = append(free, a)
			}
		}
	}
	return free
}

// claimableBy reports whether an owner may claim exactly this address on a node.
func (m *model) claimableBy(owner, name string, a netip.Addr) bool {
	n := m.nodes[name]
	for _, c := range m.claims {
		if c.Node == name && slices.Contains(c.Addrs, a) {
			return false
		}
	}
	e, exists := n.Entries[a]
	reservation, reserved := m.reservationOf(a)
	switch {
	case !m.decides(name) || !n.Home(a):
		return false
	case exists && e.OwnedBy(owner):
		return true
	case reserved && reservation.Owner != owner, n.InUse(a), n.IsReleasing(a):
		return false
	}
	return !exists && !n.Unreported
}

// reservationOf returns the oldest reservation of an address. ok is false if there is none.
func (m *model) reservationOf(a netip.Addr) (oldest ledger.Reservation, ok bool) {
	for _, name := range slices.Sorted(maps.Keys(m.records)) {
		r := m.records[name]
		if slices.Contains(r.Addrs, a) && (!ok || r.Since.Before(oldest.Since)) {
			oldest, ok = r, true
		}
	}
	return oldest, ok
}

// ownAddresses returns the addresses of a family from which a claim of the owner on the node must choose: those of the
// owner's entries on the node, or else that of the owner's reservation. ok is false if there are none, so that the claim may
// choose a free address. If ok is true and choice is empty, the claim must fail.
func (m *model) ownAddresses(owner, name string, f address.Family) (choice []netip.Addr, ok bool) {
	ofFamily := func(a netip.Addr) bool { return address.Of(a) == f }
	if held := slices.DeleteFunc(m.heldOn(owner, name), func(a netip.Addr) bool { return !ofFamily(a) }); len(held) > 0 {
		return held, true
	}
	r := m.records[owner]
	i := slices.IndexFunc(r.Addrs, ofFamily)
	if r.Owner != owner || i < 0 {
		return nil, false
	}
	if !m.claimableBy(owner, name, r.Addrs[i]) {
		return nil, true
	}
	return r.Addrs[i : i+1], true
}

func (m *model) held(owner string) []ledger.NodeAddresses {
	var held []ledger.NodeAddresses
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		h := ledger.NodeAddresses{Node: name}
		for a, e := range m.nodes[name].Entries {
			if e.OwnedBy(owner) {
				h.Addrs = append(h.Addrs, a)
			}
		}
		slices.SortFunc(h.Addrs, netip.Addr.Compare)
		if len(h.Addrs) > 0 {
			held = append(held, h)
		}
	}
	return held
}

// compareMoves compares Moved and MoveTargets of an owner with the Moved and MoveTarget entries of the model.
func (m *model) compareMoves(t *rapid.T, l *ledger.Ledger, owner string) {
	var want, got []string
	for name, n := range m.nodes {
		for a, e := range n.Entries {
			if e.Kind == pool.Moved && e.Pod() == owner {
				there, known := m.nodes[e.Node()]
				want = append(want, fmt.Sprint("moved ", a, name, e.Node(), !known || there.Entries[a].Kind == pool.Cooldown))
			}
			if e.Kind == pool.MoveTarget && e.Pod() == owner {
				want = append(want, fmt.Sprint("move target ", a, name))
			}
		}
	}
	for _, x := range l.Moved(owner) {
		all, used := true, false
		for _, a := range x.Addrs {
			there, known := m.nodes[x.At]
			used = used || known && there.InUse(a)
			released := there.Entries[a].Kind == pool.Cooldown
			all = all && (!known || released)
			got = append(got, fmt.Sprint("moved ", a, x.Home, x.At, !known || released))
		}
		if x.Fenced != all || x.Used != used {
			t.Fatalf("Moved(%s): got %+v, want Fenced %v and Used %v", owner, x, all, used)
		}
	}
	for _, h := range l.MoveTargets(owner) {
		for _, a := range h.Addrs {
			got = append(got, fmt.Sprint("move target ", a, h.Node))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Fatalf("moves of %s: got %v, want %v", owner, got, want)
	}
}

var (
	modelNodes = []string{"node-1", "node-2", "node-3"}
	// The last subnet overlaps the first, so that the subnets of two nodes may overlap.
	modelSubnets = []netip.Prefix{
		netip.MustParsePrefix("10.0.1.0/29"), netip.MustParsePrefix("10.0.2.0/29"), netip.MustParsePrefix("10.0.3.0/30"),
		netip.MustParsePrefix("fd00::/126"), netip.MustParsePrefix("10.0.1.0/30"),
	}
	modelOwners  = []string{"db/mysql-0", "db/mysql-1", "web/web-0"}
	modelRecords = []string{"db/mysql-0", "db/mysql-1", "db/other"}
	// modelReserved are the addresses that reservations contain. 10.0.9.1 is in no subnet.
	modelReserved = []netip.Addr{
		addr("10.0.1.1"), addr("10.0.1.6"), addr("10.0.2.6"), addr("10.0.3.2"), addr("10.0.9.1"), addr("fd00::1"), addr("fd00::3"),
	}
)

func drawFamilies(t *rapid.T) []address.Family {
	return rapid.SampledFrom([][]address.Family{{address.IPv4}, {address.IPv6}, {address.IPv4, address.IPv6}}).Draw(t, "families")
}

// drawRecord draws a reservation of at most one address in each family.
func drawRecord(t *rapid.T) ledger.Reservation {
	r := ledger.Reservation{
		Record: rapid.SampledFrom(modelRecords).Draw(t, "record"),
		Owner:  rapid.SampledFrom(modelOwners).Draw(t, "owner"),
		Since:  time.Unix(int64(rapid.IntRange(1, 3).Draw(t, "since")), 0),
	}
	for _, a := range rapid.SliceOfNDistinct(rapid.SampledFrom(modelReserved), 0, 2, rapid.ID[netip.Addr]).Draw(t, "addrs") {
		if len(r.Addrs) == 0 || address.Of(r.Addrs[0]) != address.Of(a) {
			r.Addrs = append(r.Addrs, a)
		}
	}
	return r
}

// compareFreed compares the freed nodes that SetReservation or RemoveReservation returned with the homes of the
// addresses that are in before and not in after.
func (m *model) compareFreed(t *rapid.T, got []string, before, after []netip.Addr) {
	var want []string
	for _, name := range modelNodes {
		if slices.ContainsFunc(before, func(a netip.Addr) bool { return !slices.Contains(after, a) && m.nodes[name].Home(a) }) {
			want = append(want, name)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("reserved addresses changed from %v to %v: got freed nodes %v, want %v", before, after, got, want)
	}
}

// compareClaim checks the result of Assume: the claim must contain all addresses in exact, and in every other family one of
// the owner's addresses, or else a free address. Assume must fail if that is not possible.
func (m *model) compareClaim(t *rapid.T, c ledger.Claim, err error, owner, name string, families []address.Family, exact []netip.Addr, requested request.Addresses) {
	possible, size := m.decides(name), len(exact)
	for _, a := range exact {
		possible = possible && m.claimableBy(owner, name, a)
	}
	for _, f := range families {
		ofFamily := func(a netip.Addr) bool { return address.Of(a) == f }
		if slices.ContainsFunc(exact, ofFamily) {
			continue
		}
		size++
		choice, own := m.ownAddresses(owner, name, f)
		if !own {
			choice = m.requestedFree(name, f, requested)
		}
		possible = possible && len(choice) > 0
		if err != nil {
			continue
		}
		i := slices.IndexFunc(c.Addrs, ofFamily)
		if i < 0 || !slices.Contains(choice, c.Addrs[i]) {
			t.Fatalf("got claim of %v on %s for %s with request %q, want one of %v", c.Addrs, name, owner, requested, choice)
		}
		// Among requested addresses the claim must choose the highest free one.
		a := c.Addrs[i]
		hasEntry := func(a netip.Addr) bool { _, exists := m.nodes[name].Entries[a]; return exists }
		better := func(b netip.Addr) bool {
			return !hasEntry(b) && (hasEntry(a) || len(requested.Ranges(f)) > 0 && a.Less(b))
		}
		if !own && slices.ContainsFunc(choice, better) {
			t.Fatalf("got claim of %s on %s for %s with request %q, want the highest of %v", a, name, owner, requested, choice)
		}
	}
	if possible != (err == nil) {
		t.Fatalf("claim of %s on %s in %v with addresses %v and request %q: got error %v, want success: %v", owner, name, families, exact, requested, err, possible)
	}
	if err == nil && (len(c.Addrs) != size || slices.ContainsFunc(exact, func(a netip.Addr) bool { return !slices.Contains(c.Addrs, a) })) {
		t.Fatalf("got claim of %v for %s, want %d addresses with %v among them", c.Addrs, owner, size, exact)
	}
}

// ownedEntry returns the entry of a pod of one StatefulSet.
func ownedEntry(owner string) pool.Entry {
	namespace, name, _ := pool.SplitOwnerKey(owner)
	return pool.OwnedEntry(namespace, name, "StatefulSet", "mysql")
}

func drawNode(t *rapid.T) pool.NodePool {
	n := pool.NodePool{
		Name:    rapid.SampledFrom(modelNodes).Draw(t, "node"),
		Entries: map[netip.Addr]pool.Entry{},
		Used:    map[netip.Addr]string{},

		Handshakes: map[netip.Addr]pool.Handshake{},
		Unreported: rapid.IntRange(0, 9).Draw(t, "unreported") == 0,
	}
	n.Subnets = rapid.SliceOfNDistinct(rapid.SampledFrom(modelSubnets[:4]), 0, 2, rapid.ID[netip.Prefix]).Draw(t, "subnets")
	if rapid.IntRange(0, 9).Draw(t, "overlap") == 0 {
		n.Subnets = []netip.Prefix{modelSubnets[4]}
	}
	for _, s := range n.Subnets {
		for a := range address.Up(s) {
			switch rapid.IntRange(0, 7).Draw(t, "entry") {
			case 0:
				n.Entries[a] = pool.Entry{}
			case 1:
				n.Entries[a] = ownedEntry(rapid.SampledFrom(modelOwners).Draw(t, "owner"))
			case 2:
				n.Entries[a] = pool.CooldownEntry("", time.Unix(int64(rapid.IntRange(0, 5).Draw(t, "at")), 0))
			case 3:
				n.Entries[a] = pool.ForOwner("router")
			case 4:
				n.Entries[a] = pool.MovedEntry(rapid.SampledFrom(modelNodes).Draw(t, "moved to"), rapid.SampledFrom(modelOwners).Draw(t, "moved pod"))
			}
			if rapid.IntRange(0, 5).Draw(t, "used") == 0 {
				n.Used[a] = "default/other"
			}
			if rapid.IntRange(0, 5).Draw(t, "releasing") == 0 {
				n.Handshakes[a] = rapid.SampledFrom([]pool.Handshake{pool.MarkedForRelease, pool.ReadyForRelease, pool.Released, pool.DoNotRelease, pool.OtherState}).Draw(t, "handshake")
			}
		}
	}
	// The pool may also have entries for addresses of other homes: moved here, about to move here, or in their
	// cooldown.
	for _, s := range modelSubnets[:4] {
		a := s.Addr().Next()
		if n.Home(a) {
			continue
		}
		owner := rapid.SampledFrom(modelOwners).Draw(t, "carried pod")
		switch rapid.IntRange(0, 7).Draw(t, "carried") {
		case 0:
			n.Entries[a] = ownedEntry(owner)
		case 1:
			n.Entries[a] = pool.MoveTargetEntry(owner)
		case 2:
			n.Entries[a] = pool.CooldownEntry("", time.Unix(1, 0))
		}
	}
	return n
}

// TestModel applies random versions of pools, claims, ends of claims and reservations to a ledger and to the model, and
// compares their results after each step.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := ledger.New()
		m := &model{nodes: map[string]pool.NodePool{}, claims: map[types.UID]ledger.Claim{}, records: map[string]ledger.Reservation{}}
		uid := rapid.Map(rapid.IntRange(0, 4), func(i int) types.UID { return types.UID(fmt.Sprintf("uid-%d", i)) })
		t.Repeat(map[string]func(*rapid.T){
			"SetNode": func(t *rapid.T) {
				n := drawNode(t)
				before := map[address.Family]int{}
				for _, f := range address.Families {
					before[f] = len(m.free(n.Name, f))
				}
				_, known := m.nodes[n.Name]
				m.nodes[n.Name] = n
				change := l.SetNode(n)
				grew := false
				for _, f := range address.Families {
					grew = grew || len(m.free(n.Name, f)) > before[f]
				}
				if change.Appeared == known || (change.Freed > 0) != grew {
					t.Fatalf("got change %+v, want Appeared %v and Freed greater than 0: %v", change, !known, grew)
				}
			},
			"RemoveNode": func(t *rapid.T) {
				name := rapid.SampledFrom(modelNodes).Draw(t, "node")
				delete(m.nodes, name)
				l.RemoveNode(name)
			},
			"SetReservation": func(t *rapid.T) {
				r := drawRecord(t)
				before := m.records[r.Record].Addrs
				m.records[r.Record] = r
				m.compareFreed(t, l.SetReservation(r), before, r.Addrs)
			},
			"RemoveReservation": func(t *rapid.T) {
				name := rapid.SampledFrom(modelRecords).Draw(t, "record")
				before := m.records[name].Addrs
				delete(m.records, name)
				m.compareFreed(t, l.RemoveReservation(name), before, nil)
			},
			"AssumeRequested": func(t *rapid.T) {
				id, owner := uid.Draw(t, "uid"), rapid.SampledFrom(modelOwners).Draw(t, "owner")
				name, families, requested := rapid.SampledFrom(modelNodes).Draw(t, "node"), drawFamilies(t), noRequest
				if rapid.Bool().Draw(t, "has a request") {
					requested = drawRequest(t)
				}
				previous, again := m.claims[id]
				again = again && previous.Node == name && previous.Owner == owner
				if !again {
					delete(m.claims, id)
				}
				claim, err := l.Assume(id, ledger.ClaimRequest{Claim: ledger.Claim{Owner: owner, Node: name}, Families: families, Requested: requested})
				if again {
					if diff := cmp.Diff(previous, claim, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
						t.Fatalf("second Assume of the same claim: got error %v, claim (-want +got): %s", err, diff)
					}
					return
				}
				m.compareClaim(t, claim, err, owner, name, families, nil, requested)
				if err == nil {
					m.claims[id] = claim
				}
			},
			"AssumeExact": func(t *rapid.T) {
				id, owner := uid.Draw(t, "uid"), rapid.SampledFrom(modelOwners).Draw(t, "owner")
				name, families := rapid.SampledFrom(modelNodes).Draw(t, "node"), drawFamilies(t)
				addrs := drawRecord(t).Addrs
				if len(addrs) == 0 {
					// AssumeRequested covers claims without addresses.
					return
				}
				delete(m.claims, id)
				claim, err := l.Assume(id, ledger.ClaimRequest{Claim: ledger.Claim{Owner: owner, Node: name, Addrs: addrs}, Families: families})
				m.compareClaim(t, claim, err, owner, name, families, addrs, noRequest)
				if err == nil {
					m.claims[id] = claim
				}
			},
			"AssumeUnreserved": func(t *rapid.T) {
				id, owner := uid.Draw(t, "uid"), rapid.SampledFrom(modelOwners).Draw(t, "owner")
				name := rapid.SampledFrom(modelNodes).Draw(t, "node")
				families := rapid.SampledFrom([][]address.Family{{address.IPv4}, {address.IPv6}, {address.IPv4, address.IPv6}}).Draw(t, "families")
				delete(m.claims, id)
				l.Forget(id)
				claim, err := l.Assume(id, ledger.ClaimRequest{Claim: ledger.Claim{Owner: owner, Node: name}, Families: families, Unreserved: true})
				if err != nil {
					short := func(f address.Family) bool { return len(m.free(name, f)) == 0 }
					if _, overlaps := l.OverlapsWith(name); !overlaps && !slices.ContainsFunc(families, short) {
						t.Fatalf("claim of %s on %s in %v: got error %v, want success, because the node has free addresses", owner, name, families, err)
					}
					return
				}
				for i, a := range claim.Addrs {
					if slices.Contains(m.heldOn(owner, name), a) && address.Of(a) == families[i] {
						continue
					}
					// The claim must choose the lowest free address of the first subnet that has one.
					choice := m.free(name, families[i])
					hasEntry := func(a netip.Addr) bool { _, exists := m.nodes[name].Entries[a]; return exists }
					place := func(a netip.Addr) int {
						return slices.IndexFunc(m.nodes[name].Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
					}
					better := func(b netip.Addr) bool {
						return !hasEntry(b) && (hasEntry(a) || place(b) < place(a) || place(b) == place(a) && b.Less(a))
					}
					if !slices.Contains(choice, a) || slices.ContainsFunc(choice, better) {
						t.Fatalf("got claim of %s on %s for %s, want the lowest of %v", a, name, owner, choice)
					}
				}
				m.claims[id] = claim
			},
			"Forget": func(t *rapid.T) {
				id := uid.Draw(t, "uid")
				delete(m.claims, id)
				l.Forget(id)
			},
			"": func(t *rapid.T) {
				var subnets []netip.Prefix
				for _, name := range modelNodes {
					subnets = append(subnets, m.nodes[name].Subnets...)
					for _, f := range address.Families {
						want := int64(len(m.free(name, f)))
						if got := l.Available(name, f); got != want && !m.nodes[name].Unreported {
							t.Fatalf("got Available %d for %s on %s, want %d", got, f, name, want)
						}
						if got := l.HasAvailable(name, f); got != (want > 0) {
							t.Fatalf("got HasAvailable %t for %s on %s, want %t", got, f, name, want > 0)
						}
					}
				}
				slices.SortFunc(subnets, netip.Prefix.Compare)
				subnets = slices.Compact(subnets)
				sorted := slices.SortedFunc(slices.Values(l.Subnets()), netip.Prefix.Compare)
				if !slices.Equal(sorted, subnets) {
					t.Fatalf("got subnets %v, want %v", sorted, subnets)
				}
				for _, owner := range modelOwners {
					m.compareMoves(t, l, owner)
					if diff := cmp.Diff(m.held(owner), l.Held(owner), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
						t.Fatalf("Held(%s) (-want +got): %s", owner, diff)
					}
				}
				m.compareRequest(t, l, drawRequest(t))
				if got := l.Size().Claims; got != len(m.claims) {
					t.Fatalf("got %d claims in flight, want %d", got, len(m.claims))
				}
				for _, a := range modelReserved {
					_, want := m.reservationOf(a)
					if _, reserved := l.ReservedFor(a); reserved != want {
						t.Fatalf("got reserved %v for %s, want %v", reserved, a, want)
					}
				}
			},
		})
	})
}
