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

func never(netip.Addr) bool { return false }

func always(netip.Addr) bool { return true }

// withHandshakes returns the result of node(entries, used...) with release handshakes. Key of states: the address.
func withHandshakes(entries map[string]pool.Entry, states map[string]pool.Handshake, used ...string) pool.NodePool {
	n := node(entries, used...)
	n.Handshakes = map[netip.Addr]pool.Handshake{}
	for a, state := range states {
		n.Handshakes[addr(a)] = state
	}
	return n
}

func TestReleaseHandshake(t *testing.T) {
	owned := pool.ForOwner("db/mysql-0")
	six := map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.3": {}, "10.0.1.4": {}, "10.0.1.5": {}, "10.0.1.6": {}}
	two := map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}
	for name, c := range map[string]struct {
		node pool.NodePool
		mark nodepool.Watermark
		// held is the address of a pod, reserved that of a FixedIP; empty: none.
		held     string
		reserved string
		// late is true if the answers of the agent are overdue.
		late bool
		// want are the expected changes of handshakes, as "address:state". removed are the addresses of the entries to remove.
		want    []string
		removed []string
	}{
		"the excess is marked from the top, down to half of it": {
			node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Free: 1, Excess: 2, Max: 9}, want: []string{"10.0.1.4:marked-for-release", "10.0.1.5:marked-for-release", "10.0.1.6:marked-for-release"}},
		"an allowed excess is not marked":                                 {node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Free: 3, Excess: 2, Max: 9}},
		"entries above the maximum are marked":                            {node: node(six, "10.0.1.1", "10.0.1.6"), mark: nodepool.Watermark{Free: 4, Excess: 2, Max: 4}, want: []string{"10.0.1.4:marked-for-release", "10.0.1.5:marked-for-release"}},
		"the address of a pod is not marked":                              {node: node(six, "10.0.1.1"), mark: nodepool.Watermark{Max: 9}, held: "10.0.1.4", want: []string{"10.0.1.2:marked-for-release", "10.0.1.3:marked-for-release", "10.0.1.5:marked-for-release", "10.0.1.6:marked-for-release"}},
		"no mark before the agent has reported":                           {node: unreported(node(six)), mark: nodepool.Watermark{}},
		"a reserved address is marked although its entry is needed":       {node: node(two, "10.0.1.6"), mark: nodepool.Watermark{Free: 2, Excess: 2, Max: 9}, reserved: "10.0.1.1", want: []string{"10.0.1.1:marked-for-release"}},
		"ready for release: a reserved address is removed":                {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.1": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 2, Excess: 2, Max: 9}, reserved: "10.0.1.1", removed: []string{"10.0.1.1"}},
		"an entry that is marked already":                                 {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}},
		"ready for release: the entry is removed":                         {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, removed: []string{"10.0.1.2"}},
		"ready for release, but the agent has not restored its endpoints": {node: unreported(withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease})), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, want: []string{"10.0.1.2:"}},
		"ready for release, but a pod has the address":                    {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, held: "10.0.1.2", want: []string{"10.0.1.2:"}},
		"ready for release, but the entry is needed":                      {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.1"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, want: []string{"10.0.1.2:"}},
		"ready for release, but the entry is owned":                       {node: withHandshakes(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": owned}, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, want: []string{"10.0.1.2:"}},
		"marked, but the entry is needed":                                 {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.1": pool.MarkedForRelease, "10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, want: []string{"10.0.1.1:"}},
		"ready for release, and the entry was removed":                    {node: withHandshakes(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, want: []string{"10.0.1.2:released"}},
		"the agent removes the key of a released entry":                   {node: withHandshakes(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.Released}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}},
		"the agent refuses the release":                                   {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.DoNotRelease}, "10.0.1.2"), mark: nodepool.Watermark{Free: 1, Max: 9}, want: []string{"10.0.1.2:"}},
		"marked, but there is no entry":                                   {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.6": pool.MarkedForRelease}, "10.0.1.5"), mark: nodepool.Watermark{Free: 2, Max: 9}, want: []string{"10.0.1.6:"}},
		"released, but a user wrote the entry again":                      {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.Released}, "10.0.1.5"), mark: nodepool.Watermark{Free: 2, Max: 9}, want: []string{"10.0.1.2:"}},
		"an unknown state is not changed":                                 {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.OtherState}, "10.0.1.5"), mark: nodepool.Watermark{Free: 1, Max: 9}},
		"marked, and the answer is overdue":                               {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 0, Max: 9}, late: true, want: []string{"10.0.1.2:"}},
		"two entries are marked, one of them is needed, and the answers are overdue": {
			node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.1": pool.MarkedForRelease, "10.0.1.2": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, late: true, want: []string{"10.0.1.1:", "10.0.1.2:"}},
		"a reserved address is marked, and the answer is overdue": {
			node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.1": pool.MarkedForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 2, Excess: 2, Max: 9}, reserved: "10.0.1.1", late: true, want: []string{"10.0.1.1:"}},
		"released, and the answer is overdue": {
			node: withHandshakes(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.Released}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, late: true, want: []string{"10.0.1.2:"}},
		// After ready-for-release the next step is that of the controller: no answer of the agent is overdue.
		"ready for release for a long time": {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Excess: 1, Max: 9}, late: true, removed: []string{"10.0.1.2"}},
		"ready for release for a long time, and the entry was removed": {
			node: withHandshakes(map[string]pool.Entry{"10.0.1.1": {}}, map[string]pool.Handshake{"10.0.1.2": pool.ReadyForRelease}, "10.0.1.6"), mark: nodepool.Watermark{Free: 1, Max: 9}, late: true, want: []string{"10.0.1.2:released"}},
		"an unknown state for a long time":     {node: withHandshakes(two, map[string]pool.Handshake{"10.0.1.2": pool.OtherState}, "10.0.1.5"), mark: nodepool.Watermark{Free: 1, Max: 9}, late: true},
		"a strict node has no dynamic entries": {node: node(two, "10.0.1.1"), mark: nodepool.NoDynamic, want: []string{"10.0.1.2:marked-for-release"}},
	} {
		held := func(a netip.Addr) bool { return c.held != "" && a == addr(c.held) }
		reserved := func(a netip.Addr) bool { return c.reserved != "" && a == addr(c.reserved) }
		overdue := never
		if c.late {
			overdue = always
		}
		var handshakes []string
		for _, m := range nodepool.ReleaseExcess(c.node, address.IPv4, c.mark, held, reserved, overdue) {
			if m.From != c.node.Handshakes[m.Addr] {
				t.Errorf("%s: the change for %s requires the state %q, want the current state %q", name, m.Addr, m.From, c.node.Handshakes[m.Addr])
			}
			handshakes = append(handshakes, fmt.Sprintf("%s:%s", m.Addr, m.To))
		}
		edits := nodepool.RemoveReleased(c.node, address.IPv4, c.mark, held, reserved, overdue)
		for _, e := range edits {
			if !e.ReadyForRelease || e.To != nil || e.From == nil || *e.From != (pool.Entry{}) {
				t.Errorf("%s: got edit %+v, want the removal of a dynamic entry that requires ReadyForRelease", name, e)
			}
		}
		if !equal(handshakes, c.want) || !equal(edited(edits), c.removed) {
			t.Errorf("%s: got handshakes %v and removals %v, want %v and %v", name, handshakes, edited(edits), c.want, c.removed)
		}
	}
}

