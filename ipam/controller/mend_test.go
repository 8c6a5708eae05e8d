// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// boundPod is pod web-0, which our scheduler has bound to node n a minute ago.
func boundPod(ip string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := podOf(0)
	pod.CreationTimestamp = metav1.Time{Time: begin.Add(-time.Minute)}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "web-1", Controller: ptr.To(true)}}
	pod.Spec.SchedulerName = "ours"
	if ip != "" {
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}}
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// A pod is bound on an entry that was taken back: the scheduler's watch was behind, or the controller died
// before it looked again. What stands tells it, and whoever looks puts it right.
func TestPodBoundOnAnEntryThatWasReleased(t *testing.T) {
	const mine = "db/web-0"
	released := pool.CooldownEntry(mine, begin.Add(-time.Second))
	away := pool.MovedEntry("other", mine)
	for name, c := range map[string]struct {
		pod *corev1.Pod
		// stored are the entries of the pool.
		stored map[string]pool.Entry
		used   map[string]string
		record bool
		// waits: the record waits for addresses.
		waits bool
		// elsewhere: the API server does not have the pod any more.
		gone bool
		// want are owners of entries afterwards, those that are the same left out.
		want    map[string]string
		evicted bool
	}{
		"no address yet": {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": released}, want: map[string]string{"10.0.1.200": mine}},
		"no address yet, of two the one taken last": {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": pool.CooldownEntry(mine, begin.Add(-time.Hour)), "10.0.1.7": released},
			want: map[string]string{"10.0.1.7": mine}},
		"no address yet, and somebody else uses it":   {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": released}, used: map[string]string{"10.0.1.200": "db/x"}},
		"no address yet, and it was another's":        {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": pool.CooldownEntry("db/x", begin)}},
		"no address yet, and not at home here":        {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.2.200": released}},
		"no address yet, and gone":                    {pod: boundPod(""), stored: map[string]pool.Entry{"10.0.1.200": released}, gone: true},
		"it runs with what was taken":                 {pod: boundPod("10.0.1.200"), stored: map[string]pool.Entry{"10.0.1.200": released}, want: map[string]string{"10.0.1.200": mine}},
		"it runs with what rested long enough":        {pod: boundPod("10.0.1.200"), want: map[string]string{"10.0.1.200": mine}},
		"it runs with another":                        {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.200": released, "10.0.1.1": {}}, want: map[string]string{"10.0.1.1": mine}},
		"it runs with another, and was about to move": {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.200": away, "10.0.1.1": {}}, want: map[string]string{"10.0.1.1": mine}},
		"it runs with one of its own for now":         {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.1": pool.UnreservedEntry("db", "web-0")}, want: map[string]string{"10.0.1.1": mine}},
		"it runs with what another has by now":        {pod: boundPod("10.0.1.200"), stored: map[string]pool.Entry{"10.0.1.200": pool.ForOwner("db/x")}, evicted: true},
		"it runs with what has moved":                 {pod: boundPod("10.0.1.200"), stored: map[string]pool.Entry{"10.0.1.200": away}, evicted: true},
		"it runs with what another uses, it is said":  {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.1": {}}, used: map[string]string{"10.0.1.1": "db/x"}, evicted: true},
		"it runs with another than it asks for": {pod: boundPod("10.0.1.1", func(p *corev1.Pod) { p.Annotations = map[string]string{request.AnnotationIPs: "10.0.1.200"} }),
			stored: map[string]pool.Entry{"10.0.1.1": {}}, evicted: true},
		"not so soon": {pod: boundPod("10.0.1.200", func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{Time: begin} }), stored: map[string]pool.Entry{"10.0.1.200": pool.ForOwner("db/x")}},
		"not by its policy": {pod: boundPod("10.0.1.200", func(p *corev1.Pod) {
			p.Annotations = map[string]string{identity.AnnotationOnMismatch: string(identity.Report)}
		}), stored: map[string]pool.Entry{"10.0.1.200": pool.ForOwner("db/x")}},
		"another scheduler's":            {pod: boundPod("10.0.1.1", func(p *corev1.Pod) { p.Spec.SchedulerName = "theirs" }), stored: map[string]pool.Entry{"10.0.1.1": {}}},
		"opted out":                      {pod: boundPod("10.0.1.1", func(p *corev1.Pod) { p.Annotations = map[string]string{identity.AnnotationEnabled: "false"} }), stored: map[string]pool.Entry{"10.0.1.1": {}}},
		"it has a record":                {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.1": {}}, record: true},
		"its record waits for addresses": {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.1": {}}, waits: true, want: map[string]string{"10.0.1.1": mine}},
		"it has an entry":                {pod: boundPod("10.0.1.1"), stored: map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.200": pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}},
		"not bound":                      {pod: boundPod("", func(p *corev1.Pod) { p.Spec.NodeName = "" }), stored: map[string]pool.Entry{"10.0.1.200": released}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, lost := range []bool{false, true} {
				cached, api := objects(c.pod.DeepCopy()), objects(c.pod.DeepCopy())
				if c.record {
					cached, api = append(cached, recordOf(0, false)), append(api, recordOf(0, false))
				}
				if c.waits {
					record := recordOf(0, false)
					record.Spec.IPs = nil
					cached, api = append(cached, record), append(api, record.DeepCopy())
				}
				if c.gone {
					api = nil
				}
				s := newStage(t, api, cached)
				s.fill(c.stored, c.used)
				before := s.poolOwners()
				r := s.adopts()
				if lost {
					// The write happens, nobody hears of it, and somebody else begins again.
					failed := false
					ctx, cancel := context.WithCancel(t.Context())
					s.onPatch = func() (func(), error) { return func() { failed = true; cancel() }, nil }
					_, _ = r.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.pod)})
					cancel()
					if failed != (len(c.want) > 0) {
						t.Errorf("written: %v", failed)
					}
					s.onPatch = nil
					r = s.adopts()
				}
				for range 2 {
					if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.pod)}); err != nil {
						t.Fatal(err)
					}
				}
				for a, owner := range c.want {
					before[a] = owner
				}
				if diff := cmp.Diff(before, s.poolOwners()); diff != "" {
					t.Errorf("entries (-want +got): %s", diff)
				}
				var now corev1.Pod
				evicted := s.api.Get(t.Context(), client.ObjectKeyFromObject(c.pod), &now) != nil
				if !c.gone && evicted != c.evicted {
					t.Errorf("evicted: %v", evicted)
				}
			}
		})
	}
}

// A pod that goes while its address is adopted leaves the pool as it was.
func TestPodThatLostItsEntryGoesMeanwhile(t *testing.T) {
	pod := boundPod("10.0.1.1")
	s := newStage(t, objects(pod.DeepCopy()), objects(pod.DeepCopy()))
	s.fill(map[string]pool.Entry{"10.0.1.1": {}}, nil)
	before := s.poolOwners()
	s.onPatch = func() (func(), error) {
		s.onPatch = nil
		return func() { _ = s.api.Delete(t.Context(), pod) }, nil
	}
	if _, err := s.adopts().Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}); err != nil && !errors.Is(err, errSuperseded) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, s.poolOwners()); diff != "" || s.patches != 2 {
		t.Errorf("%d patches, entries (-want +got): %s", s.patches, diff)
	}
}

