// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"slices"
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
			t.Errorf("ParseKind(%q) returns %+v, error %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "Deployment.apps", "=Slot", "Deployment.apps="} {
		if got, err := identity.ParseKind(text); err == nil {
			t.Errorf("ParseKind(%q) returns %+v, want an error", text, got)
		}
	}
}

func TestValidateKinds(t *testing.T) {
	good := identity.Kind{APIGroup: "apps.kruise.io", Kind: "CloneSet", Identity: "Slot"}
	for name, c := range map[string]struct {
		kinds []identity.Kind
		want  string
	}{
		"no kinds":                     {},
		"valid kinds":                  {kinds: []identity.Kind{good, {Kind: "ReplicationController", Identity: "Slot", Enabled: "ByDefault"}, {APIGroup: "apps", Kind: "StatefulSet", Identity: "PodName", Enabled: "ByAnnotation"}}},
		"API group with a version":     {kinds: []identity.Kind{{APIGroup: "apps/v1", Kind: "Deployment", Identity: "Slot"}}, want: `workloads[0].apiGroup: Invalid value: "apps/v1": must be an API group without a version, such as apps`},
		"without a kind":               {kinds: []identity.Kind{{APIGroup: "apps", Identity: "Slot"}}, want: `workloads[0].kind: Required value: must be the kind of the workload, such as Deployment`},
		"plural resource name":         {kinds: []identity.Kind{good, {APIGroup: "apps", Kind: "deployments", Identity: "Slot"}}, want: `workloads[1].kind: Invalid value: "deployments": must be the kind as in a manifest, such as Deployment: a capital letter, followed by letters and digits`},
		"without an identity mode":     {kinds: []identity.Kind{{APIGroup: "a.b", Kind: "C"}}, want: `workloads[0].identity: Required value: must be PodName if pods return with the same name, otherwise Slot`},
		"unknown identity mode":        {kinds: []identity.Kind{{APIGroup: "a.b", Kind: "C", Identity: "Name"}}, want: `workloads[0].identity: Unsupported value: "Name": supported values: "PodName", "Slot"`},
		"Deployment with mode PodName": {kinds: []identity.Kind{{APIGroup: "apps", Kind: "Deployment", Identity: "PodName"}}, want: `workloads[0].identity: Invalid value: "PodName": must be Slot for a Deployment`},
		"StatefulSet with mode Slot":   {kinds: []identity.Kind{{APIGroup: "apps", Kind: "StatefulSet", Identity: "Slot"}}, want: `workloads[0].identity: Invalid value: "Slot": must be PodName for a StatefulSet`},
		"DaemonSet":                    {kinds: []identity.Kind{{APIGroup: "apps", Kind: "DaemonSet", Identity: "Slot"}}, want: `workloads[0].kind: Invalid value: "DaemonSet": must be a kind whose pods have stable names or a stable number; bare pods need no configuration`},
		"unknown enable policy":        {kinds: []identity.Kind{{APIGroup: "a.b", Kind: "C", Identity: "Slot", Enabled: "true"}}, want: `workloads[0].enabled: Unsupported value: "true": supported values: "ByDefault", "ByAnnotation"`},
		"same label as StatefulSets":   {kinds: []identity.Kind{{Kind: "StatefulSet", Identity: "PodName"}}, want: `workloads[0].apiGroup: Invalid value: "": pool entries cannot distinguish StatefulSet of this group from StatefulSet of group "apps"; only one of the two can have fixed addresses`},
		"duplicate kind":               {kinds: []identity.Kind{good, good}, want: `workloads[1]: Duplicate value: "CloneSet.apps.kruise.io"`},
	} {
		got := ""
		if err := identity.ValidateKinds(field.NewPath("workloads"), c.kinds).ToAggregate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: error %q, want %q", name, got, c.want)
		}
	}
}

// TestNewKinds checks that StatefulSets are always included and that a list can configure them.
func TestNewKinds(t *testing.T) {
	sts := identity.Kind{APIGroup: "apps", Kind: "StatefulSet", Identity: "PodName", Enabled: "ByDefault"}
	deployment := identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: "Slot"}
	byAnnotation := deployment
	byAnnotation.Enabled = "ByAnnotation"
	stsByAnnotation := sts
	stsByAnnotation.Enabled = "ByAnnotation"
	for name, c := range map[string]struct{ list, want []identity.Kind }{
		"no kinds configured":                   {nil, []identity.Kind{sts}},
		"a kind in addition to StatefulSets":    {[]identity.Kind{deployment}, []identity.Kind{sts, byAnnotation}},
		"StatefulSets configured by annotation": {[]identity.Kind{deployment, stsByAnnotation}, []identity.Kind{stsByAnnotation, byAnnotation}},
	} {
		if diff := cmp.Diff(c.want, identity.NewKinds(c.list...).All()); diff != "" {
			t.Errorf("%s: kinds (-want +got): %s", name, diff)
		}
	}
}

