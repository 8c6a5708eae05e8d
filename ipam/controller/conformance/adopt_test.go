// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"net/netip"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// TestAdoption checks that a selected pod of another scheduler becomes the owner of the entry of the IP that it runs with. The
// FixedIP controller then creates the FixedIP, as for every claim. An IP that a FixedIP reserves for another pod, or whose
// entry names another pod, is not adopted: the pod gets an event. If another IP is reserved for the pod, the pod gets an event
// or, with the failover policy Reassign, its FixedIP is deleted. A pod of our scheduler with a dynamic entry is not adopted
// but evicted (TestPodBoundOnAReleasedEntry). Finding C7.
func TestAdoption(t *testing.T) {
	const has, owner = "10.0.1.1", "db/web-0"
	selected := func(p *corev1.Pod) { p.Spec.SchedulerName, p.Labels = "another", map[string]string{"app": "web"} }
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		entries map[string]pool.Entry
		record  *v1alpha1.FixedIP
		// reserved is the owner for which another FixedIP reserves the IP. gone is true if the API server no longer has the
		// pod, and deleted if the pod is deleted right after the entry was written.
		reserved      string
		gone, deleted bool
		// unreported is true if the agent does not report the IP as used.
		unreported bool
		failover   v1alpha1.Failover
		owns       bool
		event      string
	}{
		"a dynamic entry":                  {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, owns: true, event: "Normal Adopted Reserved the pod's current IPs: 10.0.1.1"},
		"no entry":                         {pod: boundPod(has, selected), owns: true, event: "Normal Adopted Reserved the pod's current IPs: 10.0.1.1"},
		"a FixedIP without IPs":            {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, record: recordOf("web-0"), owns: true, event: "Normal Adopted Reserved the pod's current IPs: 10.0.1.1"},
		"owned entry of the pod":           {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}},
		"FixedIP of the pod":               {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, record: recordOf("web-0", has)},
		"not selected":                     {pod: boundPod(has, selected, func(p *corev1.Pod) { p.Labels = nil }), entries: map[string]pool.Entry{has: {}}},
		"pod is gone":                      {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, gone: true},
		"Pending pod is gone":              {pod: boundPod(has, selected, func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), entries: map[string]pool.Entry{has: {}}, gone: true},
		"not reported by the agent":        {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, unreported: true},
		"pod is deleted during the write":  {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, deleted: true},
		"IP is reserved for another pod":   {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, reserved: "db/other-0", event: "Warning AdoptionFailed The IPs of the pod are not adopted: a FixedIP reserves IP 10.0.1.1 for pod db/other-0; the pod runs on without a fixed address, and the controller tries again"},
		"owned entry of another pod":       {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: pool.ForOwner("db/x")}, event: "Warning AdoptionFailed The IPs of the pod are not adopted: IP 10.0.1.1 on node n belongs to pod db/x; the pod runs on without a fixed address, and the controller tries again"},
		"another IP is reserved":           {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, record: recordOf("web-0", "10.0.2.9"), event: "Warning AddressMismatch Pod runs with 10.0.1.1 on node n instead of its reserved IPs (10.0.2.9), for which no pool has an entry that names the pod; the condition Allocated of its FixedIP gives the reason"},
		"another IP is reserved, Reassign": {pod: boundPod(has, selected), entries: map[string]pool.Entry{has: {}}, record: recordOf("web-0", "10.0.2.9"), failover: v1alpha1.Reassign},
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
			used := map[string]string{has: owner}
			if c.unreported {
				used = nil
			}
			s := newStage(t, api, cached, c.entries, used)
			s.d.Adoption.Selector = labels.SelectorFromSet(labels.Set{"app": "web"})
			if c.failover != "" {
				s.d.Failover = c.failover
			}
			if c.reserved != "" {
				s.d.Ledger.SetReservation(ledger.Reservation{Record: c.reserved, Owner: c.reserved, Addrs: []netip.Addr{netip.MustParseAddr(has)}})
			}
			if c.deleted {
				s.onPatch = func() { _ = s.api.Delete(context.WithoutCancel(t.Context()), c.pod) }
			}
			want := s.owners()
			if c.owns {
				want[has] = owner
			}
			for range 2 {
				result, err := s.d.adopt(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.pod)})
				if err != nil {
					t.Fatal(err)
				}
				if result.RequeueAfter != reportRetry || c.unreported {
					break
				}
				s.d.Ledger.SetNode(s.node())
			}
			if diff := cmp.Diff(want, s.owners()); diff != "" {
				t.Errorf("owners of the entries (-want +got): %s", diff)
			}
			if asked := len(s.agents.asked) > 0; asked != (c.owns && c.entries != nil) {
				t.Errorf("got barrier requests for nodes %v, want some: %t", s.agents.asked, !asked)
			}
			record := s.fixedIP()
			if (record != nil) != (c.record != nil) || record != nil && !cmp.Equal(record.Spec, c.record.Spec) {
				t.Errorf("got FixedIP %+v, want %+v", record, c.record)
			}
			if record != nil && (record.DeletionTimestamp != nil) != (c.failover == v1alpha1.Reassign) {
				t.Errorf("got deletion timestamp %v of the FixedIP, want one: %t", record.DeletionTimestamp, c.failover == v1alpha1.Reassign)
			}
			var events []string
			if c.event != "" {
				events = []string{c.event}
			}
			if diff := cmp.Diff(events, s.reported()); diff != "" {
				t.Errorf("events (-want +got): %s", diff)
			}
		})
	}
}
