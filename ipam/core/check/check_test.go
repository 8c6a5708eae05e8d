// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/gen"
)

var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// cluster is a cluster whose objects a test changes before they are checked.
type cluster struct {
	Objects
	// pools are the pools of the nodes. Key: the name of the node.
	pools map[string]pool.NodePool
}

// healthy returns a cluster without a problem: pod web-0 runs on node-1 with 10.0.1.6, pod web-1 on node-2 with 10.0.1.7,
// whose home is node-1, and the address of web-2, which does not run, is reserved on node-2.
func healthy() *cluster {
	web := func(pod string) pool.Entry { return pool.OwnedEntry(gen.Namespace, pod, "StatefulSet", "web") }
	c := &cluster{pools: map[string]pool.NodePool{
		"node-1": gen.NodePool("node-1", "10.0.1.0/24", map[string]pool.Entry{
			"10.0.1.1": {}, "10.0.1.250": pool.ForOwner("router"), "10.0.1.6": web("web-0"), "10.0.1.7": pool.MovedEntry("node-2", "db/web-1"),
		}, gen.UsedBy("db/web-0", "10.0.1.6"), gen.UsedBy("router", "10.0.1.250")),
		"node-2": gen.NodePool("node-2", "10.0.2.0/24", map[string]pool.Entry{
			"10.0.2.1": {}, "10.0.1.7": web("web-1"), "10.0.2.8": web("web-2"), "10.0.2.9": pool.CooldownEntry("db/old-0", now.Add(-time.Minute)),
		}, gen.UsedBy("db/web-1", "10.0.1.7")),
	}}
	c.Now = now
	for _, r := range []struct{ name, ip string }{{"web-0", "10.0.1.6"}, {"web-1", "10.0.1.7"}, {"web-2", "10.0.2.8"}} {
		c.FixedIPs = append(c.FixedIPs, *gen.FixedIP(r.name, gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.Spec.IPs = []string{r.ip} }))
	}
	c.run("web-0", "node-1", "10.0.1.6")
	c.run("web-1", "node-2", "10.0.1.7")
	c.Nodes = map[string]*corev1.Node{"node-1": gen.Node("node-1"), "node-2": gen.Node("node-2"), "node-3": gen.Node("node-3")}
	for node, cidr := range map[string]string{"node-1": "10.0.1.0/24", "node-2": "10.0.2.0/24"} {
		c.NodeSubnets = append(c.NodeSubnets, v1alpha1.NodeSubnet{Spec: v1alpha1.NodeSubnetSpec{CIDR: cidr, NodeName: node}})
	}
	return c
}

// run adds a pod that runs with an address, and its CiliumEndpoint.
func (c *cluster) run(name, node, ip string) {
	c.Pods = append(c.Pods, *gen.Pod(name, gen.On(node, ip), gen.Running, gen.Controlled("web", "1")))
	c.Endpoints = append(c.Endpoints, Endpoint{Pod: gen.Namespace + "/" + name, UID: types.UID(name), ResourceVersion: "7", Addrs: []netip.Addr{netip.MustParseAddr(ip)}})
}

// orphan adds a NodeSubnet whose node does not exist and which has been orphaned for the duration since.
func (c *cluster) orphan(cidr string, since time.Duration) {
	ns := v1alpha1.NodeSubnet{Spec: v1alpha1.NodeSubnetSpec{CIDR: cidr, NodeName: "node-9"}, Status: v1alpha1.NodeSubnetStatus{OrphanedSince: &metav1.Time{Time: now.Add(-since)}}}
	ns.Name, ns.UID, ns.ResourceVersion = "orphan", "uid-orphan", "8"
	c.NodeSubnets = append(c.NodeSubnets, ns)
}

// entry sets the pool entry of ip on node-1, and its resource text.
func (c *cluster) entry(ip string, e pool.Entry, resource string) {
	n := c.pools["node-1"]
	n.Entries[netip.MustParseAddr(ip)] = e
	n.Resources = map[netip.Addr]string{netip.MustParseAddr(ip): resource}
	c.pools["node-1"] = n
}

