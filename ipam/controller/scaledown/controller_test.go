// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package scaledown

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/test/controllertest"
)

const (
	ca        = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	karpenter = "karpenter.sh/do-not-disrupt"
)

// TestReconcile checks that Nodes whose subnets have reserved addresses are annotated for autoscalers, and that
// annotations of users do not change (finding R1 in docs/project/findings.md).
func TestReconcile(t *testing.T) {
	type annotations = map[string]string
	annotated := annotations{ca: "true", karpenter: "true", ListOfOurs: ca + "," + karpenter, "other": "x"}
	for name, c := range map[string]struct {
		have        annotations
		reserved    bool
		autoscalers []string
		want        annotations
	}{
		"an address is reserved":                                {annotations{"other": "x"}, true, []string{"karpenter", "cluster-autoscaler"}, annotated},
		"a Node without annotations":                            {nil, true, []string{"karpenter"}, annotations{karpenter: "true", ListOfOurs: karpenter}},
		"the Node is annotated already":                         {annotated, true, []string{"karpenter", "cluster-autoscaler"}, annotated},
		"no address is reserved":                                {annotations{"other": "x"}, false, []string{"karpenter"}, annotations{"other": "x"}},
		"no address is reserved any more":                       {annotated, false, []string{"karpenter", "cluster-autoscaler"}, annotations{"other": "x"}},
		"an autoscaler was removed from the list":               {annotated, true, []string{"karpenter"}, annotations{karpenter: "true", ListOfOurs: karpenter, "other": "x"}},
		"the list of autoscalers is empty":                      {annotated, true, nil, annotations{"other": "x"}},
		"a user has set the annotation":                         {annotations{karpenter: "true"}, true, []string{"karpenter"}, annotations{karpenter: "true"}},
		"a user has set the annotation to false":                {annotations{ca: "false"}, true, []string{"cluster-autoscaler", "karpenter"}, annotations{ca: "false", karpenter: "true", ListOfOurs: karpenter}},
		"a user has set the annotation, no address is reserved": {annotations{karpenter: "true"}, false, []string{"karpenter"}, annotations{karpenter: "true"}},
		"a user has changed our annotation":                     {annotations{karpenter: "false", ListOfOurs: karpenter}, false, []string{"karpenter"}, annotations{karpenter: "false"}},
		"a user has removed our annotation":                     {annotations{ListOfOurs: karpenter}, true, []string{"karpenter"}, annotations{karpenter: "true", ListOfOurs: karpenter}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: c.have}}
			s := controllertest.New(t, index.Each, []client.Object{node.DeepCopy()}, nil)
			if c.reserved {
				s.Ledger.SetReservation(fixedips.ReservationOf(controllertest.Record(0, false)))
			}
			// Cached is the API server itself, so the controller reads the current version of the Node.
			r := &Controller{Ledger: s.Ledger, Cached: s.API, Live: s.API, Autoscalers: c.autoscalers, Ready: func() bool { return true }}
			for range 2 {
				if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.API.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, node.Annotations, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("annotations of the Node (-want +got): %s", diff)
			}
		})
	}
}

// TestReconcileWithoutCiliumNode checks that no annotation is removed from a Node while it has no CiliumNode or no subnet: the
// CiliumNode may be created again with the same subnets.
func TestReconcileWithoutCiliumNode(t *testing.T) {
	annotated := map[string]string{ca: "true", ListOfOurs: ca}
	for name, c := range map[string]struct {
		lose        func(*controllertest.Stage)
		autoscalers []string
		want        map[string]string
	}{
		"no CiliumNode":                    {func(s *controllertest.Stage) { s.Ledger.RemoveNode("n") }, []string{"cluster-autoscaler"}, annotated},
		"a CiliumNode without subnets":     {func(s *controllertest.Stage) { s.Ledger.SetNode(pool.NodePool{Name: "n", UID: "again"}) }, []string{"cluster-autoscaler"}, annotated},
		"no CiliumNode and no autoscalers": {func(s *controllertest.Stage) { s.Ledger.RemoveNode("n") }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: maps.Clone(annotated)}}
			s := controllertest.New(t, index.Each, []client.Object{node}, nil)
			s.Ledger.SetReservation(fixedips.ReservationOf(controllertest.Record(0, false)))
			c.lose(s)
			r := &Controller{Ledger: s.Ledger, Cached: s.API, Live: s.API, Autoscalers: c.autoscalers, Ready: func() bool { return true }}
			if _, err := r.Reconcile(t.Context(), source.ForName("n")); err != nil {
				t.Fatal(err)
			}
			var now corev1.Node
			if err := s.API.Get(t.Context(), client.ObjectKeyFromObject(node), &now); err != nil || !maps.Equal(now.Annotations, c.want) {
				t.Errorf("got annotations %v and error %v, want %v", now.Annotations, err, c.want)
			}
		})
	}
}

// TestReconcileNotReady checks that the controller removes no annotation before the ledger has all reservations.
func TestReconcileNotReady(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{ca: "true", ListOfOurs: ca}}}
	s := controllertest.New(t, index.Each, []client.Object{node}, nil)
	r := &Controller{Ledger: s.Ledger, Cached: s.API, Live: s.API, Autoscalers: []string{"cluster-autoscaler"}, Ready: func() bool { return false }}
	result, err := r.Reconcile(t.Context(), source.ForName("n"))
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("Reconcile: got %+v and error %v, want a requeue", result, err)
	}
	var now corev1.Node
	if err := s.API.Get(t.Context(), client.ObjectKeyFromObject(node), &now); err != nil || now.Annotations[ca] != "true" {
		t.Errorf("got annotations %v and error %v, want %s: true", now.Annotations, err, ca)
	}
}
