// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/check"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/test/gen"
)

// TestFixAndDryRun plants faults. It checks that a dry run changes no CiliumNode and no NodeSubnet, that check --fix logs one
// line for each repair, and that no fault is left afterwards.
func TestFixAndDryRun(t *testing.T) {
	web := func() []client.Object {
		pod := gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running, gen.Controlled("web", "1"))
		return []client.Object{pod, gen.FixedIP("web-0", gen.Owner("web")), gen.StatefulSet(gen.Namespace, "web", 1), gen.Node("node-1")}
	}
	orphan := func() client.Object {
		ns := &v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: "10-0-9-0-24", UID: "uid-orphan"}, Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.9.0/24", NodeName: "node-9"}}
		ns.Status.OrphanedSince = &metav1.Time{Time: time.Now().Add(-time.Hour)}
		return ns
	}
	healthy := map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web"}
	for name, c := range map[string]struct {
		// entries are those of node-1, as for pooled.
		entries map[string]string
		change  func(*ciliumv2.CiliumNode)
		objects []client.Object
		want    []string
	}{
		"no fault": {entries: healthy},
		"a resource that cannot be read": {
			entries: map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet"},
			want:    []string{"Malformed of CiliumNode node-1: wrote the resource of the entry of 10.0.1.6 on node node-1."},
		},
		"a leaked entry": {
			entries: map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web", "10.0.1.9": "db/gone-0 db/StatefulSet/gone"},
			want:    []string{"LeakedEntry of CiliumNode node-1: released 10.0.1.9 on node node-1."},
		},
		"another program has started a handshake": {
			entries: healthy,
			change: func(cn *ciliumv2.CiliumNode) {
				cn.Spec.IPAM.Pool["10.0.1.1"] = ipamtypes.AllocationIP{}
				cn.Status.IPAM.ReleaseIPs = map[string]ipamtypes.IPReleaseStatus{"10.0.1.1": "marked-for-release"}
			},
			want: []string{"StuckHandshake of CiliumNode node-1: withdrew the release handshake of 10.0.1.1 on node node-1."},
		},
		"the entry of a handshake is gone": {
			entries: healthy,
			change: func(cn *ciliumv2.CiliumNode) {
				cn.Status.IPAM.ReleaseIPs = map[string]ipamtypes.IPReleaseStatus{"10.0.1.1": "ready-for-release"}
			},
			want: []string{"StuckHandshake of CiliumNode node-1: withdrew the release handshake of 10.0.1.1 on node node-1."},
		},
		"a NodeSubnet is left over": {
			entries: healthy, objects: []client.Object{orphan()},
			want: []string{"StaleSubnet of NodeSubnet 10-0-9-0-24: deleted NodeSubnet 10-0-9-0-24."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cn := pooled(c.entries)
			if c.change != nil {
				c.change(cn)
			}
			owned := &v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: "10-0-1-0-24"}, Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.1.0/24", NodeName: "node-1"}}
			cluster := fakeCluster(t, append(append(web(), cn, owned), c.objects...)...)
			before := snapshot(t, cluster)
			dry, err := fixed(t, cluster.dryRun(), identity.Report)
			if err != nil {
				t.Fatal(err)
			}
			var wantDry []string
			for _, line := range c.want {
				wantDry = append(wantDry, strings.TrimSuffix(line, ".")+" (dry run).")
			}
			if diff := cmp.Diff(wantDry, dry) + cmp.Diff(before, snapshot(t, cluster)); diff != "" {
				t.Errorf("dry run (-want +got):\n%s", diff)
			}
			got, err := fixed(t, cluster, identity.Report)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("repairs (-want +got):\n%s", diff)
			}
			objects, err := cluster.objects(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if left := check.Run(objects); len(left) > 0 {
				t.Errorf("problems after the repairs: got %v, want none", left)
			}
		})
	}
}

// snapshot returns the CiliumNodes and NodeSubnets of a cluster as JSON.
func snapshot(t *testing.T, c *cluster) string {
	t.Helper()
	var all []any
	for _, list := range []client.ObjectList{&ciliumv2.CiliumNodeList{}, &v1alpha1.NodeSubnetList{}} {
		if err := c.api.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		all = append(all, list)
	}
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