// TestLabel checks that Labelled returns the kind of each label, and that kinds with the same name have different labels.
func TestLabel(t *testing.T) {
	kinds := identity.NewKinds(identity.Kind{APIGroup: "apps.kruise.io", Kind: "StatefulSet", Identity: "PodName"}, identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: "Slot"})
	for label, want := range map[string]string{"StatefulSet": "apps", "StatefulSet.apps.kruise.io": "apps.kruise.io", "Deployment": "apps"} {
		if k, ok := kinds.Labelled(label); !ok || k.APIGroup != want || identity.Label(k.GroupKind()) != label {
			t.Errorf("Labelled(%s) returns %+v, %v; want a kind of group %s with that label", label, k, ok, want)
		}
	}
	// An entry for the kind Pod is removed with its pod, so no workload has that label.
	if got := identity.Label(schema.GroupKind{Group: "foo", Kind: "Pod"}); got != "Pod.foo" {
		t.Errorf("label of kind Pod in group foo: %s, want Pod.foo", got)
	}
	if k, ok := kinds.Labelled("DaemonSet"); ok {
		t.Errorf("Labelled returns %+v for DaemonSet, which is not configured; want false", k)
	}
}

// TestLabelledKinds checks that a kind is among the kinds of its label.
func TestLabelledKinds(t *testing.T) {
	for _, gk := range []schema.GroupKind{
		identity.StatefulSets, identity.ReplicaSets, {Kind: "ReplicationController"}, {Group: "batch", Kind: "Job"}, {Group: "apps.kruise.io", Kind: "StatefulSet"},
		{Group: "foo", Kind: "Pod"},
	} {
		label := identity.Label(gk)
		if got := identity.LabelledKinds(label); !slices.Contains(got, gk) {
			t.Errorf("LabelledKinds(%s) returns %v, want kinds with %s", label, got, gk)
		}
	}
}

// TestExcludes checks which pod names are outside the replicas of a workload, with and without reserved ordinals (finding C8
// in docs/project/findings.md).
func TestExcludes(t *testing.T) {
	three := ptr.To[int32](3)
	for name, c := range map[string]struct {
		pod      string
		workload identity.Workload
		want     bool
	}{
		"within the replicas":                       {"web-2", identity.Workload{Replicas: three}, false},
		"above the replicas":                        {"web-3", identity.Workload{Replicas: three}, true},
		"below the first ordinal":                   {"web-4", identity.Workload{Replicas: three, FirstOrdinal: 5}, true},
		"within the replicas, with a first ordinal": {"web-7", identity.Workload{Replicas: three, FirstOrdinal: 5}, false},
		"without replicas":                          {"web-7", identity.Workload{}, false},
		"the highest possible ordinal":              {"web-2147483647", identity.Workload{Replicas: ptr.To[int32](1), FirstOrdinal: 2147483647}, false},
		"no ordinal":                                {"web-x", identity.Workload{Replicas: ptr.To[int32](0)}, false},

		"within the replicas, after a reserved ordinal":                               {"web-3", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 1}}}, false},
		"a reserved ordinal":                                                          {"web-1", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 1}}}, true},
		"above the replicas, after a reserved ordinal":                                {"web-4", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 1}}}, true},
		"within the replicas, after reserved ranges":                                  {"web-9", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 4}, {First: 6, Last: 8}}}, false},
		"above the replicas, after reserved ranges":                                   {"web-10", identity.Workload{Replicas: three, Reserved: []identity.OrdinalRange{{First: 1, Last: 4}, {First: 6, Last: 8}}}, true},
		"within the replicas, after a reserved range that contains the first ordinal": {"web-8", identity.Workload{Replicas: three, FirstOrdinal: 4, Reserved: []identity.OrdinalRange{{First: 2, Last: 5}}}, false},
		"above the replicas, after a reserved range that contains the first ordinal":  {"web-9", identity.Workload{Replicas: three, FirstOrdinal: 4, Reserved: []identity.OrdinalRange{{First: 2, Last: 5}}}, true},
		"reserved ordinals that cannot be read":                                       {"web-9", identity.Workload{Replicas: three, Uncounted: true}, false},
	} {
		c.workload.Name = "web"
		if got := c.workload.Excludes(c.pod); got != c.want {
			t.Errorf("%s: Excludes(%s) returns %v, want %v", name, c.pod, got, c.want)
		}
	}
}
