// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
)

func never(netip.Addr) bool { return false }

// withHandshakes returns the result of node(entries, used...) with release handshakes. Key of states: the address.
func withHandshakes(entries map[string]pool.Entry, states map[string]pool.Handshake, used ...string) pool.NodePool {
	n := node(entries, used...)
	n.Handshakes = map[netip.Addr]pool.Handshake{}
	for a, state := range states {
		n.Handshakes[addr(a)] = state
	}
	return n
}

func TestSurplus(t *testing.T) {
	owned := pool.ForOwner("db/mysql-0")
	six := map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.3": {}, "10.0.1.4": {}, "10.0.1.5": {}, "10.0.1.6": {}}
	two := map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}
	for name, c := range map[string]struct {
		node pool.NodePool
		mark nodepool.Watermark
		// held is the address of a pod, reserved that of a FixedIP; empty: none.
		held     string
		reserved string
		// want are the addresses that are withdrawn.
		want []string
	}{
		"the excess is withdrawn from the top, down to half of it":         {node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Free: 1, Excess: 2, Max: 9}, want: []string{"10.0.1.4", "10.0.1.5", "10.0.1.6"}},
		"an allowed excess stays":                                          {node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Free: 3, Excess: 2, Max: 9}},
		"entries above the maximum are withdrawn":                          {node: node(six, "10.0.1.1", "10.0.1.6"), mark: nodepool.Watermark{Free: 4, Excess: 2, Max: 4}, want: []string{"10.0.1.4", "10.0.1.5"}},
		"the address of a pod stays":                                       {node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Max: 9}, held: "10.0.1.4", want: []string{"10.0.1.2", "10.0.1.3", "10.0.1.5", "10.0.1.6"}},
		"nothing is withdrawn before the agent has reported":               {node: unreported(node(six)), mark: nodepool.Watermark{}},
		"a reserved address is withdrawn although its entry is needed":     {node: node(two, "10.0.1.6"), mark: nodepool.Watermark{Free: 2, Excess: 2, Max: 9}, reserved: "10.0.1.1", want: []string{"10.0.1.1"}},
		"a reserved address that a pod has stays":                          {node: node(two, "10.0.1.1"), mark: nodepool.Watermark{Free: 1, Max: 9}, reserved: "10.0.1.1"},
		"entries of other kinds do not count, and stay":                    {node: node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": owned, "10.0.1.3": pool.WithdrawnEntry(time.Unix(1, 0)), "10.0.1.4": pool.CooldownEntry("", time.Unix(1, 0))}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}},
		"a strict node has no dynamic entries":                             {node: node(two, "10.0.1.1"), mark: nodepool.NoDynamic, want: []string{"10.0.1.2"}},
		"an entry in the handshake of another program counts as any other": {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, want: []string{"10.0.1.2"}},
	} {
		held := func(a netip.Addr) bool { return c.held != "" && a == addr(c.held) }
		reserved := func(a netip.Addr) bool { return c.reserved != "" && a == addr(c.reserved) }
		edits := nodepool.Surplus(c.node, address.IPv4, c.mark, time.Unix(1, 0), held, reserved)
		for _, e := range edits {
			if !e.RequireUnused || e.From == nil || *e.From != (pool.Entry{}) || e.To == nil || !e.To.IsWithdrawn() {
				t.Errorf("%s: got edit %+v, want the withdrawal of a dynamic entry that requires that the address is unused", name, e)
			}
		}
		if !equal(edited(edits), c.want) {
			t.Errorf("%s: got withdrawals of %v, want %v", name, edited(edits), c.want)
		}
	}
}

