package controller

import (
	"errors"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/plan"
)

// A pod that the caches do not show may only not be there yet. The FixedIP of its slot says that it is gone when the
// API server has said so, since a scheduler hands the slot on by that.
func TestDeparture(t *testing.T) {
	slot := recordOf(0, false)
	slot.Spec.Slot = true
	lives, over := podOf(0), podOf(0)
	over.Status.Phase = corev1.PodSucceeded
	gone := v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Departed: plan.Departed("web-0", begin.Add(time.Hour))}
	listed := *gone.DeepCopy()
	listed.Departed.NodeName, listed.Departed.Listed = "n", []string{fixed(0)}
	for name, c := range map[string]struct {
		api []client.Object
		// used is an address that the agent lists.
		used string
		// lost: the node is gone.
		lost bool
		want v1alpha1.FixedIPStatus
		err  error
	}{
		"it is gone":                     {api: objects(slot), want: gone},
		"it is over":                     {api: objects(slot, over), want: gone},
		"it is there":                    {api: objects(slot, lives), want: slot.Status, err: errSuperseded},
		"its agent lists it":             {api: objects(slot), used: fixed(0), want: listed},
		"its agent lists another":        {api: objects(slot), used: fixed(1), want: gone},
		"it is gone, and so is its node": {api: objects(slot), lost: true, want: gone},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.api, nil)
			var node ciliumv2.CiliumNode
			if err := s.api.Get(t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
				t.Fatal(err)
			}
			if c.used != "" {
				node.Status.IPAM.Used = ipamtypes.AllocationMap{c.used: {Owner: "db/web-0"}}
				if err := s.api.Update(t.Context(), &node); err != nil {
					t.Fatal(err)
				}
			}
			if c.lost {
				if err := s.api.Delete(t.Context(), &node); err != nil {
					t.Fatal(err)
				}
			}
			var record v1alpha1.FixedIP
			if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(slot), &record); err != nil {
				t.Fatal(err)
			}
			situation := plan.Situation{Record: &record, Now: begin}
			step := slotStep{slot: plan.Slot{Record: &record, Holder: "web-0"}, situation: situation,
				next: plan.Next{Step: plan.UpdateStatus, Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseReserved, Departed: plan.Departed("web-0", begin)}}}
			// When the API server is asked, it is later than when this was decided.
			s.clock.Step(time.Hour)
			if err := (&slotReconciler{s.records}).step(t.Context(), "db", step); !errors.Is(err, c.err) {
				t.Error(err)
			}
			var now v1alpha1.FixedIP
			if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(slot), &now); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, now.Status); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}
