// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
)

// parsers contains a parser for each annotation. Key: the annotation. The parser returns the value in canonical form, which
// parses to itself. If the annotation is missing, it returns the default.
var parsers = map[string]func(map[string]string) (string, error){
	identity.AnnotationWhenDeleted: func(a map[string]string) (string, error) {
		p, err := identity.Reclaim(identity.DefaultReclaim(), a, nil)
		return string(p.WhenDeleted), err
	},
	identity.AnnotationWhenScaled: func(a map[string]string) (string, error) {
		p, err := identity.Reclaim(identity.DefaultReclaim(), nil, a)
		return string(p.WhenScaled), err
	},
	identity.AnnotationTTL: func(a map[string]string) (string, error) {
		p, err := identity.Reclaim(identity.NamedReclaim(), a)
		return (time.Duration(p.TTLSeconds) * time.Second).String(), err
	},
	identity.AnnotationFailover: func(a map[string]string) (string, error) {
		p, err := identity.Failover(a, nil)
		return string(p), err
	},
	identity.AnnotationOnMismatch: func(a map[string]string) (string, error) {
		p, err := identity.MismatchPolicy(nil, a, identity.Restart)
		if err != nil && p != identity.Report {
			return "", fmt.Errorf("MismatchPolicy returns %s for an invalid value, want Report", p)
		}
		return string(p), err
	},
	identity.AnnotationStickyMAC: func(a map[string]string) (string, error) {
		wanted, err := identity.WantsMAC(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: a}})
		return fmt.Sprint(wanted), err
	},
	identity.AnnotationEnabled: func(a map[string]string) (string, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0", Annotations: a}}
		_, fixed, err := identity.Of(pod, identity.NewKinds(), identity.NoControllers)
		if in, out := identity.OptsIn(a), identity.OptsOut(pod); err == nil && in != fixed || err != nil && (in || out) || in && out {
			return "", errors.Join(err, fmt.Errorf("OptsIn returns %v, OptsOut %v, and Of returns fixed %v", in, out, fixed))
		}
		return fmt.Sprint(fixed), err
	},
}

// FuzzAnnotations checks that the error for an invalid annotation names the annotation and the value, and that the value of a
// valid annotation parses to itself after formatting.
func FuzzAnnotations(f *testing.F) {
	for key := range parsers {
		for _, value := range []string{"Delete", "Retain", "retain", "Wait", "Migrate", "Reassign", "Restart", "Report", "30m", "-1s", "2562047h47m16.854775807s", "9999999h", "1h30", "+5m", "true", "False", "yes", "1", "", " Retain", "Retain\n", "\x00", "\xff"} {
			f.Add(key, value)
		}
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		parse := parsers[key]
		if parse == nil {
			return
		}
		parsed, err := parse(map[string]string{key: value})
		if err != nil {
			for _, part := range []string{"annotation " + key, fmt.Sprintf("is %q; write ", value)} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not contain %q", err, part)
				}
			}
			return
		}
		if again, err := parse(map[string]string{key: parsed}); err != nil || again != parsed {
			t.Errorf("%s: %q parses to %q, which parses to %q, error %v; want the same value again", key, value, parsed, again, err)
		}
		if key == identity.AnnotationTTL && strings.HasPrefix(parsed, "-") {
			t.Errorf("%s: %q parses to the negative duration %s, want an error", key, value, parsed)
		}
	})
}