// agent models the allocator of a Cilium agent. The agent acts on the version of the node that it saw last, which may be old. Its
// writes fail if the node was written after that version.
type agent struct {
	api *pool.NodePool
	// version counts the writes to api. seen is the version of view.
	version, seen int
	view          pool.NodePool
	// running are the addresses that pods and the node itself have. allocated are the addresses that the agent has allocated,
	// or restored since its last restart. Key: the address. Value: the owner.
	running, allocated map[netip.Addr]string
	// asked is true if the controller has asked for evidence. evidence is the pool with which the agent has answered; nil: the
	// agent has not answered.
	asked    bool
	evidence *pool.NodePool
}

func copied(n pool.NodePool) pool.NodePool {
	n.Entries, n.Used = maps.Clone(n.Entries), maps.Clone(n.Used)
	return n
}

func (a *agent) watch() { a.view, a.seen = copied(*a.api), a.version }

// report writes the status, unless the node was written since the agent saw it, and answers the controller.
func (a *agent) report() {
	if a.seen != a.version {
		return
	}
	a.version++
	a.api.Used = maps.Clone(a.allocated)
	if a.asked {
		answer := copied(*a.api)
		a.asked, a.evidence = false, &answer
	}
}

// restart restores the addresses of all running pods. That needs an entry of any kind (Cilium fact 27).
func (a *agent) restart(t *rapid.T) {
	a.watch()
	a.allocated = map[netip.Addr]string{}
	for ip, owner := range a.running {
		if _, exists := a.view.Entries[ip]; !exists {
			t.Fatalf("the agent cannot restore %s, which %s has", ip, owner)
		}
		a.allocated[ip] = owner
	}
}

// offered returns the addresses that a pod without an entry may get (allocateNext), sorted.
func (a *agent) offered() []netip.Addr {
	var offered []netip.Addr
	for ip, e := range a.view.Entries {
		if _, allocated := a.allocated[ip]; !allocated && e.Kind == pool.Dynamic {
			offered = append(offered, ip)
		}
	}
	slices.SortFunc(offered, netip.Addr.Compare)
	return offered
}

// controller makes the next write of a controller. believed is the node in the cache of that controller, which may be
// outdated. A write has an effect only if its preconditions hold for the actual node, like a patch with tests. controller
// returns false if there was nothing to write and the controller waits for no evidence.
func (a *agent) controller(believed pool.NodePool, w nodepool.Watermark) bool {
	s := nodepool.State{
		Now: time.Unix(1000, 0), Watermark: w, Cooldown: time.Minute, Live: true, Held: never, Reserved: never, OnOtherNode: never,
		Acknowledged: func(n pool.NodePool, ip netip.Addr) bool {
			if a.evidence == nil {
				a.asked = true
				return false
			}
			if _, used := a.evidence.Used[ip]; !used && a.evidence.Entries[ip] == n.Entries[ip] {
				return true
			}
			a.asked, a.evidence = true, nil
			return false
		},
	}
	edits := s.Edits(believed)
	if slices.ContainsFunc(edits, func(e pool.EntryChange) bool { return e.To != nil && e.To.IsWithdrawn() }) {
		// The controller asks again after a withdrawal.
		a.asked, a.evidence = false, nil
	}
	after, refused := *a.api, false
	for _, e := range edits {
		now, exists := after.Entries[e.Addr]
		refused = refused || exists != (e.From != nil) || exists && now != *e.From || e.RequireUnused && after.InUse(e.Addr)
		after = after.With([]pool.EntryChange{e})
	}
	if !refused && len(edits) > 0 {
		*a.api = after
		a.version++
	}
	return len(edits) > 0 || a.asked
}

// converge runs agent and controller in turn until the controller has nothing to write and waits for no evidence.
func (a *agent) converge(t *rapid.T, w nodepool.Watermark) {
	for range 20 {
		a.watch()
		a.report()
		a.watch()
		if !a.controller(copied(*a.api), w) {
			return
		}
	}
	t.Fatalf("the controller still writes or waits for evidence after 20 rounds, want it to finish: %+v", *a.api)
}

