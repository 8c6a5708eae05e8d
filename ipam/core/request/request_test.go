// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
)

type annotations = map[string]string

func TestOf(t *testing.T) {
	const ips, by, calico = request.AnnotationIPs, request.AnnotationBy, request.AnnotationCalico
	for name, c := range map[string]struct {
		pod     string
		onPod   annotations
		onSet   annotations
		start   int32
		slot    bool
		want    string
		wantErr string
		nothing bool
	}{
		"no annotation":                                                               {pod: "web-0", nothing: true},
		"one address for the first ordinal":                                           {pod: "web-0", onPod: annotations{ips: "10.0.1.10"}, want: "10.0.1.10 (annotation fixedip.io/ips)"},
		"the third address of a range":                                                {pod: "web-2", onPod: annotations{ips: "10.0.1.10-10.0.1.19"}, want: "10.0.1.12 (annotation fixedip.io/ips)"},
		"the third address is in the second element":                                  {pod: "web-2", onPod: annotations{ips: "10.0.1.0/30,10.0.1.9"}, want: "10.0.1.9 (annotation fixedip.io/ips)"},
		"each family is counted separately":                                           {pod: "web-1", onPod: annotations{ips: "fd00::/64,10.0.1.9,10.0.1.7"}, want: "10.0.1.7, fd00::2 (annotation fixedip.io/ips)"},
		"ordinals that start at 5":                                                    {pod: "web-7", onPod: annotations{ips: "10.0.1.10-10.0.1.19"}, start: 5, want: "10.0.1.12 (annotation fixedip.io/ips)"},
		"an ordinal more than 32 bits above the first":                                {pod: "web-2147483647", onPod: annotations{ips: "fd00::/64"}, start: -2147483648, want: "fd00::1:0:0 (annotation fixedip.io/ips)"},
		"an ordinal with two digits":                                                  {pod: "web-12", onPod: annotations{ips: "10.0.1.0/24"}, want: "10.0.1.13 (annotation fixedip.io/ips)"},
		"annotation of the StatefulSet":                                               {pod: "web-1", onSet: annotations{ips: "10.0.1.10,10.0.1.20"}, want: "10.0.1.20 (annotation fixedip.io/ips of StatefulSet web)"},
		"the annotation of the pod takes precedence":                                  {pod: "web-0", onPod: annotations{ips: "10.0.1.10"}, onSet: annotations{ips: "10.0.1.20"}, want: "10.0.1.10 (annotation fixedip.io/ips)"},
		"any address of the list":                                                     {pod: "web-9", onPod: annotations{ips: "10.0.1.0/28", by: "any"}, want: "10.0.1.1-10.0.1.14 (annotation fixedip.io/ips)"},
		"any address, by annotation of the StatefulSet":                               {pod: "web-9", onPod: annotations{ips: "10.0.1.0/28"}, onSet: annotations{by: "any"}, want: "10.0.1.1-10.0.1.14 (annotation fixedip.io/ips)"},
		"any address, the pod name has no ordinal":                                    {pod: "odd", onPod: annotations{ips: "10.0.1.10", by: "any"}, want: "10.0.1.10 (annotation fixedip.io/ips)"},
		"Calico's annotation is for one pod":                                          {pod: "web-3", onPod: annotations{calico: `["10.0.1.10"]`}, want: "10.0.1.10 (annotation cni.projectcalico.org/ipAddrs)"},
		"Calico's annotation, by ordinal":                                             {pod: "web-1", onPod: annotations{calico: `["10.0.1.10","10.0.1.11"]`, by: "ordinal"}, want: "10.0.1.11 (annotation cni.projectcalico.org/ipAddrs)"},
		"fixedip.io/ips takes precedence over Calico's annotation":                    {pod: "web-0", onPod: annotations{ips: "10.0.1.20", calico: `["10.0.1.10"]`}, want: "10.0.1.20 (annotation fixedip.io/ips)"},
		"fixedip.io/ips of the StatefulSet takes precedence over Calico's annotation": {pod: "web-0", onPod: annotations{calico: `["10.0.1.10"]`}, onSet: annotations{ips: "10.0.1.20"}, want: "10.0.1.20 (annotation fixedip.io/ips of StatefulSet web)"},
		"Calico's annotation on a StatefulSet has no effect":                          {pod: "web-0", onSet: annotations{calico: `["10.0.1.10"]`}, nothing: true},

		"too few addresses": {pod: "web-3", onPod: annotations{ips: "10.0.1.10-10.0.1.12"},
			wantErr: "requests addresses 10.0.1.10-10.0.1.12 (annotation fixedip.io/ips), but that list has no IPv4 address for ordinal 3 (its first address is for ordinal 0); add addresses to the list, or scale down"},
		"too few addresses of one family": {pod: "web-1", onPod: annotations{ips: "10.0.1.10-10.0.1.12,fd00::1"},
			wantErr: "requests addresses 10.0.1.10-10.0.1.12, fd00::1 (annotation fixedip.io/ips), but that list has no IPv6 address for ordinal 1 (its first address is for ordinal 0); add addresses to the list, or scale down"},
		"an ordinal below the first": {pod: "web-1", onPod: annotations{ips: "10.0.1.10"}, start: 5,
			wantErr: "requests addresses 10.0.1.10 (annotation fixedip.io/ips), but its ordinal 1 is less than 5, the first ordinal of StatefulSet web; delete the pod, or change spec.ordinals.start"},
		"the pod name has no ordinal": {pod: "web", onPod: annotations{ips: "10.0.1.10"},
			wantErr: `requests addresses by ordinal, but its name "web" does not have the form web-ORDINAL; set annotation fixedip.io/ips-assignment to "any"`},
		"unknown assignment": {pod: "web-0", onPod: annotations{ips: "10.0.1.10", by: "name"},
			wantErr: `requests addresses, but the value "name" of annotation fixedip.io/ips-assignment is invalid; write "ordinal" or "any"`},
		"invalid annotation of the pod": {pod: "web-0", onPod: annotations{ips: "FD00::1"}, onSet: annotations{ips: "10.0.1.10"},
			wantErr: `requests addresses, but the value of annotation fixedip.io/ips is invalid: "FD00::1" is not in canonical form; write fd00::1`},
		"invalid annotation of the StatefulSet": {pod: "web-0", onSet: annotations{ips: ""},
			wantErr: `requests addresses, but the value of annotation fixedip.io/ips of StatefulSet web is invalid: the value is empty; list addresses, such as 10.240.1.10,10.240.1.11, or remove the annotation`},
		"a slot gets any address": {pod: "web-x2b9-qq7hd", slot: true, onPod: annotations{ips: "10.0.1.10-10.0.1.19"}, want: "10.0.1.10-10.0.1.19 (annotation fixedip.io/ips)"},
		"a slot by ordinal": {pod: "web-x2b9-qq7hd", slot: true, onPod: annotations{ips: "10.0.1.10-10.0.1.19"}, onSet: annotations{by: "ordinal"},
			wantErr: `requests addresses, but the value "ordinal" of annotation fixedip.io/ips-assignment of Deployment web is invalid for a pod without an ordinal; write "any"`},
		"a slot by an unknown assignment": {pod: "web-x2b9-qq7hd", slot: true, onPod: annotations{ips: "10.0.1.10", by: "name"},
			wantErr: `requests addresses, but the value "name" of annotation fixedip.io/ips-assignment is invalid for a pod without an ordinal; write "any"`},
		"invalid annotation of Calico": {pod: "web-0", onPod: annotations{calico: "10.0.1.10"},
			wantErr: `requests addresses, but the value of annotation cni.projectcalico.org/ipAddrs is invalid: the value is not a JSON list of one or more addresses; write a list such as ["10.240.1.10"]`},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: c.pod, Annotations: c.onPod}}
			set := identity.Workload{GroupKind: schema.GroupKind{Group: "apps", Kind: "StatefulSet"}, Namespace: "db", Name: "web", Annotations: c.onSet, FirstOrdinal: c.start}
			if c.slot {
				set.Kind = "Deployment"
			}
			requested, ok, err := request.Of(pod, set, identity.Identity{Slot: c.slot})
			if message(err) != c.wantErr || ok != (c.wantErr == "" && !c.nothing) || ok && requested.String() != c.want {
				t.Errorf("Of returns %s, %v, error %q; want %s, error %q", requested, ok, message(err), c.want, c.wantErr)
			}
		})
	}
}

func TestRelevant(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*identity.Workload)
		want   bool
	}{
		"replicas":              {func(w *identity.Workload) { w.Replicas = new(int32) }, false},
		"another annotation":    {func(w *identity.Workload) { w.Annotations = annotations{"example.com/a": "b"} }, false},
		"the list of addresses": {func(w *identity.Workload) { w.Annotations = annotations{request.AnnotationIPs: "10.0.1.10"} }, true},
		"the assignment":        {func(w *identity.Workload) { w.Annotations = annotations{request.AnnotationBy: "any"} }, true},
		"the first ordinal":     {func(w *identity.Workload) { w.FirstOrdinal = 1 }, true},
		"the UID":               {func(w *identity.Workload) { w.UID = "2" }, true},
	} {
		before := identity.Workload{UID: "1"}
		after := before
		c.change(&after)
		if got := request.Relevant(before, after); got != c.want {
			t.Errorf("%s: Relevant returns %v, want %v", name, got, c.want)
		}
	}
}
