// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
)

// TestPodBoundOnAReleasedEntry checks the actions of adopt for a pod that was bound because of an entry that had been
// released: the watch of the scheduler was behind, or the controller died before it confirmed the release. Any
// replica can detect this from the objects. If the pod has no IP yet, adopt restores the released entry. If the pod
// runs with an IP that no other pod can have, adopt writes an owned entry for that IP. Otherwise adopt evicts the
// pod, if RestartAfter has passed, the mismatch policy is Restart, and the pod has no fixed address in another family.
func TestPodBoundOnAReleasedEntry(t *testing.T) {
	const mine = "db/web-0"
	released := pool.CooldownEntry(mine, begin.Add(-time.Second))
	moved := pool.MovedEntry("other", mine)
	for name, c := range map[string]struct {
		pod *corev1.Pod
		// stored are the entries of the pool, and used the addresses that the agent reports. Key: the IP; value of used: the
		// owner.
		stored map[string]pool.Entry
		used   map[string]string
		// record is the FixedIP that exists already; nil: there is none.
		record *v1alpha1.FixedIP
		// gone is true if the API server no longer has the pod.
		gone bool
		// want are the owners of the entries that adopt changes or adds. Key: the IP.
		want    map[string]string
		evicted bool
	}{
		"no IP yet, own entry in cooldown": {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": released}, want: map[string]string{"10.0.1.200": mine}},
		"no IP yet, two own entries in cooldown": {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": pool.CooldownEntry(mine, begin.Add(-time.Hour)), "10.0.1.7": released},
			want: map[string]string{"10.0.1.7": mine}},
		"no IP yet, another pod uses the released IP":  {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": released}, used: map[string]string{"10.0.1.200": "db/x"}, evicted: true},
		"no IP yet, entry of another pod in cooldown":  {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": pool.CooldownEntry("db/x", begin)}, evicted: true},
		"no IP yet, no entry":                          {pod: boundPod(""), evicted: true},
		"no IP yet, released IP of another node":       {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.2.200": released}, evicted: true},
		"no IP yet, pod is gone":                       {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": released}, gone: true},
		"runs with the released IP in cooldown":        {pod: boundPod("10.0.1.200"), stored: map[string]pool.Entry{"10.0.1.200": released}, want: map[string]string{"10.0.1.200": mine}},
		"runs with the released IP after the cooldown": {pod: boundPod("10.0.1.200"), want: map[string]string{"10.0.1.200": mine}},
		"runs with an unreserved entry":                {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.1": pool.UnreservedEntry("db", "web-0")}},
		"runs with the released IP, unreserved entry of another IP": {pod: boundPod("10.0.1.200"), stored: map[string]pool.Entry{"10.0.1.200": released, "10.0.1.1": pool.UnreservedEntry("db", "web-0")},
			want: map[string]string{"10.0.1.200": mine, "10.0.1.1": "fixedip.io/cooldown"}},
		"runs with an IP, FixedIP without IPs":         {pod: boundPod("10.0.1.200"), record: recordOf("web-0"), want: map[string]string{"10.0.1.200": mine}},
		"runs with a dynamic entry":                    {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.200": released, "10.0.1.1": {}}, evicted: true},
		"runs with a dynamic entry, released IP moved": {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.200": moved, "10.0.1.1": {}}, evicted: true},
		"runs with the IP of another pod's entry":      {pod: boundPod("10.0.1.200"), stored: map[string]pool.Entry{"10.0.1.200": pool.ForOwner("db/x")}, evicted: true},
		"runs with an IP that has moved":               {pod: boundPod("10.0.1.200"), stored: map[string]pool.Entry{"10.0.1.200": moved}, evicted: true},
		"runs with an IP that another pod uses":        {pod: boundPod("10.0.1.200"), used: map[string]string{"10.0.1.200": "db/x"}, evicted: true},
		"runs with another IP than requested":          {pod: boundPod("10.0.1.7", func(p *corev1.Pod) { p.Annotations = map[string]string{request.AnnotationIPs: "10.0.1.200"} }), evicted: true},
		"runs with another IP than requested, slot": {pod: boundPod("10.0.1.7", ofReplicaSet, func(p *corev1.Pod) {
			// The name of the pod has no ordinal: it does not begin with the name of its workload.
			p.OwnerReferences[0].Name, p.Annotations[request.AnnotationIPs] = "app", "10.0.1.200"
		}), evicted: true},
		"younger than RestartAfter": {pod: boundPod("10.0.1.200", func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{Time: begin} }), stored: map[string]pool.Entry{"10.0.1.200": pool.ForOwner("db/x")}},
		"mismatch policy Report": {pod: boundPod("10.0.1.200", func(p *corev1.Pod) {
			p.Annotations = map[string]string{identity.AnnotationOnMismatch: string(identity.Report)}
		}), stored: map[string]pool.Entry{"10.0.1.200": pool.ForOwner("db/x")}},
		"pod of another scheduler": {pod: boundPod("10.0.1.1", func(p *corev1.Pod) { p.Spec.SchedulerName = "another" }), stored: map[string]pool.Entry{"10.0.1.1": {}}},
		"pod opted out":            {pod: boundPod("10.0.1.1", func(p *corev1.Pod) { p.Annotations = map[string]string{identity.AnnotationEnabled: "false"} }), stored: map[string]pool.Entry{"10.0.1.1": {}}},
		"runs with an IP of a family that the FixedIP does not name": {pod: boundPod("10.0.1.7", alsoHas("fd00::8")), record: recordOf("web-0", "fd00::8"),
			stored: map[string]pool.Entry{"fd00::8": pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}, want: map[string]string{"10.0.1.7": mine}},
		"runs with a dynamic entry of a family that the FixedIP does not name": {pod: boundPod("10.0.1.2", alsoHas("fd00::8")), record: recordOf("web-0", "fd00::8"),
			used: map[string]string{"10.0.1.2": mine}, want: map[string]string{"10.0.1.2": mine}},
		"runs with the IP of another pod's entry, FixedIP of the other family": {pod: boundPod("10.0.1.200", alsoHas("fd00::8")), record: recordOf("web-0", "fd00::8"),
			stored: map[string]pool.Entry{"10.0.1.200": pool.ForOwner("db/x")}},
		"requests other IPs, FixedIP of the other family": {pod: boundPod("10.0.1.7", alsoHas("fd00::8"), func(p *corev1.Pod) { p.Annotations = map[string]string{request.AnnotationIPs: "10.0.1.200"} }), record: recordOf("web-0", "fd00::8")},
		"pod has a FixedIP":      {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.1": {}}, record: recordOf("web-0", "10.0.1.200")},
		"pod has an owned entry": {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.200": pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}},
		"pod without its slot":   {pod: boundPod("10.0.1.1", ofReplicaSet), stored: map[string]pool.Entry{"10.0.1.1": {}}, evicted: true},
		"pod has a slot":         {pod: boundPod("10.0.1.1", ofReplicaSet), stored: map[string]pool.Entry{"10.0.1.1": pool.OwnedEntry("db", "web-0", "ReplicaSet", "web")}},
		"pod is not bound":       {pod: boundPod("", func(p *corev1.Pod) { p.Spec.NodeName = "" }), stored: map[string]pool.Entry{"10.0.1.200": released}},
	} {
		t.Run(name, func(t *testing.T) {
			cached := []client.Object{c.pod}
			if c.record != nil {
				cached = append(cached, c.record)
			}
			api := cached
			if c.gone {
				api = nil
			}
			s := newStage(t, api, cached, c.stored, c.used)
			s.d.Kinds = identity.NewKinds(identity.Kind{APIGroup: "apps", Kind: "ReplicaSet", Identity: identity.Slot})
			want := s.owners()
			for a, owner := range c.want {
				want[a] = owner
			}
			// The cached objects stay as they were. Some cases need more than one call of adopt; further calls must change
			// nothing.
			for generation := range int64(3) {
				result, err := s.d.adopt(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.pod)})
				if err != nil {
					t.Fatal(err)
				}
				if result.RequeueAfter == reportRetry {
					// A real API server increments the generation when the spec changes; the fake client does not.
					n := s.node()
					n.Generation += generation + 1
					s.d.Ledger.SetNode(n)
				}
			}
			if diff := cmp.Diff(want, s.owners()); diff != "" {
				t.Errorf("owners of the entries (-want +got): %s", diff)
			}
			if evicted := len(s.evicted) > 0; evicted != c.evicted {
				t.Errorf("got evicted = %v, want %v", evicted, c.evicted)
			}
			if record := s.fixedIP(); (record != nil) != (c.record != nil) || record != nil && !cmp.Equal(record.Spec, c.record.Spec) {
				t.Errorf("got FixedIP %+v, want %+v", record, c.record)
			}
		})
	}
}

// alsoHas adds an IP to the status of a pod.
func alsoHas(ip string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip}) }
}

// ofReplicaSet makes a ReplicaSet, whose pods have slots, the controller of the pod.
func ofReplicaSet(p *corev1.Pod) {
	p.Annotations = map[string]string{identity.AnnotationEnabled: "true"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: ptr.To(true)}}
}
