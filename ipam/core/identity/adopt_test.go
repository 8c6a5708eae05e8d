// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fixedip.io/fixedip/ipam/core/identity"
)

func labelled(with map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = with }
}

func bare(p *corev1.Pod) { p.OwnerReferences = nil }

func TestAdoption(t *testing.T) {
	for name, c := range map[string]struct {
		selector string
		exclude  []string
		kinds    []identity.Kind
		pod      *corev1.Pod
		wanted   bool
		wantErr  string
	}{
		"no selector":                        {pod: pod(labelled(map[string]string{"app": "mysql"}))},
		"no selector, opted in":              {pod: pod(enabled("true")), wanted: true},
		"matchLabels":                        {selector: `{"matchLabels":{"app":"mysql"}}`, pod: pod(labelled(map[string]string{"app": "mysql"})), wanted: true},
		"matchLabels, no match":              {selector: `{"matchLabels":{"app":"mysql"}}`, pod: pod(labelled(map[string]string{"app": "redis"}))},
		"matchExpressions":                   {selector: `{"matchExpressions":[{"key":"fixed-ip","operator":"In","values":["true"]}]}`, pod: pod(labelled(map[string]string{"fixed-ip": "true"})), wanted: true},
		"matchExpressions, no match":         {selector: `{"matchExpressions":[{"key":"fixed-ip","operator":"In","values":["true"]}]}`, pod: pod()},
		"format of kubectl":                  {selector: "app=mysql,env!=test", pod: pod(labelled(map[string]string{"app": "mysql", "env": "production"})), wanted: true},
		"format of kubectl, no match":        {selector: "app=mysql,env!=test", pod: pod(labelled(map[string]string{"app": "mysql", "env": "test"}))},
		"empty selector":                     {selector: "{}", pod: pod(), wanted: true},
		"opted out":                          {selector: "{}", pod: pod(enabled("false"))},
		"invalid annotation":                 {selector: "{}", pod: pod(enabled("maybe")), wantErr: `annotation fixedip.io/enabled of pod db/mysql-0 is "maybe"; write "true" or "false"`},
		"of a ReplicaSet":                    {selector: "{}", pod: pod(ownedBy("apps/v1", "ReplicaSet"), enabled("true")), kinds: []identity.Kind{{APIGroup: "apps", Kind: "Deployment", Identity: identity.Slot}}},
		"of a ReplicationController":         {selector: "{}", pod: pod(ownedBy("v1", "ReplicationController"), enabled("true")), kinds: []identity.Kind{{Kind: "ReplicationController", Identity: identity.Slot}}},
		"excluded":                           {selector: "{}", exclude: []string{"test-", "staging-"}, pod: pod(labelled(map[string]string{"DBBranch": "staging-7"}))},
		"excluded, opted in":                 {exclude: []string{"test-"}, pod: pod(labelled(map[string]string{"DBBranch": "test-7"}), enabled("true"))},
		"not excluded":                       {selector: "{}", exclude: []string{"test-", "staging-"}, pod: pod(labelled(map[string]string{"DBBranch": "release-7"})), wanted: true},
		"excluded prefix is empty, no label": {selector: "{}", exclude: []string{""}, pod: pod(), wanted: true},
		"bare pod":                           {selector: `{"matchLabels":{"app":"mysql"}}`, pod: pod(bare, labelled(map[string]string{"app": "mysql"})), wanted: true},
		"bare pod, no match":                 {selector: `{"matchLabels":{"app":"mysql"}}`, pod: pod(bare)},
		"bare pod, opted out":                {selector: "{}", pod: pod(bare, enabled("false"))},
		"bare pod, opted in":                 {pod: pod(bare, enabled("true")), wanted: true},
		"bare pod, host network":             {selector: "{}", pod: pod(bare, func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		"host network":                       {selector: "{}", pod: pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
	} {
		selector, err := parseSelector(c.selector)
		if err != nil {
			t.Errorf("%s: ParseSelector returns error %v, want none", name, err)
			continue
		}
		id, wanted, err := identity.Adoption{Selector: selector, ExcludeDBBranch: c.exclude}.Wants(c.pod, identity.NewKinds(c.kinds...))
		message := ""
		if err != nil {
			message = err.Error()
		}
		if wanted != c.wanted || message != c.wantErr || wanted && id.Key() != "db/mysql-0" {
			t.Errorf("%s: Wants returns %v, %v, error %q; want %v for db/mysql-0, error %q", name, id, wanted, message, c.wanted, c.wantErr)
		}
	}
}

// parseSelector converts the result of ParseSelector to a labels.Selector, which can select pods. It returns nil for nil.
func parseSelector(text string) (labels.Selector, error) {
	s, err := identity.ParseSelector(text)
	if s == nil || err != nil {
		return nil, err
	}
	return metav1.LabelSelectorAsSelector(s)
}

func TestParseSelector(t *testing.T) {
	for text, want := range map[string]string{
		`{"matchLables":{"app":"x"}}`:                          `not a LabelSelector in JSON: unknown field "matchLables"`,
		`{"matchLabels":{"app":"x"}`:                           `not a LabelSelector in JSON: unexpected end of JSON input`,
		`{"matchLabels":{"app":"x"}}}`:                         `not a LabelSelector in JSON: invalid character '}' after top-level value`,
		`{"matchExpressions":[{"key":"a","operator":"Like"}]}`: `"Like" is not a valid label selector operator`,
		"\x00":        `the selector must name labels, such as app=mysql,env!=test, and have no zero byte`,
		"app=x\x00,b": `the selector must name labels, such as app=mysql,env!=test, and have no zero byte`,
		`app in x`:    `unable to parse requirement: found 'x' expected: '('`,
	} {
		if _, err := parseSelector(text); err == nil || err.Error() != want {
			t.Errorf("ParseSelector(%q): error %v, want %s", text, err, want)
		}
	}
	if s, err := parseSelector(" "); s != nil || err != nil {
		t.Errorf("ParseSelector of a blank text returns %v, %v; want nil, nil", s, err)
	}
}
