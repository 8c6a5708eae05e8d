// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"strings"
	"testing"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// TestReservedBeforehand checks FixedIPs that exist before their pods. No first placement takes the address of such a FixedIP,
// even if it would be the next one, and the address gets no dynamic entry. Another pod that requests the address waits, and
// gets it when the FixedIP is deleted.
func TestReservedBeforehand(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Used == 2 && p.Dynamic > 0 }))
	next, due, requested := e.in("node-1", "254"), e.in("node-1", "12"), e.in("node-1", "200")
	e.create(beforehand("other", "other-0", next), beforehand("low", "low-0", due), beforehand("never", "never-0", requested))
	for _, name := range []string{"other-0", "low-0", "never-0"} {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Reserved })
	}

	e.create(statefulSet("web", 2), statefulSet("out", 8, onTemplate("fixedip.io/enabled", "false")), statefulSet("wants", 1, onTemplate("fixedip.io/ips", requested)))
	before := e.awaitRunning(nil, "web-0", "web-1")
	for name, r := range before {
		if r.Address != e.in("node-1", "253") && r.Address != e.in("node-1", "252") {
			t.Errorf("pod %s has %s, want one of the two addresses below %s, which is reserved", name, r.Address, next)
		}
	}
	e.await("wait for the pods without fixed addresses to run", func(rows []witness.Row) bool {
		running := 0
		for _, r := range rows {
			if strings.HasPrefix(r.Pod, "out-") && r.Running {
				running++
			}
		}
		return running == 8
	})
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Dynamic > 12 }))
	if owner, ok := e.witness.Owner("node-1", due); ok && owner != "default/low-0" {
		t.Errorf("%s, which is reserved for low-0, has an entry with the owner %q, want no entry or the owner default/low-0", due, owner)
	}
	e.podMessage("wants-0", "requests "+requested+" (annotation fixedip.io/ips): IP "+requested+" on node node-1 belongs to pod default/never-0; request another address; this one becomes available when it has been released and its cooldown has ended")

	e.create(statefulSet("other", 1), statefulSet("low", 1))
	e.delete(&v1alpha1.FixedIP{ObjectMeta: aPod("never-0").ObjectMeta})
	for name, r := range e.awaitRunning(nil, "other-0", "low-0", "wants-0") {
		if want := map[string]string{"other-0": next, "low-0": due, "wants-0": requested}[name]; r.Address != want {
			t.Errorf("pod %s has %s, want %s", name, r.Address, want)
		}
	}
}

// TestSecondFamily checks a pod whose FixedIP has an address of one family. The pod gets an address of the other
// family, from a /64, with its first claim, and keeps both addresses.
func TestSecondFamily(t *testing.T) {
	t.Parallel()
	e := start(t, options{
		controllerArgs: append([]string{"--cluster-pool-ipv6-cidr=fd00:240::/48", "--cluster-pool-ipv6-mask-size=64"}, defaultPool...),
		families:       []string{"IPv4", "IPv6"},
	})
	for _, n := range []string{"node-1", "node-2"} {
		e.startNode(n, "--ipv6")
	}
	for _, n := range []string{"node-1", "node-2"} {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}
	requested := e.in("node-2", "60")
	e.create(beforehand("web", "web-0", requested))
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Reserved })
	e.create(statefulSet("web", 1))
	before := e.awaitRunning(nil, "web-0")
	r := before["web-0"]
	both := strings.Split(r.Address, ",")
	if len(both) != 2 || both[0] != requested || !strings.HasPrefix(both[1], "fd00:240:") || r.Node != "node-2" || len(r.Entries) != 2 {
		t.Fatalf("web-0 has %s on %s and the entries %v, want %s and an IPv6 address", r.Address, r.Node, r.Entries, requested)
	}
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool { return slices.Equal(f.Spec.IPs, both) && f.Spec.NodeName == "node-2" })
	e.deletePods("web-0")
	e.sameAddresses(before, e.awaitRunning(before, "web-0"))
}
