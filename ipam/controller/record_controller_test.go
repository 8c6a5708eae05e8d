package controller

import (
	"net/netip"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// What a pod says of itself, that it opted out, takes nothing that is kept for its name: its workload may want a fixed
// address for the next of its name by now, whose template says so.
func TestOptedOutPodOfAWorkloadThatDidNot(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*corev1.Pod)
		template map[string]string
		goes     bool
	}{
		"it waits":     {change: func(*corev1.Pod) {}},
		"it is placed": {change: func(p *corev1.Pod) { p.Spec.NodeName = "another" }},
		"it runs": {change: func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.PodIPs = "another", []corev1.PodIP{{IP: "10.0.2.9"}}
		}},
		"it is on its way out": {change: func(p *corev1.Pod) {
			p.Finalizers, p.DeletionTimestamp = []string{"test/keeps"}, &metav1.Time{Time: begin}
		}},
		"its workload opted out": {change: func(*corev1.Pod) {}, template: map[string]string{identity.AnnotationEnabled: "false"}, goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf(0)
			pod.Spec.NodeName = ""
			pod.Status = corev1.PodStatus{}
			pod.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
			c.change(pod)
			sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web", UID: "web-1"}}
			sts.Spec.Template.Annotations = c.template
			s := newStage(t, nil, objects(recordOf(0, false), pod, sts))
			situation, err := s.records.situation(t.Context(), s.cached, client.ObjectKeyFromObject(pod))
			if err != nil {
				t.Fatal(err)
			}
			if next := plan.Decide(situation); (next.Step == plan.DeleteRecord) != c.goes {
				t.Errorf("%s", next.Step)
			}
		})
	}
}

// No watch asks for an identity whose address was barred somewhere: the mark names nobody. It goes on all
// the same, before the mark has cooled down.
func TestTheStepAfterBarIsNotMissed(t *testing.T) {
	barred := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "other"}}
	barred.Spec.IPAM.Pool = ipamtypes.AllocationMap{}
	s := newStage(t, objects(barred), nil)
	// The clients of a stage can't be compared.
	s.records.live = &struct{ client.Client }{s.api}
	home, _ := s.records.ledger.Node("n")
	s.records.ledger.SetNode(home.With([]pool.Edit{home.Set(netip.MustParseAddr(fixed(0)), pool.Leaving("m", "db/web-0"))}))
	s.records.ledger.SetNode(ciliumpool.FromCiliumNode(barred))
	result, err := s.records.Reconcile(t.Context(), source.Request("db/web-0")[0])
	var now ciliumv2.CiliumNode
	if getErr := s.api.Get(t.Context(), client.ObjectKey{Name: "m"}, &now); err != nil || getErr != nil || now.Spec.IPAM.Pool[fixed(0)].Owner != rests {
		t.Fatalf("%v, %v: %v", err, getErr, now.Spec.IPAM.Pool)
	}
	if result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
		t.Errorf("looked at again after %v", result.RequeueAfter)
	}
}
