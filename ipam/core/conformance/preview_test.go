// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/gen"
)

// TestPreviewAdoption checks the outcome for pod db/web-0, which the selector app=web selects, after one change of the
// cluster in each case.
func TestPreviewAdoption(t *testing.T) {
	web := netip.MustParseAddr("10.0.1.6")
	type state struct {
		conformance.AdoptionInputs
		pod  *corev1.Pod
		node pool.NodePool
		l    *ledger.Ledger
	}
	of := func(kind, group string) func(*state) {
		return func(s *state) {
			s.pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: group, Kind: kind, Name: "web", Controller: ptr.To(true)}}
		}
	}
	record := func(ip string) v1alpha1.FixedIP {
		return *gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.Spec.IPs = []string{ip} })
	}
	for name, c := range map[string]struct {
		change  func(*state)
		outcome conformance.AdoptionOutcome
		reason  string
	}{
		"runs with a dynamic address":        {func(*state) {}, conformance.Adopted, ""},
		"runs without an entry":              {func(s *state) { clear(s.node.Entries) }, conformance.Adopted, ""},
		"has the right FixedIP":              {func(s *state) { s.FixedIPs = []v1alpha1.FixedIP{record("10.0.1.6")} }, conformance.AlreadyFixed, "FixedIP web-0"},
		"has a FixedIP with another address": {func(s *state) { s.FixedIPs = []v1alpha1.FixedIP{record("10.0.1.99")} }, conformance.AdoptionBlocked, "the reservation of the pod has 10.0.1.99, but the pod runs with 10.0.1.6"},
		"our scheduler places it":            {func(s *state) { s.pod.Spec.SchedulerName = "fixedip-scheduler" }, conformance.NotSelected, "its scheduler fixedip-scheduler gives it a fixed address"},
		"host network":                       {func(s *state) { s.pod.Spec.HostNetwork = true }, conformance.NotSelected, "the pod uses the host network"},
		"excluded by the annotation":         {func(s *state) { s.pod.Annotations = map[string]string{identity.AnnotationEnabled: "false"} }, conformance.NotSelected, "the annotation fixedip.io/enabled excludes it"},
		"excluded, with a FixedIP": {func(s *state) {
			s.pod.Annotations, s.FixedIPs = map[string]string{identity.AnnotationEnabled: "false"}, []v1alpha1.FixedIP{record("10.0.1.6")}
		}, conformance.NotSelected, "the annotation fixedip.io/enabled excludes it"},
		"a typo in the annotation": {func(s *state) { s.pod.Annotations = map[string]string{identity.AnnotationEnabled: "yes!"} }, conformance.AdoptionBlocked, `annotation fixedip.io/enabled of pod db/web-0 is "yes!"; write "true" or "false"`},
		"other labels":             {func(s *state) { s.pod.Labels = nil }, conformance.NotSelected, "neither the selector nor the annotation fixedip.io/enabled selects it"},
		"other labels, and annotated": {func(s *state) {
			s.pod.Labels, s.pod.Annotations = nil, map[string]string{identity.AnnotationEnabled: "true"}
		}, conformance.Adopted, ""},
		"excluded by its branch": {func(s *state) { s.pod.Labels[identity.LabelDBBranch] = "test-1" }, conformance.NotSelected, "its label DBBranch excludes it"},
		"of a ReplicaSet":        {of("ReplicaSet", "apps/v1"), conformance.NotSelected, "pods of a ReplicaSet are never adopted: they have no stable names, and only fixedip-scheduler reuses slots"},
		"of a DaemonSet":         {of("DaemonSet", "apps/v1"), conformance.NotSelected, "pods of a DaemonSet cannot have fixed addresses"},
		"of another kind":        {of("CloneSet", "apps.kruise.io/v1alpha1"), conformance.NotSelected, "pods of a CloneSet have no fixed addresses, unless the configuration names the kind"},
		"of a configured kind with slots": {func(s *state) {
			of("ReplicationController", "v1")(s)
			s.Kinds = identity.NewKinds(identity.Kind{Kind: "ReplicationController", Identity: identity.Slot, Enabled: identity.ByDefault})
		}, conformance.NotSelected, "pods of a ReplicationController are never adopted: they have slots, and only fixedip-scheduler reuses slots"},
		"a bare pod":         {func(s *state) { s.pod.OwnerReferences = nil }, conformance.Adopted, ""},
		"has no address yet": {func(s *state) { s.pod.Status = corev1.PodStatus{Phase: corev1.PodPending} }, conformance.AdoptedLater, "the pod does not run with an IP that can be adopted yet; its phase is Pending"},
		"has only an IPv6 address, and the configuration IPv4 only": {func(s *state) {
			s.Adoption.IPv4Only = true
			s.pod.Status.PodIPs = []corev1.PodIP{{IP: "fd00::6"}}
		}, conformance.AdoptionBlocked, "the pod runs with fd00::6, and the configuration has IPv4 addresses only"},
		"has ended":        {func(s *state) { s.pod.Status.Phase = corev1.PodSucceeded }, conformance.NotSelected, "the pod has ended"},
		"is being deleted": {func(s *state) { s.pod.DeletionTimestamp = &metav1.Time{} }, conformance.NotSelected, "the pod is being deleted"},
		"two pods run with the address": {func(s *state) {
			s.AllPods = append(s.AllPods, *gen.Pod("twin", gen.On("node-1", "10.0.1.6"), gen.Running))
		}, conformance.AdoptionBlocked, "pod db/twin runs with IP 10.0.1.6 too"},
		"the agent names another pod": {func(s *state) { gen.UsedBy("db/other", "10.0.1.6")(&s.node) }, conformance.AdoptionBlocked, "IP 10.0.1.6 on node node-1 is still in use by pod db/other"},
		"a FixedIP of another pod": {func(s *state) {
			s.l.SetReservation(ledger.Reservation{Record: "db/x", Owner: "db/x", Addrs: []netip.Addr{web}})
		}, conformance.AdoptionBlocked, "a FixedIP reserves IP 10.0.1.6 for pod db/x"},
		"an entry of another pod":  {func(s *state) { s.node.Entries[web] = pool.OwnedEntry("db", "x-0", "StatefulSet", "x") }, conformance.AdoptionBlocked, "IP 10.0.1.6 on node node-1 belongs to pod db/x-0"},
		"in no subnet of the node": {func(s *state) { clear(s.node.Entries); s.pod.Status.PodIPs[0].IP = "10.9.9.9" }, conformance.AdoptionBlocked, "IP 10.9.9.9 is not in the subnets of node node-1 (10.0.1.0/24)"},
		"the subnets overlap":      {func(s *state) { s.l.SetNode(gen.NodePool("node-2", "10.0.1.0/25", nil)) }, conformance.AdoptionBlocked, "the subnets of node node-1 overlap those of node node-2"},
		"no CiliumNode":            {func(s *state) { s.pod.Spec.NodeName = "node-9" }, conformance.AdoptionBlocked, "node node-9 has no CiliumNode"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &state{
				pod: gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running, gen.Controlled("web", "1"), func(p *corev1.Pod) {
					p.Labels, p.Spec.SchedulerName = map[string]string{"app": "web"}, "default-scheduler"
				}),
				node: gen.NodePool("node-1", "10.0.1.0/24", map[string]pool.Entry{"10.0.1.6": {}}), l: ledger.New(),
			}
			s.Kinds = identity.NewKinds()
			s.Adoption = identity.Adoption{Selector: labels.SelectorFromSet(labels.Set{"app": "web"}), ExcludeDBBranch: []string{"test"}, Schedulers: []string{"fixedip-scheduler"}}
			c.change(s)
			s.l.SetNode(s.node)
			s.Pools, s.Pods = s.l, []corev1.Pod{*s.pod}
			s.AllPods = append(s.AllPods, s.Pods...)
			got := conformance.PreviewAdoption(s.AdoptionInputs)
			if len(got) != 1 {
				t.Fatalf("PreviewAdoption returns the outcome of %d pods, want 1", len(got))
			}
			if diff := cmp.Diff([2]string{string(c.outcome), c.reason}, [2]string{string(got[0].Outcome), got[0].Reason}); diff != "" {
				t.Errorf("outcome and reason (-want +got): %s", diff)
			}
		})
	}
}