// FuzzSelector checks that a selector, formatted and parsed again, selects the same pods, and that only a selector in JSON
// can select all pods.
func FuzzSelector(f *testing.F) {
	for _, seed := range []string{
		"", " ", ",", "\x00", "app=a\x00,b=c", "app=mysql", "app=mysql,env!=test", "app in (a,b)", "!app", "app", "a in", "=", ",", `{"matchLabels":{"app":"mysql"}}`, `{}`, `{"matchLabels":null}`,
		`{"matchExpressions":[{"key":"app","operator":"In","values":["a"]}]}`, `{"matchExpressions":[{"key":"app","operator":"Near"}]}`, `{"matchLables":{}}`, `{"matchLabels":{"app":"mysql"}} {}`, `{"matchLabels":{"":""}}`, `{`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSelector(text)
		if err != nil {
			if s != nil {
				t.Errorf("ParseSelector(%q) returns %s and error %v, want nil with an error", text, s, err)
			}
			return
		}
		if s == nil {
			if strings.TrimSpace(text) != "" {
				t.Errorf("ParseSelector(%q) returns nil, want a selector", text)
			}
			return
		}
		again, err := parseSelector(s.String())
		if s.Empty() {
			// Only JSON can select all pods.
			if !strings.HasPrefix(strings.TrimSpace(text), "{") {
				t.Errorf("ParseSelector(%q) selects all pods, want an error", text)
			}
			return
		}
		if err != nil {
			t.Fatalf("ParseSelector(%q) returns %q, which ParseSelector refuses: %v", text, s, err)
		}
		for _, set := range []labels.Set{nil, {"app": "mysql"}, {"app": "a"}, {"env": "test"}, {"app": "mysql", "env": "test"}} {
			if s.Matches(set) != again.Matches(set) {
				t.Errorf("%q matches %v: %v, but its formatted text %q: %v", text, set, s.Matches(set), s, again.Matches(set))
			}
		}
	})
}

// FuzzKind checks that Labelled and Of return each valid kind for its label and its GroupKind, and that the entry of a pod of
// that kind names the label and the workload. Errors of ParseKind have to name the text, and errors of ValidateKinds the
// field.
func FuzzKind(f *testing.F) {
	for _, seed := range []string{
		"Deployment.apps=Slot", "StatefulSet.apps=PodName:ByAnnotation", "CloneSet.apps.kruise.io=Slot:ByDefault", "DaemonSet.apps=PodName", "Pod=PodName", "ReplicationController=Slot", "deployment=Slot",
		"Pod.foo=PodName", "StatefulSet.=PodName", "StatefulSet.foo=PodName", "A/B.c=Slot", "A.b/c=PodName", "=", "A=", "A=Slot:", "A=Slot:Never", ".apps=Slot", "A.=Slot", "A..b=Slot", "A.B=Slot",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, err := identity.ParseKind(text)
		if err != nil {
			if !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
				t.Errorf("ParseKind(%q): error %q does not name the text", text, err)
			}
			return
		}
		if errs := identity.ValidateKinds(field.NewPath("workloads"), []identity.Kind{k}); len(errs) > 0 {
			for _, e := range errs {
				if !strings.HasPrefix(e.Field, "workloads[0].") {
					t.Errorf("kind %q: error %q names no field of the kind", text, e)
				}
			}
			return
		}
		kinds := identity.NewKinds(k)
		label := identity.Label(k.GroupKind())
		if back, ok := kinds.Labelled(label); !ok || back.GroupKind() != k.GroupKind() {
			t.Errorf("kind %q has the label %q, for which Labelled returns %v, %v; want that kind", text, label, back, ok)
		}
		if got, ok := kinds.Of(k.GroupKind()); !ok || got.Identity != k.Identity || got.Enabled == "" {
			t.Errorf("kind %q: Of returns %+v, %v; want the same identity mode, and Enabled set", text, got, ok)
		}
		id := identity.Identity{Namespace: "db", PodName: "web-0", Owner: identity.Owner{APIVersion: k.APIGroup + "/v1", Kind: k.Kind, Name: "web"}}
		if k.APIGroup == "" {
			id.Owner.APIVersion = "v1"
		}
		if gotLabel, name, ok := id.Entry().WorkloadRef(); !ok || gotLabel != label || name != "web" || id.Entry().IsUnreserved() {
			t.Errorf("kind %q: entry %+v is for %s %s, unreserved: %v; want %s web, unreserved: false", text, id.Entry(), gotLabel, name, id.Entry().IsUnreserved(), label)
		}
	})
}