// handshake sets the state of a release handshake of node-1.
func (c *cluster) handshake(ip string, state pool.Handshake) {
	n := c.pools["node-1"]
	n.Handshakes = map[netip.Addr]pool.Handshake{netip.MustParseAddr(ip): state}
	c.pools["node-1"] = n
}

func (c *cluster) problems() []Problem {
	c.Pools = ledger.New()
	for _, n := range c.pools {
		c.Pools.SetNode(n)
	}
	for _, f := range c.FixedIPs {
		c.Pools.SetReservation(ledger.Reservation{Record: f.Namespace + "/" + f.Name, Owner: pool.OwnerKey(f.Namespace, f.Spec.PodName), Addrs: address.ParseAll(f.Spec.IPs)})
	}
	return Run(c.Objects)
}

// TestRun makes one change at a time to a cluster without a problem, and checks which problems Run reports, and that each of
// them has advice.
func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(*cluster)
		want  []Problem
	}{
		"nothing": {plant: func(*cluster) {}},
		"two pods run with one address": {
			plant: func(c *cluster) { c.run("other", "node-2", "10.0.1.6") },
			want:  []Problem{{Kind: SharedAddress, Object: "Pod db/web-0", Text: "Pod db/other runs with 10.0.1.6 too"}},
		},
		"two FixedIPs reserve one address": {
			plant: func(c *cluster) { c.FixedIPs[2].Spec.IPs = []string{"10.0.1.6"} },
			want:  []Problem{{Kind: SharedReservation, Object: "FixedIP db/web-2", Text: "FixedIP db/web-0 reserves 10.0.1.6 too"}},
		},
		"two pools offer one address": {
			plant: func(c *cluster) { c.pools["node-2"].Entries[netip.MustParseAddr("10.0.1.1")] = pool.Entry{} },
			want:  []Problem{{Kind: SharedEntry, Object: "CiliumNode node-1", Text: "The pools of nodes node-1 and node-2 offer 10.0.1.1"}},
		},
		"the subnets of two nodes overlap": {
			plant: func(c *cluster) {
				c.pools["node-3"] = gen.NodePool("node-3", "10.0.2.128/25", nil)
				c.NodeSubnets = append(c.NodeSubnets, v1alpha1.NodeSubnet{Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.2.128/25", NodeName: "node-3"}})
			},
			want: []Problem{{Kind: OverlappingSubnets, Object: "CiliumNode node-2", Text: "A subnet of the node overlaps one of node node-3; no fixed IP in these subnets is assigned and the pools are not refilled until the overlap ends"}},
		},
		"the entry of a reserved address belongs to another pod": {
			plant: func(c *cluster) {
				c.pools["node-2"].Entries[netip.MustParseAddr("10.0.2.8")] = pool.OwnedEntry("db", "web-0", "StatefulSet", "web")
			},
			want: []Problem{{Kind: OtherOwner, Object: "FixedIP db/web-2", Text: "The entry of 10.0.2.8 in the pool of node node-2 belongs to db/web-0"}},
		},
		"an agent has given a reserved address to another pod": {
			plant: func(c *cluster) {
				c.run("other", "node-2", "10.0.2.8")
				c.pools["node-2"].Used[netip.MustParseAddr("10.0.2.8")] = "db/other"
			},
			want: []Problem{{Kind: OtherUser, Object: "CiliumNode node-2", Text: "The agent has given 10.0.2.8 to pod db/other, but the entry belongs to pod db/web-2"}},
		},
		"a pod runs with a wrong address": {
			plant: func(c *cluster) {
				c.Pods[0].Status.PodIPs[0].IP, c.Endpoints[0].Addrs = "10.0.1.1", []netip.Addr{netip.MustParseAddr("10.0.1.1")}
			},
			want: []Problem{{Kind: WrongAddress, Object: "Pod db/web-0", Text: "The pod runs with 10.0.1.1, but its FixedIP reserves 10.0.1.6", Repair: &Repair{Evict: true, Pod: "db/web-0", UID: "uid-web-0", Workload: "db/StatefulSet/web"}}},
		},
		"a pod runs with a wrong address, and its pool does not have the entry": {
			plant: func(c *cluster) {
				c.Pods[0].Status.PodIPs[0].IP, c.Endpoints[0].Addrs = "10.0.1.1", []netip.Addr{netip.MustParseAddr("10.0.1.1")}
				delete(c.pools["node-1"].Entries, netip.MustParseAddr("10.0.1.6"))
			},
			want: []Problem{
				{Kind: MissingEntry, Object: "FixedIP db/web-0", Text: "No entry gives 10.0.1.6 to pod db/web-0; the home of the address is node node-1"},
				{Kind: WrongAddress, Object: "Pod db/web-0", Text: "The pod runs with 10.0.1.1, but its FixedIP reserves 10.0.1.6"},
			},
		},
		"a pod with a slot runs with a wrong address": {
			plant: func(c *cluster) {
				c.Pods[0].Status.PodIPs[0].IP, c.Endpoints[0].Addrs = "10.0.1.1", []netip.Addr{netip.MustParseAddr("10.0.1.1")}
				c.Pods[0].OwnerReferences[0].Kind, c.Pods[0].OwnerReferences[0].Name = "ReplicaSet", "web-5d4f"
				c.FixedIPs[0].Spec.Owner.Kind, c.FixedIPs[0].Spec.AssignedTo = "Deployment", v1alpha1.Slot
				c.pools["node-1"].Entries[netip.MustParseAddr("10.0.1.6")] = pool.OwnedEntry("db", "web-0", "Deployment", "web")
			},
			want: []Problem{{Kind: WrongAddress, Object: "Pod db/web-0", Text: "The pod runs with 10.0.1.1, but its FixedIP reserves 10.0.1.6", Repair: &Repair{Evict: true, Pod: "db/web-0", UID: "uid-web-0", Workload: "db/Deployment/web"}}},
		},
		"a pod that has opted out has another address": {
			plant: func(c *cluster) {
				c.Pods[0].Status.PodIPs[0].IP, c.Endpoints[0].Addrs = "10.0.1.1", []netip.Addr{netip.MustParseAddr("10.0.1.1")}
				c.Pods[0].Annotations = map[string]string{identity.AnnotationEnabled: "false"}
			},
		},
		"a pod that is being deleted still holds its address": {
			plant: func(c *cluster) {
				c.run("other", "node-2", "10.0.1.6")
				c.Pods[2].DeletionTimestamp = &metav1.Time{Time: now}
			},
			want: []Problem{{Kind: SharedAddress, Object: "Pod db/web-0", Text: "Pod db/other runs with 10.0.1.6 too"}},
		},
		"a user has reserved an address for a pod that does not exist": {
			plant: func(c *cluster) {
				c.pools["node-1"].Entries[netip.MustParseAddr("10.0.1.9")] = pool.ForOwner("db/later-0")
			},
		},
		"the entry of a reserved address is missing": {
			plant: func(c *cluster) { delete(c.pools["node-2"].Entries, netip.MustParseAddr("10.0.2.8")) },
			want:  []Problem{{Kind: MissingEntry, Object: "FixedIP db/web-2", Text: "No entry gives 10.0.2.8 to pod db/web-2; the home of the address is node node-2"}},
		},
		"a reserved address is in no subnet": {
			plant: func(c *cluster) {
				c.FixedIPs[2].Spec.IPs, c.pools["node-2"].Entries[netip.MustParseAddr("10.0.2.8")] = []string{"10.0.9.8"}, pool.Entry{}
			},
			want: []Problem{{Kind: MissingSubnet, Object: "FixedIP db/web-2", Text: "No pool decides about 10.0.9.8, because no node has its subnet or the subnets of two nodes overlap; pod db/web-2 cannot be placed until exactly one node has the subnet"}},
		},
		"a CiliumEndpoint has another address than its pod": {
			plant: func(c *cluster) { c.Endpoints[1].Addrs = []netip.Addr{netip.MustParseAddr("10.0.2.1")} },
			want:  []Problem{{Kind: WrongEndpoint, Object: "CiliumEndpoint db/web-1", Text: "The CiliumEndpoint has 10.0.2.1, but its pod runs with 10.0.1.7", Repair: &Repair{DeleteEndpoint: true, Pod: "db/web-1", UID: "web-1", ResourceVersion: "7"}}},
		},
		"a pod has no CiliumEndpoint": {
			plant: func(c *cluster) { c.Endpoints = c.Endpoints[:1] },
			want:  []Problem{{Kind: MissingEndpoint, Object: "Pod db/web-1", Text: "The pod has no CiliumEndpoint, so other nodes may not reach it"}},
		},
		"Cilium runs without CiliumEndpoints": {plant: func(c *cluster) { c.Endpoints = nil }},
		"an entry belongs to no pod and no FixedIP": {
			plant: func(c *cluster) {
				c.pools["node-1"].Entries[netip.MustParseAddr("10.0.1.9")] = pool.OwnedEntry("db", "gone-0", "StatefulSet", "gone")
			},
			want: []Problem{{Kind: LeakedEntry, Object: "CiliumNode node-1", Text: "The entry of 10.0.1.9 belongs to pod db/gone-0, which does not exist and has no FixedIP", Repair: &Repair{Pod: "db/gone-0", ReleaseOn: "node-1", Address: netip.MustParseAddr("10.0.1.9"), Workload: "db/StatefulSet/gone"}}},
		},
		"the deletion of a FixedIP does not end": {
			plant: func(c *cluster) { c.FixedIPs[2].DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Hour)} },
			want:  []Problem{{Kind: StuckRelease, Object: "FixedIP db/web-2", Text: "The FixedIP has been in deletion since 2026-11-27T11:00:00Z, and its pod does not exist"}},
		},
		"a cooldown does not end": {
			plant: func(c *cluster) {
				c.pools["node-2"].Entries[netip.MustParseAddr("10.0.2.9")] = pool.CooldownEntry("db/old-0", now.Add(-time.Hour))
			},
			want: []Problem{{Kind: StuckRelease, Object: "CiliumNode node-2", Text: "The cooldown of 10.0.2.9 has lasted since 2026-11-27T11:00:00Z"}},
		},
		"a pool cannot be read": {
			plant: func(c *cluster) {
				n := c.pools["node-1"]
				n.Malformed = []string{`spec.ipam.pool: "10.0.1.0001"`}
				c.pools["node-1"] = n
			},
			want: []Problem{{Kind: Malformed, Object: "CiliumNode node-1", Text: `spec.ipam.pool: "10.0.1.0001" cannot be read`}},
		},
		"the NodeSubnet of a node's subnet names another node": {
			plant: func(c *cluster) {
				i := slices.IndexFunc(c.NodeSubnets, func(n v1alpha1.NodeSubnet) bool { return n.Spec.NodeName == "node-2" })
				c.NodeSubnets[i].Spec.NodeName = "node-9"
			},
			want: []Problem{{Kind: UnknownSubnet, Object: "CiliumNode node-2", Text: "The node has the subnet 10.0.2.0/24, but its NodeSubnet names node-9"}},
		},
		"the NodeSubnet of a node's subnet names no node": {
			plant: func(c *cluster) {
				i := slices.IndexFunc(c.NodeSubnets, func(n v1alpha1.NodeSubnet) bool { return n.Spec.NodeName == "node-2" })
				c.NodeSubnets[i].Spec.NodeName = ""
			},
			want: []Problem{{Kind: UnknownSubnet, Object: "CiliumNode node-2", Text: "The node has the subnet 10.0.2.0/24, but its NodeSubnet names no node"}},
		},
		"a node has no subnet": {
			plant: func(c *cluster) { c.pools["node-3"] = pool.NodePool{Name: "node-3"} },
			want:  []Problem{{Kind: NoSubnet, Object: "CiliumNode node-3", Text: "The node has no subnet, so its agent does not start"}},
		},
		"the owner of an entry is a marker of another version": {
			plant: func(c *cluster) { c.entry("10.0.1.9", pool.ForOwner("fixedip.io/held"), "") },
			want:  []Problem{{Kind: Malformed, Object: "CiliumNode node-1", Text: `The entry of 10.0.1.9 cannot be read: this version knows no owner "fixedip.io/held"`}},
		},
		"the owner of an entry has three parts": {
			plant: func(c *cluster) { c.entry("10.0.1.9", pool.ForOwner("db/web/0"), "") },
			want:  []Problem{{Kind: Malformed, Object: "CiliumNode node-1", Text: `The entry of 10.0.1.9 cannot be read: the owner "db/web/0" is not namespace/pod`}},
		},
		"another program uses an owner without a slash": {plant: func(c *cluster) { c.entry("10.0.1.9", pool.ForOwner("virtual-machine"), "") }},
		"the resource of a reserved entry cannot be read": {
			plant: func(c *cluster) {
				c.entry("10.0.1.6", pool.ForOwner("db/web-0"), "db/StatefulSet")
			},
			want: []Problem{{Kind: Malformed, Object: "CiliumNode node-1", Text: `The entry of 10.0.1.6 cannot be read: the resource "db/StatefulSet" is not namespace/Kind/name`, Repair: &Repair{Pod: "db/web-0", RewriteOn: "node-1", Address: netip.MustParseAddr("10.0.1.6")}}},
		},
		"the resource of an entry names another namespace": {
			plant: func(c *cluster) {
				c.entry("10.0.1.6", pool.OwnedEntry("db", "web-0", "StatefulSet", "web"), "prod/StatefulSet/web")
			},
			want: []Problem{{Kind: Malformed, Object: "CiliumNode node-1", Text: `The entry of 10.0.1.6 cannot be read: the resource "prod/StatefulSet/web" names another namespace than the owner db/web-0`, Repair: &Repair{Pod: "db/web-0", RewriteOn: "node-1", Address: netip.MustParseAddr("10.0.1.6")}}},
		},
		"the resource of an entry has a field of a later version": {plant: func(c *cluster) {
			c.entry("10.0.1.6", pool.OwnedEntry("db", "web-0", "StatefulSet", "web"), "db/StatefulSet/web;later=1")
		}},
		"the resource of a moved entry names no pod": {
			plant: func(c *cluster) { c.entry("10.0.1.7", pool.MovedEntry("node-2", ""), "node=node-2") },
			want:  []Problem{{Kind: Malformed, Object: "CiliumNode node-1", Text: `The entry of 10.0.1.7 cannot be read: the resource "node=node-2" does not name the node that carries the address and its pod`}},
		},
		"the resource of a move-target names no pod": {
			plant: func(c *cluster) { c.entry("10.0.2.99", pool.MoveTargetEntry(""), "") },
			want:  []Problem{{Kind: Malformed, Object: "CiliumNode node-1", Text: `The entry of 10.0.2.99 cannot be read: the resource "" does not name the pod whose address is about to arrive`}},
		},
		"the resource of a cooldown has no time": {
			plant: func(c *cluster) { c.entry("10.0.1.9", pool.Entry{Kind: pool.Cooldown}, "since=yesterday") },
			want:  []Problem{{Kind: Malformed, Object: "CiliumNode node-1", Text: `The entry of 10.0.1.9 cannot be read: the resource "since=yesterday" does not say since when the address cools down`}},
		},
		"a user has put an address into cooldown": {plant: func(c *cluster) { c.entry("10.0.1.9", pool.Entry{Kind: pool.Cooldown}, "") }},
		"the controller does not withdraw a handshake": {
			plant: func(c *cluster) { c.handshake("10.0.1.1", pool.DoNotRelease) },
			want: []Problem{{Kind: StuckHandshake, Object: "CiliumNode node-1", Text: "The release handshake of 10.0.1.1 stays in the state do-not-release, although the controller has to withdraw it",
				Repair: &Repair{Handshake: &HandshakeRepair{Node: "node-1", Address: netip.MustParseAddr("10.0.1.1"), State: pool.DoNotRelease}}}},
		},
		"the controller does not withdraw a handshake without an entry": {
			plant: func(c *cluster) { c.handshake("10.0.1.99", pool.ReadyForRelease) },
			want: []Problem{{Kind: StuckHandshake, Object: "CiliumNode node-1", Text: "The release handshake of 10.0.1.99 stays in the state ready-for-release, although the controller has to withdraw it",
				Repair: &Repair{Handshake: &HandshakeRepair{Node: "node-1", Address: netip.MustParseAddr("10.0.1.99"), State: pool.ReadyForRelease}}}},
		},
		"a handshake has an unknown state": {
			plant: func(c *cluster) { c.handshake("10.0.1.1", pool.OtherState) },
			want:  []Problem{{Kind: StuckHandshake, Object: "CiliumNode node-1", Text: "The release handshake of 10.0.1.1 has a state that fixedip does not know"}},
		},
		"a NodeSubnet is left over": {
			plant: func(c *cluster) { c.orphan("10.0.9.0/24", time.Hour) },
			want: []Problem{{Kind: StaleSubnet, Object: "NodeSubnet orphan", Text: "Node node-9 does not exist, and no FixedIP and no pod has an address of 10.0.9.0/24",
				Repair: &Repair{DeleteSubnet: "orphan", UID: "uid-orphan", ResourceVersion: "8"}}},
		},
		"a NodeSubnet has been orphaned for a minute": {plant: func(c *cluster) { c.orphan("10.0.9.0/24", time.Minute) }},
		"a pod still has an address of an orphaned subnet": {plant: func(c *cluster) {
			c.orphan("10.0.9.0/24", time.Hour)
			c.run("last", "node-1", "10.0.9.5")
		}},
		"a NodeSubnet names a node that does not have it": {
			plant: func(c *cluster) {
				c.pools["node-3"] = gen.NodePool("node-3", "10.0.3.0/24", nil)
				for _, cidr := range []string{"10.0.3.0/24", "10.0.4.0/24"} {
					c.NodeSubnets = append(c.NodeSubnets, v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: "of-node-3"}, Spec: v1alpha1.NodeSubnetSpec{CIDR: cidr, NodeName: "node-3"}})
				}
			},
			want: []Problem{{Kind: StaleSubnet, Object: "NodeSubnet of-node-3", Text: "The NodeSubnet gives 10.0.4.0/24 to node node-3, but no CiliumNode has it"}},
		},
		"a node is about to join": {plant: func(c *cluster) {
			c.NodeSubnets = append(c.NodeSubnets, v1alpha1.NodeSubnet{Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.3.0/24", NodeName: "node-3"}})
		}},
		"no NodeSubnet exists, because the controller has not run yet": {plant: func(c *cluster) { c.NodeSubnets = nil }},
		"a pod without a fixed address": {plant: func(c *cluster) {
			c.Pods = append(c.Pods, *gen.Pod("free", gen.On("node-1", "10.0.1.1"), gen.Running))
		}},
		"a pod in the host network": {plant: func(c *cluster) {
			for _, name := range []string{"host-0", "host-1"} {
				c.Pods = append(c.Pods, *gen.Pod(name, gen.On("node-1", "192.0.2.1"), gen.Running, func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := healthy()
			c.plant(cluster)
			got := cluster.problems()
			for i := range got {
				if got[i].Help == "" {
					t.Errorf("%s of %s has no advice", got[i].Kind, got[i].Object)
				}
				got[i].Help = ""
			}
			if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLasting(t *testing.T) {
	first := []Problem{{Kind: NoSubnet, Object: "CiliumNode a"}, {Kind: NoSubnet, Object: "CiliumNode b", Text: "x"}}
	second := []Problem{{Kind: NoSubnet, Object: "CiliumNode b", Text: "y"}, {Kind: NoSubnet, Object: "CiliumNode a", Help: "h"}, {Kind: Malformed, Object: "CiliumNode a"}}
	if diff := cmp.Diff(second[1:2], Lasting(first, second)); diff != "" {
		t.Errorf("lasting problems (-want +got):\n%s", diff)
	}
}
