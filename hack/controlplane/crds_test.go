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

// slowDiscovery is a discovery client with prepared responses. A request for all groups gets the next response of the
// field all, and a request for one group gets the next response of the field one. The last response of each field is
// repeated.
type slowDiscovery struct {
	discovery.DiscoveryInterface
	all, one []response
	// requests counts the requests for all groups and for one group.
	requests struct{ all, one int }
}

// response is a response of discovery: the listed kinds of cilium.io/v2, or an error.
type response struct {
	kinds []string
	err   error
}

func (r response) list() *metav1.APIResourceList {
	l := &metav1.APIResourceList{GroupVersion: "cilium.io/v2"}
	for _, k := range r.kinds {
		l.APIResources = append(l.APIResources, metav1.APIResource{Kind: k})
	}
	return l
}

func next(responses []response, requests *int) response {
	r := responses[min(*requests, len(responses)-1)]
	*requests++
	return r
}

func (d *slowDiscovery) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	r := next(d.all, &d.requests.all)
	// The same kind in another version does not count.
	return nil, []*metav1.APIResourceList{{GroupVersion: "cilium.io/v1", APIResources: []metav1.APIResource{{Kind: "CiliumNode"}}}, r.list()}, r.err
}

func (d *slowDiscovery) ServerResourcesForGroupVersion(gv string) (*metav1.APIResourceList, error) {
	if gv != "cilium.io/v2" {
		return nil, fmt.Errorf("unexpected request for the group version %s", gv)
	}
	r := next(d.one, &d.requests.one)
	return r.list(), r.err
}

// TestReadyWhenKindsAreDiscovered checks that waitDiscovered returns only when both forms of discovery list every kind.
// A control plane once reported that it was ready while discovery listed one of two kinds, and the first request of a
// test failed.
func TestReadyWhenKindsAreDiscovered(t *testing.T) {
	definition := func(kind string) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "cilium.io", Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v2", Served: true}, {Name: "v2alpha1"}},
		}}
	}
	definitions := []*apiextensionsv1.CustomResourceDefinition{definition("CiliumNode"), definition("CiliumEndpoint")}
	both := response{kinds: []string{"CiliumEndpoint", "CiliumNode"}}
	half := response{kinds: []string{"CiliumEndpoint"}}
	down := response{err: errors.New("not yet")}
	for name, test := range map[string]struct {
		all, one []response
		// requests is the minimum number of requests for all groups; 0 if the wait times out.
		requests int
		// err is part of the expected error; empty if none is expected.
		err string
	}{
		"both kinds in the first response": {all: []response{both}, one: []response{both}, requests: 1},
		"one kind after the other":         {all: []response{{}, half, both}, one: []response{both}, requests: 3},
		"one group is discovered later":    {all: []response{both}, one: []response{down, half, half, both}, requests: 3},
		"an error first":                   {all: []response{down, both}, one: []response{both}, requests: 2},
		"one kind is never listed":         {all: []response{half}, one: []response{both}, err: "cilium.io/v2, Kind=CiliumNode"},
		"errors only":                      {all: []response{down}, one: []response{both}, err: "not yet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if test.err != "" {
				ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
			}
			d := &slowDiscovery{all: test.all, one: test.one}
			err := waitDiscovered(ctx, d, definitions)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got error %v, want one that contains %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d.requests.all < test.requests {
				t.Errorf("waitDiscovered returned after %d requests for all groups, want at least %d", d.requests.all, test.requests)
			}
		})
	}
}
