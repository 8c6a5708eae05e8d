// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "db", Name: "mysql-0",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1", Controller: ptr.To(true)}},
	}}
	for _, c := range change {
		c(p)
	}
	return p
}

func enabled(v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{identity.AnnotationEnabled: v} }
}

func ownedBy(apiVersion, kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = apiVersion, kind }
}

func TestOf(t *testing.T) {
	mysql0 := identity.Identity{Namespace: "db", PodName: "mysql-0", Owner: identity.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1"}}
	of := func(apiVersion, kind string, slot bool) identity.Identity {
		id := mysql0
		id.Owner.APIVersion, id.Owner.Kind, id.Slot = apiVersion, kind, slot
		return id
	}
	deployed := of("apps/v1", "Deployment", true)
	deployed.Owner.Name, deployed.Owner.UID = "shop", "dep-1"
	kruise := identity.Kind{APIGroup: "apps.kruise.io", Kind: "StatefulSet", Identity: identity.PodName}
	deployments := identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: identity.Slot}
	barePod := identity.Identity{Namespace: "db", PodName: "mysql-0", Owner: identity.Owner{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}}
	annotated := func(annotation string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{annotation: "any text"} }
	}
	byDefault := deployments
	byDefault.Enabled = identity.ByDefault
	replicaSet := ownedBy("apps/v1", "ReplicaSet")
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		kinds   []identity.Kind
		want    identity.Identity
		fixed   bool
		wantErr string
	}{
		"of a StatefulSet":              {pod: pod(), want: mysql0, fixed: true},
		"opted in":                      {pod: pod(enabled("true")), want: mysql0, fixed: true},
		"opted out":                     {pod: pod(enabled("false"))},
		"invalid annotation":            {pod: pod(enabled("nope")), wantErr: `annotation fixedip.io/enabled of pod db/mysql-0 is "nope"; write "true" or "false"`},
		"empty annotation":              {pod: pod(enabled("")), wantErr: `annotation fixedip.io/enabled of pod db/mysql-0 is ""; write "true" or "false"`},
		"on the host network":           {pod: pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		"of a ReplicaSet":               {pod: pod(replicaSet, enabled("true"))},
		"of another StatefulSet":        {pod: pod(ownedBy("apps.kruise.io/v1beta1", "StatefulSet"), enabled("true"))},
		"bare pod":                      {pod: pod(bare)},
		"bare pod, opted in":            {pod: pod(bare, enabled("true")), want: barePod, fixed: true},
		"bare pod, opted out":           {pod: pod(bare, enabled("false"))},
		"bare pod, invalid annotation":  {pod: pod(bare, enabled("nope")), wantErr: `annotation fixedip.io/enabled of pod db/mysql-0 is "nope"; write "true" or "false"`},
		"bare pod, requests addresses":  {pod: pod(bare, annotated("fixedip.io/ips")), want: barePod, fixed: true},
		"bare pod, Calico annotation":   {pod: pod(bare, annotated("cni.projectcalico.org/ipAddrs")), want: barePod, fixed: true},
		"bare pod, host network":        {pod: pod(bare, enabled("true"), func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		"the owner is not a controller": {pod: pod(func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil })},

		"StatefulSets by annotation, not opted in": {pod: pod(), kinds: []identity.Kind{{APIGroup: "apps", Kind: "StatefulSet", Identity: identity.PodName}}},
		"StatefulSets by annotation, opted in":     {pod: pod(enabled("true")), kinds: []identity.Kind{{APIGroup: "apps", Kind: "StatefulSet", Identity: identity.PodName}}, want: mysql0, fixed: true},

		"of a configured kind":                    {pod: pod(ownedBy("apps.kruise.io/v1beta1", "StatefulSet"), enabled("true")), kinds: []identity.Kind{kruise}, want: of("apps.kruise.io/v1beta1", "StatefulSet", false), fixed: true},
		"of a configured kind, not opted in":      {pod: pod(ownedBy("apps.kruise.io/v1beta1", "StatefulSet")), kinds: []identity.Kind{kruise}},
		"of a configured kind in another version": {pod: pod(ownedBy("apps.kruise.io/v1", "StatefulSet"), enabled("true")), kinds: []identity.Kind{kruise}, want: of("apps.kruise.io/v1", "StatefulSet", false), fixed: true},

		"of a Deployment":                                              {pod: pod(replicaSet, enabled("true")), kinds: []identity.Kind{deployments}, want: deployed, fixed: true},
		"of a Deployment, not opted in":                                {pod: pod(replicaSet), kinds: []identity.Kind{deployments}},
		"of a Deployment by default":                                   {pod: pod(replicaSet), kinds: []identity.Kind{byDefault}, want: deployed, fixed: true},
		"of a Deployment, opted out":                                   {pod: pod(replicaSet, enabled("false")), kinds: []identity.Kind{byDefault}},
		"of a Deployment, only a kind with stable names is configured": {pod: pod(replicaSet, enabled("true")), kinds: []identity.Kind{kruise}},
		"of a ReplicaSet without a controller":                         {pod: pod(replicaSet, enabled("true"), func(p *corev1.Pod) { p.OwnerReferences[0].UID = "rs-alone" }), kinds: []identity.Kind{deployments}},
		"of a ReplicaSet, which is a configured kind": {pod: pod(replicaSet, enabled("true"), func(p *corev1.Pod) { p.OwnerReferences[0].UID = "rs-alone" }),
			kinds: []identity.Kind{{APIGroup: "apps", Kind: "ReplicaSet", Identity: identity.Slot}},
			want: func() identity.Identity {
				id := of("apps/v1", "ReplicaSet", true)
				id.Owner.UID = "rs-alone"
				return id
			}(), fixed: true},
		"of a ReplicaSet that was seen with another UID": {pod: pod(replicaSet, enabled("true"), func(p *corev1.Pod) { p.OwnerReferences[0].UID = "rs-before" }), kinds: []identity.Kind{deployments},
			wantErr: "ReplicaSet mysql of pod db/mysql-0 has not been seen yet; if that lasts, check that it exists, and that fixedip may list and watch ReplicaSets"},
	} {
		controllers := func(namespace string, of metav1.OwnerReference) (*metav1.OwnerReference, bool) {
			switch {
			case namespace != "db" || of.Name != "mysql":
				return nil, false
			case of.UID == "sts-1":
				return &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "shop", UID: "dep-1", Controller: ptr.To(true)}, true
			}
			return nil, of.UID == "rs-alone"
		}
		got, fixed, err := identity.Of(c.pod, identity.NewKinds(c.kinds...), controllers)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if diff := cmp.Diff(c.want, got); diff != "" || fixed != c.fixed || message != c.wantErr {
			t.Errorf("%s: fixed %v, want %v; error %q, want %q; identity (-want +got): %s", name, fixed, c.fixed, message, c.wantErr, diff)
		}
	}
	if got, want := of("apps.kruise.io/v1beta1", "StatefulSet", false).Entry(), (pool.OwnedEntry("db", "mysql-0", "StatefulSet.apps.kruise.io", "mysql")); got != want {
		t.Errorf("pod of a StatefulSet of group apps.kruise.io: entry %+v, want %+v", got, want)
	}
	if got, want := mysql0.Entry(), (pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")); got != want {
		t.Errorf("pod of a StatefulSet of group apps: entry %+v, want %+v", got, want)
	}
}

