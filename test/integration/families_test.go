// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/core/address"
)

// familiesOf returns the families of addresses or subnets, in order.
func familiesOf(texts ...string) []string {
	var families []string
	for _, s := range texts {
		addr, _, _ := strings.Cut(s, "/")
		families = append(families, address.Of(netip.MustParseAddr(addr)).String())
	}
	return families
}

// TestG8Families checks that pods have fixed addresses of the right families in clusters with IPv4, with IPv6 and with both
// (G8). In the dual-stack cluster, pods of another scheduler have fixed IPv4 addresses only; TestG15GuideScenarios adopts
// both families.
func TestG8Families(t *testing.T) {
	t.Parallel()
	v4, v6, both := []string{"IPv4"}, []string{"IPv6"}, []string{"IPv4", "IPv6"}
	const ipv6CIDR, ipv6Mask = "--cluster-pool-ipv6-cidr=fd00:240::/112", "--cluster-pool-ipv6-mask-size=120"
	for name, c := range map[string]struct {
		controller, node []string
		// ours and theirs are the families of the fixed addresses of pods of our scheduler and of another scheduler. The nodes
		// have the families in ours.
		ours, theirs []string
	}{
		"IPv4 only": {
			controller: append([]string{"--enable-ipv6=false", ipv6CIDR, ipv6Mask}, defaultPool...),
			ours:       v4, theirs: v4,
		},
		"IPv6 only": {
			controller: []string{"--enable-ipv6=true", "--enable-static-pod-ipv6=true", ipv6CIDR, ipv6Mask, "--address-cooldown=2s"},
			node:       []string{"--ipv4=false", "--ipv6"},
			ours:       v6, theirs: v6,
		},
		"dual stack": {
			controller: append([]string{"--enable-ipv6=true", "--enable-static-pod-ipv6=false", ipv6CIDR, ipv6Mask}, defaultPool...),
			node:       []string{"--ipv6"},
			ours:       both, theirs: v4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := startOn(t, options{controllerArgs: append(c.controller, `--label-selector={"matchLabels":{"app":"theirs"}}`), families: c.ours},
				map[string][]string{"node-1": c.node, "node-2": c.node})
			// Pods of the other scheduler get their entries when they run.
			e.witness.AnyOrder()
			for _, node := range []string{"node-1", "node-2"} {
				var cn ciliumv2.CiliumNode
				e.must(e.api.Get(within(t), client.ObjectKey{Name: node}, &cn))
				if got := familiesOf(cn.Spec.IPAM.PodCIDRs...); !slices.Equal(got, c.ours) {
					t.Errorf("node %s has the subnets %v, want one of each of %v", node, cn.Spec.IPAM.PodCIDRs, c.ours)
				}
			}
			fixed := map[string][]string{"ours-0": c.ours, "ours-1": c.ours, "ours-2": c.ours, "theirs-0": c.theirs}
			all := append(names("ours", 3), "theirs-0")
			e.create(statefulSet("ours", 3), placed("theirs", "node-1", 1, map[string]string{"app": "theirs"}))
			before := e.awaitRunning(nil, all...)
			reserved := map[string][]string{}
			for name, families := range fixed {
				reserved[name] = e.witness.Record(namespace, name).Spec.IPs
				if got := familiesOf(reserved[name]...); !slices.Equal(got, families) || len(before[name].Entries) != len(families) {
					t.Errorf("pod %s with %s has the fixed addresses %v and the entries %v, want one of each of %v", name, before[name].Address, reserved[name], before[name].Entries, families)
				}
				if got := familiesOf(strings.Split(before[name].Address, ",")...); !slices.Equal(got, c.ours) {
					t.Errorf("pod %s runs with %s, want an address of each of %v", name, before[name].Address, c.ours)
				}
			}
			e.deletePods(all...)
			for name, r := range e.awaitRunning(before, all...) {
				if has := strings.Split(r.Address, ","); slices.ContainsFunc(reserved[name], func(a string) bool { return !slices.Contains(has, a) }) || r.Node != before[name].Node {
					t.Errorf("pod %s runs with %s on node %s, want its fixed addresses %v on node %s", name, r.Address, r.Node, reserved[name], before[name].Node)
				}
			}
			e.await("wait for the pods to have the same entries as before", func(rows []witness.Row) bool {
				return !slices.ContainsFunc(rows, func(r witness.Row) bool { return !slices.Equal(r.Entries, before[r.Pod].Entries) })
			})
		})
	}
}
