package identity_test

import (
	"fmt"
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
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		want    identity.Identity
		fixed   bool
		wantErr string
	}{
		"of a StatefulSet":       {pod: pod(), want: mysql0, fixed: true},
		"opted in":               {pod: pod(enabled("true")), want: mysql0, fixed: true},
		"opted out":              {pod: pod(enabled("false"))},
		"opted nowhere":          {pod: pod(enabled("nope")), wantErr: `annotation fixedip.io/enabled of pod db/mysql-0 is "nope"; write "true" or "false"`},
		"opted emptily":          {pod: pod(enabled("")), wantErr: `annotation fixedip.io/enabled of pod db/mysql-0 is ""; write "true" or "false"`},
		"on the host's network":  {pod: pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		"of a ReplicaSet":        {pod: pod(ownedBy("apps/v1", "ReplicaSet"))},
		"of another StatefulSet": {pod: pod(ownedBy("apps.kruise.io/v1beta1", "StatefulSet"))},
		"of nobody":              {pod: pod(func(p *corev1.Pod) { p.OwnerReferences = nil })},
		"of no controller":       {pod: pod(func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil })},
	} {
		got, fixed, err := identity.Of(c.pod)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if diff := cmp.Diff(c.want, got); diff != "" || fixed != c.fixed || message != c.wantErr {
			t.Errorf("%s: fixed %v, error %q, (-want +got): %s", name, fixed, message, diff)
		}
	}
	if got, want := mysql0.Entry(), (pool.Entry{Owner: "db/mysql-0", Resource: "db/StatefulSet/mysql"}); got != want {
		t.Errorf("entry %+v, want %+v", got, want)
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
		"not asked for":        {pod: pod()},
		"asked for":            {pod: pod(annotated(identity.AnnotationStickyMAC, "true")), wanted: true},
		"declined":             {pod: pod(annotated(identity.AnnotationStickyMAC, "false"))},
		"chosen by hand":       {pod: pod(annotated(identity.AnnotationStickyMAC, "true"), annotated(identity.AnnotationCiliumMAC, "02:00:00:00:00:01"))},
		"neither true nor not": {pod: pod(annotated(identity.AnnotationStickyMAC, "maybe")), wantErr: `annotation fixedip.io/sticky-mac of pod db/mysql-0 is "maybe"; write "true" or "false"`},
	} {
		wanted, err := identity.WantsMAC(c.pod)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if wanted != c.wanted || message != c.wantErr {
			t.Errorf("%s: wanted %v, error %q", name, wanted, message)
		}
	}

	// It must stay what it was in every release to come.
	first := identity.Identity{Namespace: "db", PodName: "mysql-0"}.MAC()
	if want := "f6:47:da:d5:d1:be"; first.String() != want {
		t.Errorf("the MAC address of db/mysql-0 is %s, want %s", first, want)
	}
	seen := map[string]bool{}
	for i := range 1000 {
		mac := identity.Identity{Namespace: "db", PodName: fmt.Sprintf("mysql-%d", i)}.MAC()
		if mac[0]&0x03 != 0x02 {
			t.Errorf("%s is not a locally administered unicast address", mac)
		}
		if seen[mac.String()] {
			t.Errorf("%s was given twice", mac)
		}
		seen[mac.String()] = true
	}
}