func TestMAC(t *testing.T) {
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value)
		}
	}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		wanted  bool
		wantErr string
	}{
		"no annotation": {pod: pod()},
		"requested":     {pod: pod(annotated(identity.AnnotationStickyMAC, "true")), wanted: true},
		"declined":      {pod: pod(annotated(identity.AnnotationStickyMAC, "false"))},
		"requested, a user has set the MAC address": {pod: pod(annotated(identity.AnnotationStickyMAC, "true"), annotated(identity.AnnotationCiliumMAC, "02:00:00:00:00:01"))},
		"invalid value": {pod: pod(annotated(identity.AnnotationStickyMAC, "maybe")), wantErr: `annotation fixedip.io/sticky-mac of pod db/mysql-0 is "maybe"; write "true" or "false"`},
	} {
		wanted, err := identity.WantsMAC(c.pod)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if wanted != c.wanted || message != c.wantErr {
			t.Errorf("%s: WantsMAC returns %v, error %q; want %v, error %q", name, wanted, message, c.wanted, c.wantErr)
		}
	}

	// The MAC address must not change between versions of fixedip.
	first := identity.Identity{Namespace: "db", PodName: "mysql-0"}.MAC(nil)
	if want := "f6:47:da:d5:d1:be"; first.String() != want {
		t.Errorf("the MAC address of db/mysql-0 is %s, want %s", first, want)
	}
	// The MAC address of a slot depends on its address and not on the pod.
	slot := func(pod string, addr string) string {
		return identity.Identity{Namespace: "db", PodName: pod, Slot: true}.MAC([]netip.Addr{netip.MustParseAddr(addr)}).String()
	}
	if a, b, c := slot("web-x", "10.0.1.9"), slot("web-y", "10.0.1.9"), slot("web-x", "10.0.1.8"); a != b || a == c {
		t.Errorf("MAC addresses of two pods with 10.0.1.9: %s and %s, want the same; with 10.0.1.8: %s, want another one", a, b, c)
	}
	seen := map[string]bool{}
	for i := range 1000 {
		mac := identity.Identity{Namespace: "db", PodName: fmt.Sprintf("mysql-%d", i)}.MAC(nil)
		if mac[0]&0x03 != 0x02 {
			t.Errorf("MAC address %s, want a locally administered unicast address", mac)
		}
		if seen[mac.String()] {
			t.Errorf("two pods have the MAC address %s, want different ones", mac)
		}
		seen[mac.String()] = true
	}
}

func TestRequestsIPs(t *testing.T) {
	of := func(key string) map[string]string { return map[string]string{key: "10.0.1.6"} }
	for name, c := range map[string]struct {
		pod, workload map[string]string
		want          bool
	}{
		"no annotation":                       {},
		"annotation of the pod":               {pod: of(identity.AnnotationIPs), want: true},
		"annotation of the workload":          {workload: of(identity.AnnotationIPs), want: true},
		"Calico's annotation of the pod":      {pod: of(identity.AnnotationCalico), want: true},
		"Calico's annotation of the workload": {workload: of(identity.AnnotationCalico)},
	} {
		if got := identity.RequestsIPs(c.pod, c.workload); got != c.want {
			t.Errorf("%s: RequestsIPs returns %v, want %v", name, got, c.want)
		}
	}
}
