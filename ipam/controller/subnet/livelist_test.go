// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// TestListLive checks that a live list is the one of the API server, whatever the events have shown before, and which requests
// it takes.
func TestListLive(t *testing.T) {
	const metadata, single, full = "list *v1.PartialObjectMetadataList", "get *v1alpha1.NodeSubnet", "list *v1alpha1.NodeSubnetList"
	cidr := func(i int) string { return fmt.Sprintf("10.0.%d.0/24", i) }
	for name, c := range map[string]struct {
		// change changes the world after the events have shown the NodeSubnets of node-1 and node-2.
		change func(s *scene)
		// afterList is called between the list of the metadata and the read of a NodeSubnet.
		afterList func(s *scene)
		unsynced  bool
		// want contains the CIDR and the node of each subnet.
		want     map[string]string
		requests map[string]int
	}{
		"the events have shown everything": {
			want:     map[string]string{cidr(1): "node-1", cidr(2): "node-2"},
			requests: map[string]int{metadata: 1},
		},
		"one is new": {
			change:   func(s *scene) { s.create(nodeSubnet(cidr(3), "node-3")) },
			want:     map[string]string{cidr(1): "node-1", cidr(2): "node-2", cidr(3): "node-3"},
			requests: map[string]int{metadata: 1, single: 1},
		},
		"one has changed": {
			change: func(s *scene) {
				s.changeSubnet(cidr(1), func(ns *v1alpha1.NodeSubnet) { ns.Spec.NodeName = "node-3" })
			},
			want:     map[string]string{cidr(1): "node-3", cidr(2): "node-2"},
			requests: map[string]int{metadata: 1, single: 1},
		},
		"one was deleted": {
			change:   func(s *scene) { s.delete(nodeSubnet(cidr(1), "")) },
			want:     map[string]string{cidr(2): "node-2"},
			requests: map[string]int{metadata: 1},
		},
		"one was deleted and created again, with the same resource version": {
			change: func(s *scene) {
				s.delete(nodeSubnet(cidr(1), ""))
				s.create(nodeSubnet(cidr(1), "node-3"))
			},
			want:     map[string]string{cidr(1): "node-3", cidr(2): "node-2"},
			requests: map[string]int{metadata: 1, single: 1},
		},
		"one is new, and deleted after the list": {
			change:    func(s *scene) { s.create(nodeSubnet(cidr(3), "node-3")) },
			afterList: func(s *scene) { s.delete(nodeSubnet(cidr(3), "")) },
			want:      map[string]string{cidr(1): "node-1", cidr(2): "node-2"},
			requests:  map[string]int{metadata: 1, single: 1},
		},
		"the events are far behind": {
			change: func(s *scene) {
				for i := range maxSingleReads + 1 {
					s.create(nodeSubnet(cidr(100+i), "node-3"))
				}
			},
			want: func() map[string]string {
				all := map[string]string{cidr(1): "node-1", cidr(2): "node-2"}
				for i := range maxSingleReads + 1 {
					all[cidr(100+i)] = "node-3"
				}
				return all
			}(),
			requests: map[string]int{metadata: 1, full: 1},
		},
		"the events of the start have not arrived": {
			unsynced: true,
			want:     map[string]string{cidr(1): "node-1", cidr(2): "node-2"},
			requests: map[string]int{full: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			l := s.controller(nil, s.api, subnetplan.Rules{})
			l.API = s.counting(func(verb string, o any) error {
				if c.afterList != nil && verb == "get" {
					c.afterList(s)
				}
				return nil
			})
			l.listed.synced = func() bool { return !c.unsynced }
			for i := range 2 {
				ns := nodeSubnet(cidr(i+1), fmt.Sprintf("node-%d", i+1))
				s.create(ns)
				l.listed.apply(nil, ns)
			}
			if c.change != nil {
				c.change(s)
			}
			list, err := l.listLive(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, sub := range list {
				got[sub.CIDR.String()] = sub.Node
				var now v1alpha1.NodeSubnet
				if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(sub.Object), &now); err != nil {
					t.Fatal(err)
				}
				if now.UID != sub.Object.UID || now.ResourceVersion != sub.Object.ResourceVersion {
					t.Errorf("%s: got UID %s and resource version %s, want %s and %s", sub.CIDR, sub.Object.UID, sub.Object.ResourceVersion, now.UID, now.ResourceVersion)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("subnets (-want +got): %s", diff)
			}
			if diff := cmp.Diff(c.requests, s.requests); diff != "" {
				t.Errorf("requests (-want +got): %s", diff)
			}
		})
	}
}

// changeSubnet updates a NodeSubnet.
func (s *scene) changeSubnet(cidr string, change func(*v1alpha1.NodeSubnet)) {
	s.t.Helper()
	ns := &v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: nodeSubnet(cidr, "").Name}}
	if err := s.api.Get(s.t.Context(), client.ObjectKeyFromObject(ns), ns); err != nil {
		s.t.Fatal(err)
	}
	change(ns)
	if err := s.api.Update(s.t.Context(), ns); err != nil {
		s.t.Fatal(err)
	}
}
