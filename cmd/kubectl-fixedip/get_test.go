// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"testing"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/test/gen"
)

// TestAddressFilter checks which rows the flags of get select.
func TestAddressFilter(t *testing.T) {
	recorded, entries := records(), pools()
	recorded[2].Labels = map[string]string{"tier": "db"}
	running := pods()
	running[0].Labels = map[string]string{"app": "mysql"}
	for name, c := range map[string]struct {
		selector string
		filter   addressFilter
		want     []string
	}{
		"no filter":                {want: []string{"mysql-0", "mysql-1", "mysql-9", "web-0"}},
		"label of the pod":         {selector: "app=mysql", want: []string{"mysql-0"}},
		"label of the FixedIP":     {selector: "tier=db,app", want: []string{"mysql-0"}},
		"no such label":            {selector: "app=other"},
		"workload":                 {filter: addressFilter{workload: "statefulset/mysql"}, want: []string{"mysql-0", "mysql-1", "mysql-9"}},
		"workload of a claim":      {filter: addressFilter{workload: "StatefulSet/web"}, want: []string{"web-0"}},
		"workload of another kind": {filter: addressFilter{workload: "Deployment/mysql"}},
		"node":                     {filter: addressFilter{node: "node-1"}, want: []string{"mysql-0", "mysql-1", "web-0"}},
		"node without an entry":    {filter: addressFilter{node: "node-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if c.filter.labels, err = labels.Parse(c.selector); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, row := range addressRows(recorded, running, entries, "") {
				if c.filter.matches(row) {
					got = append(got, row.Pod)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("rows (-want +got): %s", diff)
			}
		})
	}
}

// TestGetUnreserved checks that the entry of a pod without a fixed address is not listed as a claim.
func TestGetUnreserved(t *testing.T) {
	l := ledger.New()
	l.SetNode(pool.NodePool{Name: "node-1", Entries: map[netip.Addr]pool.Entry{netip.MustParseAddr("10.0.1.2"): pool.UnreservedEntry("web", "web-0")}})
	var got bytes.Buffer
	if err := writeAddresses(&got, addressRows(nil, nil, l, "web"), "", false, now); err != nil {
		t.Fatal(err)
	}
	want := "NAME   IP         NODE     READY   REASON       POD     STATE   AGE\n-      10.0.1.2   node-1   -       Unreserved   web-0   -       -\n"
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("rows (-want +got): %s", diff)
	}
}

// failing returns a cluster whose API server answers list requests for a kind of objects with an error.
func failing(t *testing.T, c *cluster, list client.ObjectList, err error) *cluster {
	t.Helper()
	kinds, schemeErr := scheme.New()
	if schemeErr != nil {
		t.Fatal(schemeErr)
	}
	refused, _, kindErr := kinds.ObjectKinds(list)
	if kindErr != nil {
		t.Fatal(kindErr)
	}
	api := interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context, w client.WithWatch, into client.ObjectList, opts ...client.ListOption) error {
		gvks, _, kindErr := kinds.ObjectKinds(into)
		if kindErr == nil && gvks[0] == refused[0] {
			return err
		}
		return w.List(ctx, into, opts...)
	}})
	return &cluster{api: api, namespace: c.namespace}
}

// TestGetWithoutRights checks that get shows the FixedIPs of a namespace to a user who may not list CiliumNodes, and that every
// other error is returned with its cause.
func TestGetWithoutRights(t *testing.T) {
	forbidden := func(resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: "cilium.io", Resource: resource}, "", nil)
	}
	for name, c := range map[string]struct {
		list     client.ObjectList
		err      error
		rows     int
		warning  string
		wantFail string
	}{
		"no rights for CiliumNodes": {&ciliumv2.CiliumNodeList{}, forbidden("ciliumnodes"), 1, "Pool entries without a FixedIP are not shown: list CiliumNodes: ciliumnodes.cilium.io is forbidden", ""},
		"no rights for FixedIPs":    {&v1alpha1.FixedIPList{}, forbidden("fixedips"), 0, "", "list FixedIPs: fixedips.cilium.io is forbidden"},
		"no CRD of FixedIPs":        {&v1alpha1.FixedIPList{}, &meta.NoKindMatchError{}, 0, "", "list FixedIPs: the API server does not serve this kind; install the CRDs of fixedip"},
		"no Cilium":                 {&ciliumv2.CiliumNodeList{}, &meta.NoKindMatchError{}, 0, "", "list CiliumNodes: the API server does not serve this kind; install Cilium"},
		"no rights for pods":        {&corev1.PodList{}, forbidden("pods"), 0, "", "list pods: "},
	} {
		t.Run(name, func(t *testing.T) {
			world := fakeCluster(t, gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.ObjectMeta.CreationTimestamp = metav1.Time{Time: now} }))
			world.namespace = gen.FixedIP("web-0").Namespace
			var warnings strings.Builder
			rows, err := failing(t, world, c.list, c.err).fixedAddresses(t.Context(), &warnings)
			if len(rows) != c.rows || !strings.HasPrefix(warnings.String(), c.warning) || (c.warning == "") != (warnings.Len() == 0) {
				t.Errorf("got %d rows and the warning %q, want %d and %q", len(rows), warnings.String(), c.rows, c.warning)
			}
			if c.wantFail == "" && err != nil || c.wantFail != "" && (err == nil || !strings.HasPrefix(err.Error(), c.wantFail)) {
				t.Errorf("got the error %v, want %q", err, c.wantFail)
			}
		})
	}
}

// TestUsedPercent checks that the result is 0 only if all addresses are available, and 100 only if none is.
func TestUsedPercent(t *testing.T) {
	for _, c := range []struct {
		size, available int64
		want            int
	}{{0, 0, 0}, {254, 254, 0}, {254, 253, 1}, {254, 127, 50}, {254, 1, 99}, {254, 0, 100}, {100_000, 1, 99}, {1 << 62, 1<<62 - 1, 1}} {
		if got := usedPercent(c.size, c.available); got != c.want {
			t.Errorf("usedPercent(%d, %d) = %d, want %d", c.size, c.available, got, c.want)
		}
	}
}
