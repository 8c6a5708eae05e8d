// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
)

// slowDiscovery answers each request with the next element of all or one, and repeats the last element.
type slowDiscovery struct {
	discovery.DiscoveryInterface
	all, one []answer
	// asked counts the requests for all groups and for one group.
	asked struct{ all, one int }
}

// answer lists kinds of cilium.io/v2, or is an error.
type answer struct {
	kinds []string
	err   error
}

func (a answer) list() *metav1.APIResourceList {
	l := &metav1.APIResourceList{GroupVersion: "cilium.io/v2"}
	for _, k := range a.kinds {
		l.APIResources = append(l.APIResources, metav1.APIResource{Kind: k})
	}
	return l
}

func next(answers []answer, asked *int) answer {
	a := answers[min(*asked, len(answers)-1)]
	*asked++
	return a
}

func (d *slowDiscovery) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	a := next(d.all, &d.asked.all)
	// The same kind in another version does not count.
	return nil, []*metav1.APIResourceList{{GroupVersion: "cilium.io/v1", APIResources: []metav1.APIResource{{Kind: "CiliumNode"}}}, a.list()}, a.err
}

func (d *slowDiscovery) ServerResourcesForGroupVersion(gv string) (*metav1.APIResourceList, error) {
	if gv != "cilium.io/v2" {
		return nil, fmt.Errorf("asked for %s", gv)
	}
	a := next(d.one, &d.asked.one)
	return a.list(), a.err
}

// TestReadyWhenKindsAreDiscovered checks that waitDiscovered returns only when both forms of discovery list every kind. A
// control plane once reported ready while discovery listed one of two kinds, and the first request of a test failed.
func TestReadyWhenKindsAreDiscovered(t *testing.T) {
	definition := func(kind string) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "cilium.io", Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v2", Served: true}, {Name: "v2alpha1"}},
		}}
	}
	definitions := []*apiextensionsv1.CustomResourceDefinition{definition("CiliumNode"), definition("CiliumEndpoint")}
	both := answer{kinds: []string{"CiliumEndpoint", "CiliumNode"}}
	half := answer{kinds: []string{"CiliumEndpoint"}}
	down := answer{err: errors.New("not yet")}
	for name, test := range map[string]struct {
		all, one []answer
		// asked is the minimum number of requests for all groups; 0 if the wait times out.
		asked int
		fails string
	}{
		"at once":              {all: []answer{both}, one: []answer{both}, asked: 1},
		"one after the other":  {all: []answer{{}, half, both}, one: []answer{both}, asked: 3},
		"all groups are ahead": {all: []answer{both}, one: []answer{down, half, half, both}, asked: 3},
		"an error passes":      {all: []answer{down, both}, one: []answer{both}, asked: 2},
		"never":                {all: []answer{half}, one: []answer{both}, fails: "cilium.io/v2, Kind=CiliumNode"},
		"never one answer":     {all: []answer{down}, one: []answer{both}, fails: "not yet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if test.fails != "" {
				ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
			}
			d := &slowDiscovery{all: test.all, one: test.one}
			err := waitDiscovered(ctx, d, definitions)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("the error is %v, and should name %s", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d.asked.all < test.asked {
				t.Errorf("ready after %d answers, and discovery knew both kinds with answer %d", d.asked.all, test.asked)
			}
		})
	}
}
