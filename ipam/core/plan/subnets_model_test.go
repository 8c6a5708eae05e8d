// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

// cluster is a world of nodes and records in which subnets are given away as the controller does,
// one step at a time.
type cluster struct {
	rules plan.SubnetRules
	now   time.Time
	// nodes are those that exist, with their pools. Key: the name.
	nodes map[string]*pool.Node
	// kept is what records keep. Key: the address. No step but giving up takes anything away.
	kept map[netip.Addr]plan.Kept
	// leaving are addresses whose home has let them go, and which may arrive at any time as long as
	// they are announced. Key: the address. Value: the node that they go to.
	leaving map[netip.Addr]string
}

func (c *cluster) world() plan.World {
	w := plan.World{Now: c.now, Present: map[string]bool{}, Homed: func(n string) bool { return c.nodes[n] != nil && len(c.nodes[n].Subnets) > 0 }}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		w.Taken = append(w.Taken, c.nodes[name].Subnets...)
		w.Present[name] = len(c.nodes[name].Subnets) == 0
	}
	for _, a := range slices.SortedFunc(maps.Keys(c.kept), netip.Addr.Compare) {
		w.Kept = append(w.Kept, c.kept[a])
	}
	return w
}

func (c *cluster) register(name string) {
	if c.nodes[name] == nil {
		c.nodes[name] = &pool.Node{Name: name, Entries: map[netip.Addr]pool.Entry{}}
	}
}

// fix gives the next free address of a node to a pod of its own.
func (c *cluster) fix(n *pool.Node, migrates bool) {
	for _, s := range n.Subnets {
		for a := range address.Down(s) {
			if _, taken := n.Entries[a]; !taken {
				// Each address has a pod of its own.
				e := pool.OwnedEntry("db", "p-"+strings.NewReplacer(".", "-", ":", "-").Replace(a.String()), "StatefulSet", "p")
				n.Entries[a] = e
				failover := v1alpha1.Wait
				if migrates {
					failover = v1alpha1.Migrate
				}
				c.kept[a] = plan.Kept{Addr: a, Node: n.Name, Entry: e, Failover: failover}
				return
			}
		}
	}
}

// publish gives subnets to a node with what is reserved in them, after the moves to elsewhere were
// called off.
func (c *cluster) publish(t *rapid.T, name string, given plan.Assignment) {
	var others []pool.Node
	for _, n := range c.nodes {
		others = append(others, *n)
	}
	heir := c.nodes[name]
	entries, announced := plan.Reserve(*heir, given.Subnets, given.Kept, others)
	for _, m := range announced {
		c.nodes[m.Node].Entries[m.Addr] = pool.CooldownEntry("", c.now)
	}
	if len(announced) > 0 {
		c.publish(t, name, given)
		return
	}
	for a, e := range entries {
		heir.Entries[a] = e
	}
	heir.Subnets = append(heir.Subnets, given.Subnets...)
}

// see records since when the nodes of orphans are gone, as the controller does in a condition.
func (c *cluster) see() {
	w := c.world()
	lost := map[netip.Addr]bool{}
	for _, o := range w.Orphans(c.rules.Pools) {
		for _, k := range o.Kept {
			lost[k.Addr] = c.nodes[o.Node] == nil
		}
	}
	for a, k := range c.kept {
		if !lost[a] {
			k.Since = time.Time{}
		} else if k.Since.IsZero() {
			k.Since = c.now
		}
		c.kept[a] = k
	}
}

func (c *cluster) check(t *rapid.T) {
	// Key: an address. Value: the node whose pool offers it.
	offered := map[netip.Addr]string{}
	for name, n := range c.nodes {
		for other, o := range c.nodes {
			for _, s := range n.Subnets {
				if name != other && slices.ContainsFunc(o.Subnets, s.Overlaps) {
					t.Fatalf("the subnets of %s %v and %s %v overlap", name, n.Subnets, other, o.Subnets)
				}
			}
		}
		for a, e := range n.Entries {
			if !e.Allocatable() {
				continue
			}
			if other, twice := offered[a]; twice {
				t.Fatalf("%s is offered by %s and %s", a, name, other)
			}
			offered[a] = name
			if k, ok := c.kept[a]; ok && e.Owner != k.Entry.Owner {
				t.Fatalf("%s is kept for %s, and %s offers it to %q", a, k.Entry.Owner, name, e.Owner)
			}
		}
	}
	for a, k := range c.kept {
		for name, n := range c.nodes {
			if !n.Home(a) {
				continue
			}
			// Where the other node is gone the address can come home: that is the work of moves.
			e := n.Entries[a]
			there := e.Node
			if e != k.Entry && !(e.Kind == pool.Moved && e.Pod == k.Entry.Owner) {
				t.Fatalf("%s of %s is at home on %s, which has %+v there", a, k.Entry.Owner, name, n.Entries[a])
			}
			if offered[a] != "" && offered[a] != name && offered[a] != there {
				t.Fatalf("%s is away on %q, as its home %s says, and %s offers it", a, there, name, offered[a])
			}
		}
	}
}

