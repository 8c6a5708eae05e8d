// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
)

func nothing(netip.Addr) bool { return false }

func everything(netip.Addr) bool { return true }

// leaving returns a node as node does, with release handshakes, such as "10.0.1.1": pool.MarkedForRelease.
func leaving(entries map[string]pool.Entry, states map[string]pool.Handshake, used ...string) pool.NodePool {
	n := node(entries, used...)
	n.Handshakes = map[netip.Addr]pool.Handshake{}
	for a, state := range states {
		n.Handshakes[addr(a)] = state
	}
	return n
}

func TestAskAndTakeOut(t *testing.T) {
	owned := pool.ForOwner("db/mysql-0")
	six := map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.3": {}, "10.0.1.4": {}, "10.0.1.5": {}, "10.0.1.6": {}}
	two := map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}
	for name, c := range map[string]struct {
		node pool.NodePool
		mark nodepool.Watermark
		held string
		kept string
		// late is true if the answers of the agent are overdue.
		late bool
		// want are the expected changes of handshakes, as "address:state". out are the addresses of the entries to remove.
		want []string
		out  []string
	}{
		"the excess from the top, down to half of it": {
			node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Free: 1, Excess: 2, Max: 9}, want: []string{"10.0.1.4:marked-for-release", "10.0.1.5:marked-for-release", "10.0.1.6:marked-for-release"}},
		"an excess that is allowed":                   {node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Free: 3, Excess: 2, Max: 9}},
		"what is above the maximum":                   {node: node(six, "10.0.1.1", "10.0.1.6"), mark: nodepool.Watermark{Free: 4, Excess: 2, Max: 4}, want: []string{"10.0.1.4:marked-for-release", "10.0.1.5:marked-for-release"}},
		"never what a pod has":                        {node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Max: 9}, held: "10.0.1.4", want: []string{"10.0.1.2:marked-for-release", "10.0.1.3:marked-for-release", "10.0.1.5:marked-for-release", "10.0.1.6:marked-for-release"}},
		"nothing of an agent that never reported":     {node: unreported(node(six)), mark: nodepool.Watermark{}},
		"what a FixedIP keeps, needed or not":         {node: node(two, "10.0.1.6"), mark: nodepool.Watermark{Free: 2, Excess: 2, Max: 9}, kept: "10.0.1.1", want: []string{"10.0.1.1:marked-for-release"}},
		"agreed to lose what a FixedIP keeps":         {node: leaving(two, map[string]pool.Handshake{"10.0.1.1": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 2, Excess: 2, Max: 9}, kept: "10.0.1.1", out: []string{"10.0.1.1"}},
		"asked already":                               {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}},
		"agreed":                                      {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, out: []string{"10.0.1.2"}},
		"agreed before it had restored its endpoints": {node: unreported(leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease})), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, want: []string{"10.0.1.2:"}},
		"agreed, and a pod has it":                    {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, held: "10.0.1.2", want: []string{"10.0.1.2:"}},
		"agreed, and needed by now":                   {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.1"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, want: []string{"10.0.1.2:"}},
		"agreed, and owned by now":                    {node: leaving(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": owned}, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, want: []string{"10.0.1.2:"}},
		"asked, and needed by now":                    {node: leaving(two, map[string]pool.Handshake{"10.0.1.1": pool.MarkedForRelease, "10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, want: []string{"10.0.1.1:"}},
		"taken out":                                   {node: leaving(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, want: []string{"10.0.1.2:released"}},
		"the agent has the last word":                 {node: leaving(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.Released}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}},
		"refused":                                     {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.DoNotRelease}, "10.0.1.2"), mark: nodepool.Watermark{Free: 1, Max: 9}, want: []string{"10.0.1.2:"}},
		"asked for what is not there":                 {node: leaving(two, map[string]pool.Handshake{"10.0.1.6": pool.MarkedForRelease}, "10.0.1.5"), mark: nodepool.Watermark{Free: 2, Max: 9}, want: []string{"10.0.1.6:"}},
		"put back by hand after it was taken out":     {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.Released}, "10.0.1.5"), mark: nodepool.Watermark{Free: 2, Max: 9}, want: []string{"10.0.1.2:"}},
		"a state of another program":                  {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.OtherState}, "10.0.1.5"), mark: nodepool.Watermark{Free: 1, Max: 9}},
		"asked, and never answered":                   {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 0, Max: 9}, late: true, want: []string{"10.0.1.2:"}},
		"one of two asked, as the other is needed, and never answered": {
			node: leaving(two, map[string]pool.Handshake{"10.0.1.1": pool.MarkedForRelease, "10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, late: true, want: []string{"10.0.1.1:", "10.0.1.2:"}},
		"what a FixedIP keeps, asked and never answered": {
			node: leaving(two, map[string]pool.Handshake{"10.0.1.1": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 2, Excess: 2, Max: 9}, kept: "10.0.1.1", late: true, want: []string{"10.0.1.1:"}},
		"taken out, and never answered": {
			node: leaving(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.Released}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, late: true, want: []string{"10.0.1.2:"}},
		// After ready-for-release the next step is that of the controller: no answer of the agent is overdue.
		"agreed long ago": {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, late: true, out: []string{"10.0.1.2"}},
		"agreed long ago, and the entry is gone": {
			node: leaving(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, late: true, want: []string{"10.0.1.2:released"}},
		"a state of another program, for long": {node: leaving(two, map[string]pool.Handshake{"10.0.1.2": pool.OtherState}, "10.0.1.5"), mark: nodepool.Watermark{Free: 1, Max: 9}, late: true},
		"a strict node has none":               {node: node(two, "10.0.1.1"), mark: nodepool.NoDynamic, want: []string{"10.0.1.2:marked-for-release"}},
	} {
		held := func(a netip.Addr) bool { return c.held != "" && a == addr(c.held) }
		kept := func(a netip.Addr) bool { return c.kept != "" && a == addr(c.kept) }
		unanswered := nothing
		if c.late {
			unanswered = everything
		}
		var marks []string
		for _, m := range nodepool.ReleaseExcess(c.node, address.IPv4, c.mark, held, kept, unanswered) {
			if m.From != c.node.Handshakes[m.Addr] {
				t.Errorf("%s: %s is marked from %q, and is %q", name, m.Addr, m.From, c.node.Handshakes[m.Addr])
			}
			marks = append(marks, fmt.Sprintf("%s:%s", m.Addr, m.To))
		}
		edits := nodepool.RemoveReleased(c.node, address.IPv4, c.mark, held, kept, unanswered)
		for _, e := range edits {
			if !e.ReadyForRelease || e.To != nil || e.From == nil || *e.From != (pool.Entry{}) {
				t.Errorf("%s: the edit %+v does not hold the agent to its word", name, e)
			}
		}
		if !equal(marks, c.want) || !equal(edited(edits), c.out) {
			t.Errorf("%s: marks %v, out %v; want %v, %v", name, marks, edited(edits), c.want, c.out)
		}
	}
}

// agent models the release handshake of a Cilium agent. The agent acts on the version of the node that it saw last, which
// may be old. Its writes fail if the node was written since.
type agent struct {
	api *pool.NodePool
	// version counts the writes to api. seen is the version that view was read from.
	version, seen int
	view          pool.NodePool
	// shown is the node as the agent saw it last. Unlike view, it does not contain the answers of the agent.
	shown pool.NodePool
	// allocated are the addresses that pods have. Key: the address. Value: the pod.
	allocated map[netip.Addr]string
}

func copied(n pool.NodePool) pool.NodePool {
	n.Entries, n.Used, n.Handshakes = maps.Clone(n.Entries), maps.Clone(n.Used), maps.Clone(n.Handshakes)
	return n
}

// watch updates the view and answers marks in it (updateLocalNodeResource). If the content of the node has not changed, the
// agent evaluates no marks, and loses the answers that it has not reported (setOwnNodeWithoutPoolUpdate).
func (a *agent) watch() {
	if a.seen == a.version {
		return
	}
	before := a.shown
	a.view, a.shown, a.seen = copied(*a.api), copied(*a.api), a.version
	if maps.Equal(before.Entries, a.shown.Entries) && maps.Equal(before.Used, a.shown.Used) && maps.Equal(before.Handshakes, a.shown.Handshakes) {
		return
	}
	for ip, state := range a.view.Handshakes {
		_, listed := a.view.Entries[ip]
		_, allocated := a.allocated[ip]
		switch {
		case state == pool.Released && !listed:
			delete(a.view.Handshakes, ip)
		case state == pool.MarkedForRelease && (!listed || allocated):
			a.view.Handshakes[ip] = pool.DoNotRelease
		case state == pool.MarkedForRelease:
			a.view.Handshakes[ip] = pool.ReadyForRelease
		}
	}
}

// report writes the status, unless the node was written since the agent saw it (refreshNode).
func (a *agent) report() {
	if a.seen != a.version {
		return
	}
	a.version++
	a.api.Used, a.api.Handshakes = maps.Clone(a.allocated), maps.Clone(a.view.Handshakes)
}

// offered returns the addresses that a pod without an entry may get (allocateNext), sorted.
func (a *agent) offered() []netip.Addr {
	var offered []netip.Addr
	for ip, e := range a.view.Entries {
		if _, allocated := a.allocated[ip]; !allocated && e.Kind == pool.Dynamic && !a.view.IsReleasing(ip) {
			offered = append(offered, ip)
		}
	}
	slices.SortFunc(offered, netip.Addr.Compare)
	return offered
}

// controller makes the next writes of the controller, which sees the node as believed. A write has an effect only if its
// preconditions hold for the actual node, as with the tests in the patches. The result is true if there was something to
// write.
func (a *agent) controller(t *rapid.T, believed pool.NodePool, w nodepool.Watermark, unanswered func(netip.Addr) bool) bool {
	edits := nodepool.RemoveReleased(believed, address.IPv4, w, nothing, nothing, unanswered)
	more, _ := nodepool.FillDynamic(believed.With(edits), address.IPv4, w, nothing)
	edits = append(edits, more...)
	after, written := believed.With(edits), len(edits) == 0
	if ok := !slices.ContainsFunc(edits, func(e pool.EntryChange) bool {
		now, exists := a.api.Entries[e.Addr]
		return exists != (e.From != nil) || exists && now != *e.From || e.ReadyForRelease && a.api.Handshakes[e.Addr] != pool.ReadyForRelease
	}); ok && len(edits) > 0 {
		for _, e := range edits {
			if owner, allocated := a.allocated[e.Addr]; allocated && e.To == nil {
				t.Fatalf("the entry of %s was removed, and %s has it", e.Addr, owner)
			}
		}
		a.api.Entries = a.api.With(edits).Entries
		a.version++
		written, after = true, copied(*a.api)
	}
	if !written {
		return true
	}
	marks := nodepool.ReleaseExcess(after, address.IPv4, w, nothing, nothing, unanswered)
	if ok := !slices.ContainsFunc(marks, func(m pool.HandshakeChange) bool {
		e, exists := a.api.Entries[m.Addr]
		return a.api.Handshakes[m.Addr] != m.From || m.To == pool.MarkedForRelease && (!exists || e.Kind != pool.Dynamic) || m.To == pool.Released && exists
	}); ok && len(marks) > 0 {
		a.api.Handshakes = a.api.WithHandshakes(marks).Handshakes
		a.version++
	}
	return len(edits)+len(marks) > 0
}

// settle runs agent and controller in turn until the controller has nothing to write, whether or not it considers answers
// overdue. It returns the number of rounds.
func (a *agent) settle(t *rapid.T, w nodepool.Watermark) (rounds int) {
	for ; rounds < 20; rounds++ {
		a.watch()
		a.report()
		a.watch()
		if !a.controller(t, copied(*a.api), w, nothing) && !a.controller(t, copied(*a.api), w, everything) {
			return rounds
		}
	}
	t.Fatalf("not settled after %d rounds: %+v", rounds, *a.api)
	return 0
}

// TestHandshakeModel checks that no entry is removed whose address a pod has, in whatever order events arrive and however
// old the views of agent and controller are; and that the pool of an undisturbed node reaches its watermark and keeps it.
func TestHandshakeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/27")}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}, Handshakes: map[netip.Addr]pool.Handshake{}}
		n.Entries[addr("10.0.1.30")] = pool.ForOwner("router")
		a := &agent{api: &n, version: 1, allocated: map[netip.Addr]string{addr("10.0.1.30"): "router"}}
		a.watch()
		w := nodepool.Watermark{Free: rapid.IntRange(1, 6).Draw(t, "free"), Excess: rapid.IntRange(0, 6).Draw(t, "excess"), Max: rapid.IntRange(6, 29).Draw(t, "max")}
		old, pods := copied(n), 0
		t.Repeat(map[string]func(*rapid.T){
			"watch":  func(*rapid.T) { a.watch() },
			"report": func(*rapid.T) { a.report() },
			"remember": func(*rapid.T) { // A later step may use this version as an old cache.
				old = copied(n)
			},
			"controller":                                 func(t *rapid.T) { a.controller(t, copied(n), w, nothing) },
			"controller, from an old cache":              func(t *rapid.T) { a.controller(t, old, w, nothing) },
			"controller, which does not wait":            func(t *rapid.T) { a.controller(t, copied(n), w, everything) },
			"the same, from an old cache":                func(t *rapid.T) { a.controller(t, old, w, everything) },
			"another field of the CiliumNode is written": func(*rapid.T) { a.version++ },
			"pod comes": func(t *rapid.T) {
				if offered := a.offered(); len(offered) > 0 {
					pods++
					a.allocated[rapid.SampledFrom(offered).Draw(t, "address")] = fmt.Sprintf("default/pod-%d", pods)
				}
			},
			"pod goes": func(t *rapid.T) {
				taken := slices.SortedFunc(maps.Keys(a.allocated), netip.Addr.Compare)
				if gone := rapid.SampledFrom(taken).Draw(t, "address"); a.allocated[gone] != "router" {
					delete(a.allocated, gone)
				}
			},
			"watermark": func(t *rapid.T) { w.Free = rapid.IntRange(1, 6).Draw(t, "free") },
			"": func(t *rapid.T) {
				for ip, owner := range a.allocated {
					if _, listed := n.Entries[ip]; !listed {
						t.Fatalf("%s has %s, which is no longer in the pool", owner, ip)
					}
				}
			},
		})
		a.settle(t, w)
		free, busy := 0, 0
		for ip, e := range n.Entries {
			if _, allocated := a.allocated[ip]; allocated && e.Kind == pool.Dynamic {
				busy++
			} else if e.Kind == pool.Dynamic {
				free++
			}
		}
		room := max(0, w.Max-busy)
		if free < min(w.Free, room) || free > min(w.Free+w.Excess, room) || len(n.Handshakes) > 0 {
			t.Fatalf("settled with %d free, %d busy, handshakes %v; the watermark is %+v", free, busy, n.Handshakes, w)
		}
		// Pods that start and stop within half of the excess cause no write, once the pool has that excess.
		if w.Excess >= 2 && room >= w.Free+w.Excess {
			var came []netip.Addr
			for range w.Excess / 2 {
				if offered := a.offered(); len(offered) > w.Free {
					came = append(came, offered[0])
					a.allocated[offered[0]] = "default/passing"
				}
			}
			before := a.version
			a.report()
			if a.controller(t, copied(n), w, nothing) {
				t.Fatalf("%d pods came, and the pool was written to", len(came))
			}
			for _, ip := range came {
				delete(a.allocated, ip)
			}
			a.watch()
			a.report()
			if a.controller(t, copied(n), w, nothing) || a.version != before+2 {
				t.Fatalf("%d pods came and went, and the pool was written to", len(came))
			}
		}
	})
}
