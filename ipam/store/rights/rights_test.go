// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package rights_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"fixedip.io/fixedip/ipam/store/rights"
)

// TestCheck checks the error for missing rights. It also checks that Check returns no error if a kind is not installed, or
// if the API server does not respond.
func TestCheck(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "apps", Version: "v1"}, {Version: "v1"}})
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, meta.RESTScopeRoot)
	deployments := rights.Need{Kind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Verbs: []string{"get", "list", "watch"}, Setting: "workloads"}
	nodes := rights.Need{Kind: schema.GroupKind{Kind: "Node"}, Verbs: []string{"patch"}, Setting: "protectNodesFrom"}
	absent := rights.Need{Kind: schema.GroupKind{Group: "db.example.com", Kind: "Cluster"}, Verbs: []string{"list"}, Setting: "workloads"}
	for name, c := range map[string]struct {
		needs []rights.Need
		// granted are rights as "verb resource.group".
		granted []string
		// answers is the number of reviews to which the API server responds, and fails the error of each later review.
		fails   error
		answers int
		// late is the number of reviews after which all rights are granted; 0: never.
		late int
		want string
	}{
		"no needs":          {},
		"all are granted":   {needs: []rights.Need{deployments, nodes}, granted: []string{"get deployments.apps", "list deployments.apps", "watch deployments.apps", "patch nodes"}},
		"not installed yet": {needs: []rights.Need{absent}},
		"some are missing": {
			needs: []rights.Need{deployments, nodes, absent}, granted: []string{"get deployments.apps"},
			want: "this program lacks rights that its configuration needs: list, watch deployments.apps (for workloads); patch nodes (for protectNodesFrom); add these rights to ClusterRole fixedip-controller, as the chart does, or remove the settings that need them",
		},
		"the role is applied at the same time": {needs: []rights.Need{deployments}, late: 4},
		"the API server does not respond":      {needs: []rights.Need{deployments}, fails: errors.New("connection refused")},
		"the API server stops responding after it has denied the rights": {
			needs: []rights.Need{deployments}, answers: 4, fails: errors.New("client rate limiter Wait returned an error"),
			want: "this program lacks rights that its configuration needs: get, list, watch deployments.apps (for workloads); add these rights to ClusterRole fixedip-controller, as the chart does, or remove the settings that need them",
		},
	} {
		bubble(t, name, func(t *testing.T) {
			asked := 0
			client := fake.NewClientset()
			client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
				review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
				r := review.Spec.ResourceAttributes
				asked++
				review.Status.Allowed = asked > c.late && c.late > 0 || slices.Contains(c.granted, r.Verb+" "+schema.GroupResource{Group: r.Group, Resource: r.Resource}.String())
				if asked <= c.answers {
					return true, review, nil
				}
				return true, review, c.fails
			})
			err := rights.Check(t.Context(), client.AuthorizationV1().SelfSubjectAccessReviews(), mapper, "fixedip-controller", c.needs...)
			if got := text(err); got != c.want {
				t.Errorf("got the error %q, want %q", got, c.want)
			}
		})
	}
}

// bubble runs a subtest with a fake clock, which advances when all goroutines of the subtest are blocked.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