// FuzzNames checks that SlotName returns valid names, and different ones for two adjacent addresses. It also checks that
// Ordinal and StatefulSetOf return the parts from which the name of a pod was built.
func FuzzNames(f *testing.F) {
	f.Add("web", int32(0), "10.240.1.254")
	f.Add("web-0", int32(2147483647), "fd00::")
	f.Add(strings.Repeat("a.", 126)+"a", int32(-1), "::")
	f.Add("a", int32(1), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	f.Fuzz(func(t *testing.T, workload string, ordinal int32, addr string) {
		if len(validation.IsDNS1123Subdomain(workload)) > 0 {
			return
		}
		if ordinal >= 0 {
			pod := fmt.Sprintf("%s-%d", workload, ordinal)
			if got, ok := identity.Ordinal(pod, workload); !ok || got != ordinal {
				t.Errorf("Ordinal(%s, %s) returns %d, %v; want %d", pod, workload, got, ok, ordinal)
			}
			if got, ok := identity.StatefulSetOf(pod); !ok || got != workload {
				t.Errorf("StatefulSetOf(%s) returns %s, %v; want %s", pod, got, ok, workload)
			}
		}
		if of, ok := identity.StatefulSetOf(workload); ok {
			if _, ok := identity.Ordinal(workload, of); !ok {
				t.Errorf("StatefulSetOf(%s) returns %s, but Ordinal finds no ordinal after that name", workload, of)
			}
		}
		a, err := netip.ParseAddr(addr)
		if err != nil || a.Zone() != "" {
			return
		}
		name := identity.SlotName(workload, a)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("SlotName(%s, %s) returns the invalid name %q: %v", workload, a, name, problems)
		}
		if next := a.Next(); next.IsValid() && identity.SlotName(workload, next) == name {
			t.Errorf("SlotName returns %s for both %s and %s, want different names", name, a, next)
		}
	})
}

// FuzzIdentity checks that Of returns, for every pod, an identity whose entry names the pod and is not removed with the pod,
// or no identity, or an error.
func FuzzIdentity(f *testing.F) {
	for _, s := range [][3]string{
		{"apps/v1", "StatefulSet", "true"}, {"apps/v1", "ReplicaSet", "true"}, {"", "Pod", ""}, {"foo/v1", "Pod", "true"}, {"a/b/c", "StatefulSet", ""}, {"v1", "ReplicationController", "True"},
		{"apps.kruise.io/v1", "StatefulSet", "1"}, {"", "", "maybe"}, {"", "", "true"},
	} {
		f.Add(s[0], s[1], "web", s[2], false)
		f.Add(s[0], s[1], "web", s[2], true)
	}
	kinds := identity.NewKinds(identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: identity.Slot}, identity.Kind{APIGroup: "foo", Kind: "Pod", Identity: identity.PodName}, identity.Kind{APIGroup: "apps.kruise.io", Kind: "StatefulSet", Identity: identity.PodName})
	f.Fuzz(func(t *testing.T, apiVersion, kind, owner, enabled string, seen bool) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-0"}}
		if kind != "" {
			controller := true
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: owner, Controller: &controller}}
		}
		if enabled != "" {
			pod.Annotations = map[string]string{identity.AnnotationEnabled: enabled}
		}
		by := func(string, metav1.OwnerReference) (*metav1.OwnerReference, bool) {
			return &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, seen
		}
		id, fixed, err := identity.Of(pod, kinds, by)
		if err != nil {
			if fixed || !errors.Is(err, identity.ErrUnseen) && !strings.Contains(err.Error(), fmt.Sprintf("%q", enabled)) {
				t.Errorf("Of returns fixed %v and error %v; want false, and ErrUnseen or an error that names %q", fixed, err, enabled)
			}
			return
		}
		if !fixed {
			if id != (identity.Identity{}) {
				t.Errorf("Of returns %+v for a pod without a fixed address, want the zero Identity", id)
			}
			return
		}
		if !id.Entry().OwnedBy("db/web-0") {
			t.Errorf("entry %+v, want it to be owned by db/web-0", id.Entry())
		}
		if id.Entry().IsUnreserved() {
			t.Errorf("entry %+v is Unreserved, so it would be removed with the pod", id.Entry())
		}
		record := &v1alpha1.FixedIP{Spec: v1alpha1.FixedIPSpec{Owner: v1alpha1.OwnerReference{APIVersion: id.Owner.APIVersion, Kind: id.Owner.Kind, Name: id.Owner.Name, UID: id.Owner.UID}}}
		if identity.OwnerOf(record) != id.Owner {
			t.Errorf("OwnerOf returns %+v, want %+v", identity.OwnerOf(record), id.Owner)
		}
	})
}