// TestPoolModel checks that every address that a pod has keeps an entry, so that a restarted agent can restore it, for random
// orders of events and with views of agent and controller that may be old. It also checks that the pool of an undisturbed
// node reaches its watermark, and that pods that start and stop within half of the excess then cause no write.
func TestPoolModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		router := map[netip.Addr]string{addr("10.0.1.30"): "router"}
		n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/27")}, Entries: map[netip.Addr]pool.Entry{addr("10.0.1.30"): pool.ForOwner("router")}, Used: map[netip.Addr]string{}}
		a := &agent{api: &n, version: 1, running: maps.Clone(router), allocated: maps.Clone(router)}
		a.watch()
		w := nodepool.Watermark{Free: rapid.IntRange(1, 6).Draw(t, "free"), Excess: rapid.IntRange(0, 6).Draw(t, "excess"), Max: rapid.IntRange(6, 29).Draw(t, "max")}
		old, pods := copied(n), 0
		t.Repeat(map[string]func(*rapid.T){
			"watch":   func(*rapid.T) { a.watch() },
			"report":  func(*rapid.T) { a.report() },
			"restart": a.restart,
			"remember": func(*rapid.T) { // A later step may use this version as an old cache.
				old = copied(n)
			},
			"controller":                                 func(*rapid.T) { a.controller(copied(n), w) },
			"controller, from an old cache":              func(*rapid.T) { a.controller(old, w) },
			"another field of the CiliumNode is written": func(*rapid.T) { a.version++ },
			"pod starts": func(t *rapid.T) {
				if offered := a.offered(); len(offered) > 0 {
					pods++
					ip := rapid.SampledFrom(offered).Draw(t, "address")
					a.running[ip] = fmt.Sprintf("default/pod-%d", pods)
					a.allocated[ip] = a.running[ip]
				}
			},
			"pod stops": func(t *rapid.T) {
				taken := slices.SortedFunc(maps.Keys(a.running), netip.Addr.Compare)
				if stopped := rapid.SampledFrom(taken).Draw(t, "address"); a.running[stopped] != "router" {
					delete(a.running, stopped)
					delete(a.allocated, stopped)
				}
			},
			"watermark": func(t *rapid.T) { w.Free = rapid.IntRange(1, 6).Draw(t, "free") },
			"": func(t *rapid.T) {
				for ip, owner := range a.running {
					if _, exists := n.Entries[ip]; !exists {
						t.Fatalf("%s has %s, whose entry was removed", owner, ip)
					}
				}
			},
		})
		a.converge(t, w)
		free, busy := 0, 0
		for ip, e := range n.Entries {
			switch _, allocated := a.allocated[ip]; {
			case e.Kind == pool.Cooldown:
				t.Fatalf("%s is still withdrawn: %+v", ip, n)
			case e.Kind != pool.Dynamic:
			case allocated:
				busy++
			default:
				free++
			}
		}
		limit := max(0, w.Max-busy)
		if free < min(w.Free, limit) || free > min(w.Free+w.Excess, limit) {
			t.Fatalf("got %d free entries and %d in use, want the watermark %+v", free, busy, w)
		}
		// Pods that start and stop within half of the excess cause no write, once the pool has that excess.
		if w.Excess >= 2 && limit >= w.Free+w.Excess {
			var started []netip.Addr
			for range w.Excess / 2 {
				if offered := a.offered(); len(offered) > w.Free {
					started = append(started, offered[0])
					a.allocated[offered[0]] = "default/short-lived"
				}
			}
			before := a.version
			a.report()
			if a.controller(copied(n), w) {
				t.Fatalf("the controller wrote the pool after %d pods had started, want no write", len(started))
			}
			for _, ip := range started {
				delete(a.allocated, ip)
			}
			a.watch()
			a.report()
			if a.controller(copied(n), w) || a.version != before+2 {
				t.Fatalf("the controller wrote the pool after %d pods had started and stopped, want no write", len(started))
			}
		}
	})
}
