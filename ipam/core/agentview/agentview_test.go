// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package agentview_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/pool"
)

// node returns a NodePool that has a pool and whose agent has reported used.
func node(uid string, used map[netip.Addr]string, probes ...netip.Addr) pool.NodePool {
	return pool.NodePool{
		Name: "node-1", UID: uid, Generation: 9, HasPool: true, HasUsed: true, Used: used, Unreported: !pool.ReportsNode(used), Probes: probes,
		Entries: map[netip.Addr]pool.Entry{address: pool.ForOwner("default/later")},
	}
}

func TestAnswer(t *testing.T) {
	asked := node("uid", map[netip.Addr]string{router: "router"}, probe)
	asked.Generation, asked.Entries = 4, map[netip.Addr]pool.Entry{address: pool.ForOwner("default/web-0")}
	noPool := node("uid", nil, probe)
	noPool.HasPool = false
	used := map[netip.Addr]string{router: "router", address: "default/web-0"}
	for name, row := range map[string]struct {
		read     pool.NodePool
		evidence agentview.Evidence
		answer   agentview.Answer
	}{
		"the probe is still in the status":                     {read: node("uid", used, probe), answer: agentview.Pending},
		"the probe and another one are still in the status":    {read: node("uid", used, pool.Probe(0), probe), answer: agentview.Pending},
		"the CiliumNode has no pool":                           {read: noPool, answer: agentview.NoPool},
		"another CiliumNode with the same name":                {read: node("other", used), answer: agentview.Void},
		"the CiliumNode was deleted":                           {answer: agentview.Void},
		"the agent has not restored endpoints":                 {read: node("uid", nil), answer: agentview.Incomplete},
		"the agent has restored some endpoints":                {read: node("uid", map[netip.Addr]string{address: "default/web-0"}), answer: agentview.Incomplete},
		"a pod with the name router is not the router":         {read: node("uid", map[netip.Addr]string{address: "default/router"}), answer: agentview.Incomplete},
		"the health endpoint is an address of the node itself": {read: node("uid", map[netip.Addr]string{router: "health"}), answer: agentview.Complete, evidence: agentview.Evidence{Node: "node-1", UID: "uid", Generation: 4, Entries: asked.Entries, Used: map[netip.Addr]string{router: "health"}}},
		"only another probe is still in the status":            {read: node("uid", used, pool.Probe(2)), answer: agentview.Complete, evidence: agentview.Evidence{Node: "node-1", UID: "uid", Generation: 4, Entries: asked.Entries, Used: used}},
		"Entries and Generation are those of ProbedNode":       {read: node("uid", used), answer: agentview.Complete, evidence: agentview.Evidence{Node: "node-1", UID: "uid", Generation: 4, Entries: asked.Entries, Used: used}},
	} {
		t.Run(name, func(t *testing.T) {
			evidence, answer := agentview.Barrier{ProbedNode: asked, Probe: probe}.Answer(row.read)
			if answer != row.answer || !reflect.DeepEqual(evidence, row.evidence) {
				t.Errorf("got answer %s and evidence %+v, want %s and %+v", answer, evidence, row.answer, row.evidence)
			}
		})
	}
}

// TestNewProbe checks that each version of each CiliumNode has its own probe.
func TestNewProbe(t *testing.T) {
	seen := map[netip.Addr]pool.NodePool{}
	for _, n := range []pool.NodePool{{UID: "a", ResourceVersion: "1"}, {UID: "a", ResourceVersion: "11"}, {UID: "a1", ResourceVersion: "1"}, {UID: "b", ResourceVersion: "1"}} {
		p := agentview.NewProbe(n)
		if other, ok := seen[p]; ok || !pool.IsProbe(p) || p != agentview.NewProbe(n) {
			t.Errorf("NewProbe for %s/%s = %s, want a reproducible probe that no other version has (other version: %s/%s)", n.UID, n.ResourceVersion, p, other.UID, other.ResourceVersion)
		}
		seen[p] = n
	}
}