// agent models the release handshake of a Cilium agent. The agent acts on the version of the node that it saw last,
// which may be old. Its writes fail if the node was written after that version. The comments on the methods name in
// parentheses the functions of Cilium that they model.
type agent struct {
	api *pool.NodePool
	// version counts the writes to api. seen is the version that view was read from.
	version, seen int
	view          pool.NodePool
	// shown is the node as the agent saw it last. Unlike view, it does not contain the answers of the agent.
	shown pool.NodePool
	// allocated are the addresses that pods and the node itself have. Key: the address. Value: the owner.
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
		_, exists := a.view.Entries[ip]
		_, allocated := a.allocated[ip]
		switch {
		case state == pool.Released && !exists:
			delete(a.view.Handshakes, ip)
		case state == pool.MarkedForRelease && (!exists || allocated):
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

// controller makes the next writes of a controller. believed is the node in the cache of that controller, which may be
// outdated. A write has an effect only if its preconditions hold for the actual node, like a patch with tests. The result is
// false if the controller had nothing to write.
func (a *agent) controller(t *rapid.T, believed pool.NodePool, w nodepool.Watermark, overdue func(netip.Addr) bool) bool {
	edits := nodepool.RemoveReleased(believed, address.IPv4, w, never, never, overdue)
	more, _ := nodepool.FillDynamic(believed.With(edits), address.IPv4, w, never)
	edits = append(edits, more...)
	after, written := believed.With(edits), len(edits) == 0
	if ok := !slices.ContainsFunc(edits, func(e pool.EntryChange) bool {
		now, exists := a.api.Entries[e.Addr]
		return exists != (e.From != nil) || exists && now != *e.From || e.ReadyForRelease && a.api.Handshakes[e.Addr] != pool.ReadyForRelease
	}); ok && len(edits) > 0 {
		for _, e := range edits {
			if owner, allocated := a.allocated[e.Addr]; allocated && e.To == nil {
				t.Fatalf("the entry of %s was removed while %s has the address", e.Addr, owner)
			}
		}
		a.api.Entries = a.api.With(edits).Entries
		a.version++
		written, after = true, copied(*a.api)
	}
	if !written {
		return true
	}
	handshakes := nodepool.ReleaseExcess(after, address.IPv4, w, never, never, overdue)
	if ok := !slices.ContainsFunc(handshakes, func(m pool.HandshakeChange) bool {
		e, exists := a.api.Entries[m.Addr]
		return a.api.Handshakes[m.Addr] != m.From || m.To == pool.MarkedForRelease && (!exists || e.Kind != pool.Dynamic) || m.To == pool.Released && exists
	}); ok && len(handshakes) > 0 {
		a.api.Handshakes = a.api.WithHandshakes(handshakes).Handshakes
		a.version++
	}
	return len(edits)+len(handshakes) > 0
}

// converge runs agent and controller in turn until the controller has nothing to write, with and without overdue answers. It
// returns the number of rounds.
func (a *agent) converge(t *rapid.T, w nodepool.Watermark) (rounds int) {
	for ; rounds < 20; rounds++ {
		a.watch()
		a.report()
		a.watch()
		if !a.controller(t, copied(*a.api), w, never) && !a.controller(t, copied(*a.api), w, always) {
			return rounds
		}
	}
	t.Fatalf("the controller still writes after %d rounds: %+v", rounds, *a.api)
	return 0
}

// TestHandshakeModel checks that no entry is removed while a pod has its address, for random orders of events and with
// views of agent and controller that may be old. It also checks that the pool of an undisturbed node reaches its
// watermark and keeps it.
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
			"controller":                                         func(t *rapid.T) { a.controller(t, copied(n), w, never) },
			"controller, from an old cache":                      func(t *rapid.T) { a.controller(t, old, w, never) },
			"controller, all answers overdue":                    func(t *rapid.T) { a.controller(t, copied(n), w, always) },
			"controller, from an old cache, all answers overdue": func(t *rapid.T) { a.controller(t, old, w, always) },
			"another field of the CiliumNode is written":         func(*rapid.T) { a.version++ },
			"pod starts": func(t *rapid.T) {
				if offered := a.offered(); len(offered) > 0 {
					pods++
					a.allocated[rapid.SampledFrom(offered).Draw(t, "address")] = fmt.Sprintf("default/pod-%d", pods)
				}
			},
			"pod stops": func(t *rapid.T) {
				taken := slices.SortedFunc(maps.Keys(a.allocated), netip.Addr.Compare)
				if stopped := rapid.SampledFrom(taken).Draw(t, "address"); a.allocated[stopped] != "router" {
					delete(a.allocated, stopped)
				}
			},
			"watermark": func(t *rapid.T) { w.Free = rapid.IntRange(1, 6).Draw(t, "free") },
			"": func(t *rapid.T) {
				for ip, owner := range a.allocated {
					if _, exists := n.Entries[ip]; !exists {
						t.Fatalf("%s has %s, whose entry was removed", owner, ip)
					}
				}
			},
		})
		a.converge(t, w)
		free, busy := 0, 0
		for ip, e := range n.Entries {
			if _, allocated := a.allocated[ip]; allocated && e.Kind == pool.Dynamic {
				busy++
			} else if e.Kind == pool.Dynamic {
				free++
			}
		}
		limit := max(0, w.Max-busy)
		if free < min(w.Free, limit) || free > min(w.Free+w.Excess, limit) || len(n.Handshakes) > 0 {
			t.Fatalf("got %d free entries, %d in use and handshakes %v, want the watermark %+v and no handshakes", free, busy, n.Handshakes, w)
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
			if a.controller(t, copied(n), w, never) {
				t.Fatalf("the controller wrote the pool after %d pods had started, want no write", len(started))
			}
			for _, ip := range started {
				delete(a.allocated, ip)
			}
			a.watch()
			a.report()
			if a.controller(t, copied(n), w, never) || a.version != before+2 {
				t.Fatalf("the controller wrote the pool after %d pods had started and stopped, want no write", len(started))
			}
		}
	})
}