// adopts is the controller that adopts, as it is after a start.
func (s *stage) adopts() *adoptReconciler {
	verify := DefaultVerifyConfig()
	var node ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	l := s.ledger
	l.SetNode(ciliumpool.FromCiliumNode(&node))
	return &adoptReconciler{
		ledger: l, writer: ciliumpool.NewWriter(s.t.Context(), ciliumpool.New(s.api), l.Node), cached: s.cached, live: s.api, events: s.recorder,
		adoption: identity.Adoption{Schedulers: []string{"ours"}}, kinds: identity.NewKinds(), workloads: s, clock: s.clock, verify: verify,
		restarter: newRestarter(s.cached, s.api, s.clock, verify),
	}
}

// fill has node n with this pool.
func (s *stage) fill(entries map[string]pool.Entry, used map[string]string) {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	// The fake API server counts none, and leaves out a 0.
	node.Generation = 1
	node.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.2": {}}
	for a, e := range entries {
		node.Spec.IPAM.Pool[a] = ciliumpool.EncodeEntry(e)
	}
	node.Status.IPAM.Used = ipamtypes.AllocationMap{}
	for a, owner := range used {
		node.Status.IPAM.Used[a] = ipamtypes.AllocationIP{Owner: owner}
	}
	if err := s.api.Update(s.t.Context(), &node); err != nil {
		s.t.Fatal(err)
	}
}

// poolOwners are those of node n. Key: the address.
func (s *stage) poolOwners() map[string]string {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	owners := map[string]string{}
	for a, e := range node.Spec.IPAM.Pool {
		owners[a] = e.Owner
	}
	return owners
}

// A controller that has not seen a pod's claim gives it no second address beside that: which of the two to keep is decided
// once both are seen.
func TestAdoptionBesideAnUnseenClaim(t *testing.T) {
	pod := boundPod("10.0.1.1")
	s := newStage(t, objects(pod.DeepCopy()), objects(pod.DeepCopy()))
	s.fill(map[string]pool.Entry{"10.0.1.1": {}}, nil)
	r := s.adopts()
	s.fill(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.200": pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}, nil)
	before := s.poolOwners()
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, s.poolOwners()); diff != "" || s.patches != 0 {
		t.Errorf("%d patches, entries (-want +got): %s", s.patches, diff)
	}
}
