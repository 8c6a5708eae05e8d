// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/scheme"
)

// workloadReads is a gather.Workloads in which every workload exists. It records the reads.
type workloadReads struct {
	gather.Workloads
	// read are the workloads that were read, as "Kind/name".
	read []string
}

func (w *workloadReads) Get(gk schema.GroupKind, _, name string) (*identity.Workload, error) {
	w.read = append(w.read, gk.Kind+"/"+name)
	return &identity.Workload{GroupKind: gk, Name: name, Annotations: map[string]string{"fixedip.io/ips": "10.0.1.200"}}, nil
}

// TestFixedIPOfPod checks that a pod is compared with a FixedIP only if the FixedIP is for the workload of the pod.
func TestFixedIPOfPod(t *testing.T) {
	controlled := func(name, kind, by string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("uid-" + name),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: by, UID: "owner", Controller: ptr.To(true)}}},
			Spec: corev1.PodSpec{NodeName: "n"}}
	}
	bare := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name}, Spec: corev1.PodSpec{NodeName: "n"}}
	}
	fixedIP := func(name, kind, by string, slot bool) *v1alpha1.FixedIP {
		version := "apps/v1"
		if kind == identity.PodKind {
			version = "v1"
		}
		return &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name},
			Spec: v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.200"}, AssignedTo: map[bool]v1alpha1.Assignee{true: v1alpha1.Slot, false: v1alpha1.PodName}[slot], PodName: "web-0", Owner: v1alpha1.OwnerReference{APIVersion: version, Kind: kind, Name: by}}}
	}
	for name, c := range map[string]struct {
		// entry is the entry of the pod's address; nil: there is none.
		entry  *pool.Entry
		pod    *corev1.Pod
		record *v1alpha1.FixedIP
		// workload is the workload that is read, "Kind/name"; empty: none, because the pod is a bare pod, or no FixedIP is for
		// the pod and its workload.
		workload string
		// fixedIP is true if observe has to return a FixedIP, and barePod if it has to return a bare pod.
		fixedIP bool
		barePod bool
	}{
		"entry and FixedIP of a StatefulSet": {
			ptr.To(pool.OwnedEntry("db", "web-0", "StatefulSet", "web")), controlled("web-0", "StatefulSet", "web"), fixedIP("web-0", "StatefulSet", "web", false), "StatefulSet/web", true, false},
		"entry of a StatefulSet": {
			ptr.To(pool.OwnedEntry("db", "web-0", "StatefulSet", "web")), controlled("web-0", "StatefulSet", "web"), nil, "", false, false},
		"FixedIP of a StatefulSet, no entry": {
			nil, controlled("web-0", "StatefulSet", "web"), fixedIP("web-0", "StatefulSet", "web", false), "StatefulSet/web", true, false},
		"pod of another StatefulSet with the same name": {
			ptr.To(pool.OwnedEntry("db", "web-0", "StatefulSet", "web")), controlled("web-0", "StatefulSet", "other"), fixedIP("web-0", "StatefulSet", "web", false), "", true, false},
		"pod of a ReplicaSet with the same name": {
			ptr.To(pool.OwnedEntry("db", "web-0", "StatefulSet", "web")), controlled("web-0", "ReplicaSet", "web"), fixedIP("web-0", "StatefulSet", "web", false), "", true, false},
		"entry and FixedIP of a slot": {
			ptr.To(pool.OwnedEntry("db", "web-x7", "Deployment", "web")), controlled("web-x7", "ReplicaSet", "web-5d"), fixedIP("web-10-0-1-200", "Deployment", "web", true), "Deployment/web", true, false},
		"entry of a slot": {
			ptr.To(pool.OwnedEntry("db", "web-x7", "Deployment", "web")), controlled("web-x7", "ReplicaSet", "web-5d"), nil, "", false, false},
		"entry and FixedIP of a slot, pod of a StatefulSet": {
			ptr.To(pool.OwnedEntry("db", "web-x7", "Deployment", "web")), controlled("web-x7", "StatefulSet", "web"), fixedIP("web-10-0-1-200", "Deployment", "web", true), "", true, false},
		"entry and FixedIP of a bare pod": {
			ptr.To(pool.ForOwner("db/web-0")), bare("web-0"), fixedIP("web-0", "Pod", "web-0", false), "", true, true},
		"entry of a bare pod": {
			ptr.To(pool.ForOwner("db/web-0")), bare("web-0"), nil, "", false, false},
		"entry of a StatefulSet, bare pod": {
			ptr.To(pool.OwnedEntry("db", "web-0", "StatefulSet", "web")), bare("web-0"), nil, "", false, false},
		"unreserved entry": {
			ptr.To(pool.UnreservedEntry("db", "web-0")), bare("web-0"), nil, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			registered, err := scheme.New()
			if err != nil {
				t.Fatal(err)
			}
			objects := []client.Object{c.pod}
			if c.record != nil {
				objects = append(objects, c.record)
			}
			api := fake.NewClientBuilder().WithScheme(registered).WithObjects(objects...).Build()
			l := ledger.New()
			if c.entry != nil {
				l.SetNode(pool.NodePool{Name: "n", Entries: map[netip.Addr]pool.Entry{netip.MustParseAddr("10.0.1.200"): *c.entry}})
			}
			store := &workloadReads{}
			r := &Controller{
				Gatherer: &gather.Gatherer{
					Ledger: l, Cached: api, Workloads: store, Events: events.NewFakeRecorder(10), Clock: clocktesting.NewFakeClock(begin),
					Kinds: identity.NewKinds(identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: identity.Slot}),
				},
				Config: DefaultConfig(),
			}
			got, err := r.observe(t.Context(), api, client.ObjectKeyFromObject(c.pod))
			if err != nil {
				t.Fatal(err)
			}
			var read string
			if len(store.read) > 0 {
				read = store.read[0]
			}
			if read != c.workload || (got.Pod != nil) != (c.workload != "" || c.barePod) || got.BarePod != c.barePod || (got.FixedIP != nil) != c.fixedIP {
				t.Errorf("got workload %q, pod: %t, bare pod: %t, FixedIP: %t; want workload %q, bare pod: %t, FixedIP: %t", read, got.Pod != nil, got.BarePod, got.FixedIP != nil, c.workload, c.barePod, c.fixedIP)
			}
		})
	}
}
