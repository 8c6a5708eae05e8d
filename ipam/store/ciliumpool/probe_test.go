// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestWriteProbe(t *testing.T) {
	const probe, old = "100::2", "100::1"
	reported := func(change ...func(*ciliumv2.CiliumNode)) *ciliumv2.CiliumNode {
		cn := ciliumNode(change...)
		if cn.Status.IPAM.Used == nil {
			cn.Status.IPAM.Used = ipamtypes.AllocationMap{}
		}
		cn.Status.IPAM.Used["10.0.1.1"] = ipamtypes.AllocationIP{Owner: "router"}
		return cn
	}
	withOld := func(cn *ciliumv2.CiliumNode) {
		cn.Status.IPAM.ReleaseIPs = keys{old: "released"}
		cn.Status.IPAM.Used = ipamtypes.AllocationMap{old: {Owner: probeOwner}}
	}
	for name, row := range map[string]struct {
		// now is the CiliumNode at the API server. seen is the version that was read before; nil: now.
		now, seen *ciliumv2.CiliumNode
		release   keys
		err       error
		// unreported is true if the CiliumNode has no report. otherProbe is true if it has another probe.
		unreported, otherProbe bool
	}{
		"the first probe":                          {now: reported(), release: keys{probe: "released"}},
		"a probe during a release handshake":       {now: reported(func(cn *ciliumv2.CiliumNode) { cn.Status.IPAM.ReleaseIPs = keys{"10.0.1.2": "do-not-release"} }), release: keys{"10.0.1.2": "do-not-release", probe: "released"}},
		"a second probe":                           {now: reported(withOld), release: keys{old: "released", probe: "released"}, otherProbe: true},
		"a replaced CiliumNode":                    {now: reported(func(cn *ciliumv2.CiliumNode) { cn.UID = "other" }), seen: reported(), err: ErrChanged},
		"a CiliumNode without a report":            {now: ciliumNode(), release: keys{probe: "released"}, unreported: true},
		"the used map was removed in the meantime": {now: ciliumNode(), seen: reported(), err: ErrChanged},
		"the agent has reported in the meantime":   {now: reported(), seen: ciliumNode(func(cn *ciliumv2.CiliumNode) { cn.ResourceVersion = "1" }), err: ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			if row.seen == nil {
				row.seen = row.now
			}
			api := newAPI(t, row.now)
			after, err := New(api).WriteProbe(t.Context(), FromCiliumNode(row.seen), netip.MustParseAddr(probe))
			if !errors.Is(err, row.err) || (row.err == nil) != (err == nil) {
				t.Fatalf("got error %v, want %v", err, row.err)
			}
			if err != nil {
				return
			}
			var cn ciliumv2.CiliumNode
			if err := api.Get(t.Context(), client.ObjectKey{Name: "n"}, &cn); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.release, cn.Status.IPAM.ReleaseIPs); diff != "" {
				t.Errorf("release-ips (-want +got): %s", diff)
			}
			want, used := ipamtypes.AllocationMap{probe: {Owner: probeOwner}}, map[netip.Addr]string{}
			if !row.unreported {
				want["10.0.1.1"], used[addr("10.0.1.1")] = ipamtypes.AllocationIP{Owner: "router"}, "router"
			}
			probes := []netip.Addr{addr(probe)}
			if row.otherProbe {
				want[old], probes = ipamtypes.AllocationIP{Owner: probeOwner}, []netip.Addr{addr(old), addr(probe)}
			}
			if diff := cmp.Diff(want, cn.Status.IPAM.Used); diff != "" {
				t.Errorf("used (-want +got): %s", diff)
			}
			if diff := cmp.Diff(probes, after.Probes, compareAddrs); diff != "" {
				t.Errorf("probes (-want +got): %s", diff)
			}
			// A probe is neither an address in use nor a release handshake.
			if diff := cmp.Diff(used, after.Used, compareAddrs, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("addresses in use (-want +got): %s", diff)
			}
			if state, ok := after.Handshakes[addr(probe)]; ok {
				t.Errorf("the probe %s has handshake state %v, want no handshake", probe, state)
			}
		})
	}
}

// TestProbeThatIsNotStored checks that WriteProbe fails if the API server does not store the probe: a missing probe looks as
// if the agent had acknowledged it.
func TestProbeThatIsNotStored(t *testing.T) {
	n := FromCiliumNode(ciliumNode(func(cn *ciliumv2.CiliumNode) { cn.Status.IPAM.Used = ipamtypes.AllocationMap{} }))
	api := dropping{newAPI(t, ciliumNode())}
	if _, err := New(api).WriteProbe(t.Context(), n, netip.MustParseAddr("100::2")); err == nil {
		t.Error("WriteProbe returned no error for a probe that was not stored")
	}
}

// dropping is an API server that accepts patches of the status and does not store them.
type dropping struct{ *apiServer }

func (d dropping) Status() client.SubResourceWriter { return droppingStatus{} }

type droppingStatus struct{ client.SubResourceWriter }

func (droppingStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return nil
}
