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
)

// model says what a ledger must answer, worked out anew each time from all that it was told.
type model struct {
	nodes  map[string]pool.Node
	claims map[types.UID]ledger.Claim
}

// free lists the addresses of a node that a claim may take.
func (m *model) free(name string, f address.Family) []netip.Addr {
	n, ok := m.nodes[name]
	if !ok {
		return nil
	}
	for other, o := range m.nodes {
		for _, s := range o.Subnets {
			if other != name && slices.ContainsFunc(n.Subnets, s.Overlaps) {
				return nil
			}
		}
	}
	assumed := map[netip.Addr]bool{}
	for _, c := range m.claims {
		for _, a := range c.Addrs {
			if c.Node == name {
				assumed[a] = true
			}
		}
	}
	var free []netip.Addr
	for _, s := range n.Subnets {
		for a := range address.Up(s) {
			e, exists := n.Entries[a]
			_, released := e.ReleasedAt()
			if address.Of(a) == f && (!exists || released) && !n.InUse(a) && !assumed[a] {
				free = append(free, a)
			}
		}
	}
	return free
}

func (m *model) held(owner string) []ledger.Holding {
	var held []ledger.Holding
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		h := ledger.Holding{Node: name}
		for a, e := range m.nodes[name].Entries {
			if e.Owner == owner {
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

var (
	modelNodes = []string{"node-1", "node-2", "node-3"}
	// The last one overlaps the first: two nodes may come to have it.
	modelSubnets = []netip.Prefix{
		netip.MustParsePrefix("10.0.1.0/29"), netip.MustParsePrefix("10.0.2.0/29"), netip.MustParsePrefix("10.0.3.0/30"),
		netip.MustParsePrefix("fd00::/126"), netip.MustParsePrefix("10.0.1.0/30"),
	}
	modelOwners = []string{"db/mysql-0", "db/mysql-1", "web/web-0"}
)

func drawNode(t *rapid.T) pool.Node {
	n := pool.Node{
		Name:    rapid.SampledFrom(modelNodes).Draw(t, "node"),
		Entries: map[netip.Addr]pool.Entry{},
		Used:    map[netip.Addr]string{},
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
				n.Entries[a] = pool.Entry{Owner: rapid.SampledFrom(modelOwners).Draw(t, "owner"), Resource: "db/StatefulSet/mysql"}
			case 2:
				n.Entries[a] = pool.Released(time.Unix(int64(rapid.IntRange(0, 5).Draw(t, "at")), 0))
			case 3:
				n.Entries[a] = pool.Entry{Owner: "router"}
			}
			if rapid.IntRange(0, 5).Draw(t, "used") == 0 {
				n.Used[a] = "somebody"
			}
		}
	}
	return n
}

// TestModel steps the ledger and the model side by side through versions of pools, claims and
// their ends, and compares every answer after each step.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := ledger.New()
		m := &model{nodes: map[string]pool.Node{}, claims: map[types.UID]ledger.Claim{}}
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
				if change.Appeared == known || change.Grew != grew {
					t.Fatalf("change %+v; the node was known: %v, it grew: %v", change, known, grew)
				}
			},
			"RemoveNode": func(t *rapid.T) {
				name := rapid.SampledFrom(modelNodes).Draw(t, "node")
				delete(m.nodes, name)
				l.RemoveNode(name)
			},
			"AssumeFrom": func(t *rapid.T) {
				id, owner := uid.Draw(t, "uid"), rapid.SampledFrom(modelOwners).Draw(t, "owner")
				name, asked := rapid.SampledFrom(modelNodes).Draw(t, "node"), drawAsked(t)
				families := rapid.SampledFrom([][]address.Family{{address.IPv4}, {address.IPv6}, {address.IPv4, address.IPv6}}).Draw(t, "families")
				delete(m.claims, id)
				l.Forget(id)
				offered := l.Offers(name, families, asked)
				claim, err := l.AssumeFrom(id, owner, name, families, asked)
				if len(m.heldOn(owner, name)) == 0 && offered != (err == nil) {
					t.Fatalf("%s on %s: offered %v, claimed with %v", asked, name, offered, err)
				}
				if err != nil {
					return
				}
				for i, a := range claim.Addrs {
					f := families[i]
					if slices.Contains(m.heldOn(owner, name), a) && address.Of(a) == f {
						continue
					}
					// Of what is free the highest, and what rests only when nothing else is left.
					choice := m.askedFree(name, f, asked)
					rests := func(a netip.Addr) bool { _, entry := m.nodes[name].Entries[a]; return entry }
					better := func(b netip.Addr) bool { return !rests(b) && (rests(a) || a.Less(b)) }
					if !slices.Contains(choice, a) || len(asked.Ranges(f)) > 0 && slices.ContainsFunc(choice, better) {
						t.Fatalf("claimed %s on %s for %s, which asked for %s: could have %v", a, name, owner, asked, choice)
					}
				}
				m.claims[id] = claim
			},
			"Assume": func(t *rapid.T) {
				id, owner := uid.Draw(t, "uid"), rapid.SampledFrom(modelOwners).Draw(t, "owner")
				name := rapid.SampledFrom(modelNodes).Draw(t, "node")
				families := rapid.SampledFrom([][]address.Family{{address.IPv4}, {address.IPv6}, {address.IPv4, address.IPv6}}).Draw(t, "families")
				previous, again := m.claims[id]
				again = again && previous.Node == name && previous.Owner == owner
				if !again {
					delete(m.claims, id)
				}
				claim, err := l.Assume(id, owner, name, families)
				if err != nil {
					// Only a family in which nothing is held and nothing is free is a reason.
					for _, f := range families {
						held := slices.ContainsFunc(m.held(owner), func(h ledger.Holding) bool {
							return h.Node == name && slices.ContainsFunc(h.Addrs, func(a netip.Addr) bool { return address.Of(a) == f })
						})
						if !held && len(m.free(name, f)) == 0 {
							return
						}
					}
					if _, disputed := l.Disputed(name); disputed {
						return
					}
					t.Fatalf("refused without reason: %v", err)
				}
				if again {
					if diff := cmp.Diff(previous, claim, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
						t.Fatalf("asked again, the claim changed: %s", diff)
					}
					return
				}
				for i, a := range claim.Addrs {
					mine := slices.ContainsFunc(m.held(owner), func(h ledger.Holding) bool { return h.Node == name && slices.Contains(h.Addrs, a) })
					if address.Of(a) != families[i] || !mine && !slices.Contains(m.free(name, families[i]), a) {
						t.Fatalf("claimed %s on %s for %s: neither held nor free", a, name, owner)
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
				for _, name := range modelNodes {
					for _, f := range address.Families {
						if got, want := l.Room(name, f), int64(len(m.free(name, f))); got != want {
							t.Fatalf("room for %s on %s: %d, want %d", f, name, got, want)
						}
					}
				}
				for _, owner := range modelOwners {
					if diff := cmp.Diff(m.held(owner), l.Held(owner), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
						t.Fatalf("held by %s (-want +got): %s", owner, diff)
					}
				}
				m.compareAsked(t, l, drawAsked(t))
				if l.Claims() != len(m.claims) {
					t.Fatalf("%d claims, want %d", l.Claims(), len(m.claims))
				}
			},
		})
	})
}
