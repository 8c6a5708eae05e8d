// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"

	ipamoption "github.com/cilium/cilium/pkg/ipam/option"
	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"

	"fixedip.io/fixedip/ipam/scheme"
)

// TestAgentAnswersProbe checks that the agent of the model acknowledges an agent barrier (Cilium fact 24): the next
// report of the agent removes the probe from used and from release-ips. If the agent writes the labels of the
// CiliumNode before that report, it loses its answer (Cilium fact 28). The report then removes the probe from used
// only, and the next report removes the probe from release-ips.
func TestAgentAnswersProbe(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	const probe = "100::1"
	for name, labels := range map[string]bool{"the agent reports": false, "the agent writes its labels first": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				w := newWorld(ctx, kinds, setup{}, map[string]int{})
				w.startWorkloads(1)
				w.calm(2 * updateRate)
				for _, c := range w.controllers {
					// Only the agent may change the probe.
					c.kill()
				}
				m := w.machines[0]
				m.reportsAfter = m.wroteAt.Add(10 * updateRate)
				change(w.server, ciliumNodes, m.name, "user", func(cn *ciliumv2.CiliumNode) {
					cn.Status.IPAM.Used = maps.Clone(cn.Status.IPAM.Used)
					cn.Status.IPAM.Used[probe] = ipamtypes.AllocationIP{Owner: "probe"}
					cn.Status.IPAM.ReleaseIPs = map[string]ipamtypes.IPReleaseStatus{probe: ipamoption.IPAMReleased}
				})
				for m.seesNode() {
					m.seeNode()
				}
				if labels {
					m.label()
					for m.seesNode() {
						m.seeNode()
					}
				}
				m.report()
				cn, _ := one[*ciliumv2.CiliumNode](w.server, ciliumNodes, m.name)
				_, used := cn.Status.IPAM.Used[probe]
				_, released := cn.Status.IPAM.ReleaseIPs[probe]
				if used || released != labels {
					t.Errorf("after the first report, probe in used: got %t, want false; probe in release-ips: got %t, want %t", used, released, labels)
				}
				// If the answer was lost, the agent answers the handshake again when it sees its own report.
				for m.seesNode() {
					m.seeNode()
				}
				m.report()
				cn, _ = one[*ciliumv2.CiliumNode](w.server, ciliumNodes, m.name)
				if _, released := cn.Status.IPAM.ReleaseIPs[probe]; released {
					t.Error("after the second report, probe in release-ips: got true, want false")
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}