func TestJudge(t *testing.T) {
	const owner = "default/web-0"
	entry := func(e pool.Entry) map[netip.Addr]pool.Entry { return map[netip.Addr]pool.Entry{address: e} }
	owned := entry(pool.ForOwner(owner))
	withdrawn := entry(pool.CooldownEntry("", time.Unix(1, 0)))
	for name, row := range map[string]struct {
		entries map[netip.Addr]pool.Entry
		used    map[netip.Addr]string
		owner   string
		pods    []agentview.Pod
		want    agentview.AddressUse
	}{
		"an address that is not in use":                      {entries: owned, want: agentview.AddressUse{State: agentview.Clear}},
		"an address without an entry":                        {want: agentview.AddressUse{State: agentview.Clear}},
		"used by the owner":                                  {entries: owned, owner: owner, used: map[netip.Addr]string{address: owner}, want: agentview.AddressUse{State: agentview.Clear}},
		"used by the owner of the entry, for an empty owner": {entries: owned, used: map[netip.Addr]string{address: owner}, want: agentview.AddressUse{State: agentview.InUse, By: owner, Why: "the agent of node node-1 reports IP 10.240.1.7 as used by default/web-0"}},
		"used by an owner that the agent does not name": {
			entries: owned, used: map[netip.Addr]string{address: ""},
			want: agentview.AddressUse{State: agentview.InUse, Why: "the agent of node node-1 reports IP 10.240.1.7 as used by an unknown owner"},
		},
		"used by another pod": {
			entries: owned, owner: owner, used: map[netip.Addr]string{address: "default/other"},
			want: agentview.AddressUse{State: agentview.InUse, By: "default/other", Why: "the agent of node node-1 reports IP 10.240.1.7 as used by default/other"},
		},
		"another pod runs with the address, and the agent does not report it": {
			entries: owned, owner: owner, pods: []agentview.Pod{{Owner: "default/other", Addrs: []netip.Addr{router, address}}},
			want: agentview.AddressUse{State: agentview.InUse, By: "default/other", Why: "pod default/other on node node-1 has IP 10.240.1.7 in its status"},
		},
		"the pod with the address has stopped": {
			entries: owned, pods: []agentview.Pod{{Owner: "default/other", Addrs: []netip.Addr{address}, Stopped: true}},
			want: agentview.AddressUse{State: agentview.Clear},
		},
		"a pod that the entry names is bound and has no IP yet": {
			entries: owned, pods: []agentview.Pod{{Owner: owner}},
			want: agentview.AddressUse{State: agentview.InUse, By: owner, Why: "pod default/web-0 is bound to node node-1, whose pool has an entry that gives IP 10.240.1.7 to that pod"},
		},
		// Without the rule that this case checks, the exploration in test/explore finds a running pod whose address has
		// no entry in the pool of its node.
		"another pod has no IP yet": {
			entries: withdrawn, owner: owner, pods: []agentview.Pod{{Owner: "default/other"}},
			want: agentview.AddressUse{Why: "pod default/other on node node-1 has no IP in its status and may use IP 10.240.1.7"},
		},
		"another pod has no IP yet, and owns the entry of another address": {
			entries: map[netip.Addr]pool.Entry{address: withdrawn[address], address.Next(): pool.ForOwner("default/other")}, owner: owner,
			pods: []agentview.Pod{{Owner: "default/other"}},
			want: agentview.AddressUse{State: agentview.Clear},
		},
		"another pod has no IP yet, and the entry is owned": {
			entries: owned, pods: []agentview.Pod{{Owner: "default/other"}},
			want: agentview.AddressUse{State: agentview.Clear},
		},
		"another pod has no IP yet, and the owner uses the address": {
			entries: withdrawn, owner: owner, used: map[netip.Addr]string{address: owner}, pods: []agentview.Pod{{Owner: "default/other"}},
			want: agentview.AddressUse{State: agentview.Clear},
		},
		"a dynamic entry": {
			entries: entry(pool.Entry{}), want: agentview.AddressUse{Why: "the pool of node node-1 offers IP 10.240.1.7 to any pod"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := agentview.Evidence{Node: "node-1", Entries: row.entries, Used: row.used}
			if got := e.Judge(address, row.owner, row.pods); got != row.want {
				t.Errorf("Judge(%s, %q) returns %+v, want %+v", address, row.owner, got, row.want)
			}
		})
	}
}
