// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/identity"
)

func TestParseKind(t *testing.T) {
	for text, want := range map[string]identity.Kind{
		"Deployment.apps=Slot":                         {APIGroup: "apps", Kind: "Deployment", Identity: "Slot"},
		"StatefulSet.apps.kruise.io=PodName:ByDefault": {APIGroup: "apps.kruise.io", Kind: "StatefulSet", Identity: "PodName", Enabled: "ByDefault"},
		"ReplicationController=Slot":                   {Kind: "ReplicationController", Identity: "Slot"},
	} {
		if got, err := identity.ParseKind(text); err != nil || got != want {
			t.Errorf("%s: %+v, error %v", text, got, err)
		}
	}
	for _, text := range []string{"", "Deployment.apps", "=Slot", "Deployment.apps="} {
		if got, err := identity.ParseKind(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func TestValidateKinds(t *testing.T) {
	good := identity.Kind{APIGroup: "apps.kruise.io", Kind: "CloneSet", Identity: "Slot"}
	for name, c := range map[string]struct {
		kinds []identity.Kind
		want  string
	}{
		"none":                       {},
		"all kinds":                  {kinds: []identity.Kind{good, {Kind: "ReplicationController", Identity: "Slot", Enabled: "ByDefault"}, {APIGroup: "apps", Kind: "StatefulSet", Identity: "PodName", Enabled: "ByAnnotation"}}},
		"a version":                  {kinds: []identity.Kind{{APIGroup: "apps/v1", Kind: "Deployment", Identity: "Slot"}}, want: `workloads[0].apiGroup: Invalid value: "apps/v1": must be an API group without a version, such as apps`},
		"no kind":                    {kinds: []identity.Kind{{APIGroup: "apps", Identity: "Slot"}}, want: `workloads[0].kind: Required value: must be the kind of the workload, such as Deployment`},
		"a plural":                   {kinds: []identity.Kind{good, {APIGroup: "apps", Kind: "deployments", Identity: "Slot"}}, want: `workloads[1].kind: Invalid value: "deployments": must be a kind in the singular, such as Deployment`},
		"no identity":                {kinds: []identity.Kind{{APIGroup: "a.b", Kind: "C"}}, want: `workloads[0].identity: Required value: must be PodName if pods return with the same name, otherwise Slot`},
		"unknown identity":           {kinds: []identity.Kind{{APIGroup: "a.b", Kind: "C", Identity: "Name"}}, want: `workloads[0].identity: Unsupported value: "Name": supported values: "PodName", "Slot"`},
		"identity of another kind":   {kinds: []identity.Kind{{APIGroup: "apps", Kind: "Deployment", Identity: "PodName"}}, want: `workloads[0].identity: Invalid value: "PodName": must be Slot for a Deployment`},
		"slots of a StatefulSet":     {kinds: []identity.Kind{{APIGroup: "apps", Kind: "StatefulSet", Identity: "Slot"}}, want: `workloads[0].identity: Invalid value: "Slot": must be PodName for a StatefulSet`},
		"a DaemonSet":                {kinds: []identity.Kind{{APIGroup: "apps", Kind: "DaemonSet", Identity: "Slot"}}, want: `workloads[0].kind: Invalid value: "DaemonSet": pods of this kind cannot have fixed addresses: neither their names nor their number are stable`},
		"unknown enabling":           {kinds: []identity.Kind{{APIGroup: "a.b", Kind: "C", Identity: "Slot", Enabled: "true"}}, want: `workloads[0].enabled: Unsupported value: "true": supported values: "ByDefault", "ByAnnotation"`},
		"same label as StatefulSets": {kinds: []identity.Kind{{Kind: "StatefulSet", Identity: "PodName"}}, want: `workloads[0].apiGroup: Invalid value: "": pool entries cannot distinguish a StatefulSet from that of group "apps"`},
		"listed twice":               {kinds: []identity.Kind{good, good}, want: `workloads[1]: Duplicate value: "CloneSet.apps.kruise.io"`},
	} {
		got := ""
		if err := identity.ValidateKinds(field.NewPath("workloads"), c.kinds).ToAggregate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestNewKinds checks that StatefulSets are always included and that a list can configure them.
func TestNewKinds(t *testing.T) {
	sts := identity.Kind{APIGroup: "apps", Kind: "StatefulSet", Identity: "PodName", Enabled: "ByDefault"}
	deployment := identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: "Slot"}
	byAnnotation := deployment
	byAnnotation.Enabled = "ByAnnotation"
	rare := sts
	rare.Enabled = "ByAnnotation"
	for name, c := range map[string]struct{ list, want []identity.Kind }{
		"alone":     {nil, []identity.Kind{sts}},
		"beside":    {[]identity.Kind{deployment}, []identity.Kind{sts, byAnnotation}},
		"otherwise": {[]identity.Kind{deployment, rare}, []identity.Kind{rare, byAnnotation}},
	} {
		if diff := cmp.Diff(c.want, identity.NewKinds(c.list...).All()); diff != "" {
			t.Errorf("%s: (-want +got): %s", name, diff)
		}
	}
}

// TestLabel checks that labels in pool entries lead back to their kind, and that kinds with the same name differ.
func TestLabel(t *testing.T) {
	kinds := identity.NewKinds(identity.Kind{APIGroup: "apps.kruise.io", Kind: "StatefulSet", Identity: "PodName"}, identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: "Slot"})
	for label, want := range map[string]string{"StatefulSet": "apps", "StatefulSet.apps.kruise.io": "apps.kruise.io", "Deployment": "apps"} {
		if k, ok := kinds.Labelled(label); !ok || k.APIGroup != want || identity.Label(k.GroupKind()) != label {
			t.Errorf("%s is %+v (%v)", label, k, ok)
		}
	}
	// An entry for the kind Pod is removed with its pod, so no workload has that label.
	if got := identity.Label(schema.GroupKind{Group: "foo", Kind: "Pod"}); got != "Pod.foo" {
		t.Errorf("the kind Pod of group foo goes by %s", got)
	}
	if k, ok := kinds.Labelled("DaemonSet"); ok {
		t.Errorf("a kind that is not configured is %+v", k)
	}
}

// TestExcludes checks which pod names are outside the replicas of a workload. Finding C8 is about reserved ordinals.
func TestExcludes(t *testing.T) {
	three := ptr.To[int32](3)
	for name, c := range map[string]struct {
		pod      string
		workload identity.Workload
		want     bool
	}{
		"within":                {"web-2", identity.Workload{Replicas: three}, false},
		"above":                 {"web-3", identity.Workload{Replicas: three}, true},
		"below the start":       {"web-4", identity.Workload{Replicas: three, FirstOrdinal: 5}, true},
		"within, with a start":  {"web-7", identity.Workload{Replicas: three, FirstOrdinal: 5}, false},
		"no replica count":      {"web-7", identity.Workload{}, false},
		"the last there can be": {"web-2147483647", identity.Workload{Replicas: ptr.To[int32](1), FirstOrdinal: 2147483647}, false},
		"no ordinal":            {"web-x", identity.Workload{Replicas: ptr.To[int32](0)}, false},

		"behind a reserved ordinal":               {"web-3", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 1}}}, false},
		"a reserved ordinal":                      {"web-1", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 1}}}, true},
		"above, behind a reserved ordinal":        {"web-4", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 1}}}, true},
		"behind reserved ranges":                  {"web-9", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 4}, {First: 6, Last: 8}}}, false},
		"above, behind reserved ranges":           {"web-10", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 4}, {First: 6, Last: 8}}}, true},
		"behind a reserved range about the start": {"web-8", identity.Workload{Replicas: three, FirstOrdinal: 4, Reserved: []identity.OrdinalRange{{First: 2, Last: 5}}}, false},
		"above a reserved range about the start":  {"web-9", identity.Workload{Replicas: three, FirstOrdinal: 4, Reserved: []identity.OrdinalRange{{First: 2, Last: 5}}}, true},
		"reserved ordinals that cannot be read":   {"web-9", identity.Workload{Replicas: three, Uncounted: true}, false},
	} {
		c.workload.Name = "web"
		if got := c.workload.Excludes(c.pod); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