// However nodes come, go and come back, by whichever policy: no two have overlapping subnets, no
// address is offered twice, and what is kept is offered to nobody else and is there as soon as its
// subnet has a node.
func TestSubnetModel(t *testing.T) {
	names := []string{"node-0", "node-1", "node-2", "node-3"}
	rapid.Check(t, func(t *rapid.T) {
		c := &cluster{
			rules: plan.SubnetRules{
				Pools:  []address.ClusterPool{{CIDR: subnet("10.0.0.0/27"), MaskSize: 29}, {CIDR: subnet("10.1.0.0/29"), MaskSize: 30}, {CIDR: subnet("fd00::/124"), MaskSize: 126}},
				Policy: rapid.SampledFrom(plan.Policies).Draw(t, "policy"),
				Hold:   time.Duration(rapid.IntRange(0, 30).Draw(t, "hold")) * time.Second,
			},
			now: clock, nodes: map[string]*pool.Node{}, kept: map[netip.Addr]plan.Kept{}, leaving: map[netip.Addr]string{},
		}
		for _, name := range names[:3] {
			c.register(name)
			c.publish(t, name, plan.Assign(plan.Joiner{Name: name}, c.rules, c.world()))
			c.fix(c.nodes[name], true)
		}
		node := func(t *rapid.T, what string) *pool.Node {
			if len(c.nodes) == 0 {
				t.Skip("there is no node")
			}
			return c.nodes[rapid.SampledFrom(slices.Sorted(maps.Keys(c.nodes))).Draw(t, what)]
		}
		t.Repeat(map[string]func(*rapid.T){
			"":                 c.check,
			"a node registers": func(t *rapid.T) { c.register(rapid.SampledFrom(names).Draw(t, "name")) },
			"a node is given subnets": func(t *rapid.T) {
				n := node(t, "node")
				j := plan.Joiner{Name: n.Name, Subnets: n.Subnets, SuccessorOf: rapid.SampledFrom(append(names, "")).Draw(t, "successor of")}
				w := c.world()
				returned := map[netip.Prefix]bool{}
				for _, o := range w.Orphans(c.rules.Pools) {
					for _, s := range o.Subnets {
						returned[s] = o.Node == n.Name
					}
				}
				given := plan.Assign(j, c.rules, w)
				for s, own := range returned {
					if own && len(n.Subnets) == 0 && !slices.Contains(given.Subnets, s) {
						t.Fatalf("node %s had %s and is given %v", n.Name, s, given.Subnets)
					}
				}
				if given.Origin == plan.Inherited && w.Present[given.From] {
					t.Fatalf("node %s inherits from %s, which is there", n.Name, given.From)
				}
				c.publish(t, n.Name, given)
			},
			"an orphan is adopted": func(t *rapid.T) {
				var heirs []plan.Heir
				for name, n := range c.nodes {
					if len(n.Subnets) > 0 {
						heirs = append(heirs, plan.Heir{Name: name, Subnets: len(n.Subnets), Ready: true, Joined: clock})
					}
				}
				w := c.world()
				for _, o := range w.Orphans(c.rules.Pools) {
					if heir, _ := c.rules.Adopter(o, heirs, c.now); heir != "" && c.nodes[o.Node] == nil {
						c.publish(t, heir, plan.Assignment{Subnets: o.Subnets, Kept: o.Kept})
						return
					}
				}
			},
			"an address is fixed": func(t *rapid.T) {
				c.fix(node(t, "node"), rapid.Bool().Draw(t, "migrates"))
			},
			"a move is announced": func(t *rapid.T) {
				home, target := node(t, "home"), node(t, "target")
				for a, k := range c.kept {
					if home != target && !target.Home(a) && home.Home(a) && home.Entries[a] == k.Entry {
						target.Entries[a] = pool.MoveTargetEntry(k.Entry.Owner)
						delete(c.leaving, a)
						return
					}
				}
			},
			"a home lets go": func(t *rapid.T) {
				target := node(t, "target")
				for a, e := range target.Entries {
					for _, home := range c.nodes {
						if e.Kind == pool.MoveTarget && home.Home(a) && home.Entries[a].OwnedBy(e.Pod) {
							home.Entries[a] = pool.MovedEntry(target.Name, e.Pod)
							c.leaving[a] = target.Name
							return
						}
					}
				}
			},
			"an address arrives": func(t *rapid.T) {
				for a, name := range c.leaving {
					target, k := c.nodes[name], c.kept[a]
					if target != nil && target.Entries[a] == pool.MoveTargetEntry(k.Entry.Owner) {
						target.Entries[a] = k.Entry
						k.Node = name
						c.kept[a] = k
						delete(c.leaving, a)
						return
					}
				}
			},
			"a node is lost": func(t *rapid.T) { delete(c.nodes, node(t, "node").Name) },
			"time passes": func(t *rapid.T) {
				c.now = c.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
				c.see()
			},
			"addresses are given up": func(t *rapid.T) {
				w := c.world()
				for _, o := range w.Orphans(c.rules.Pools) {
					gone, _ := c.rules.GivenUp(o, c.now)
					if w.Present[o.Node] {
						gone = nil
					}
					for _, k := range gone {
						if c.rules.Policy != plan.Free || c.nodes[k.Node] != nil {
							t.Fatalf("%s of node %s is given up by policy %s", k.Addr, k.Node, c.rules.Policy)
						}
						delete(c.kept, k.Addr)
					}
				}
			},
		})
	})
}
