// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package rights_test

import (
	"errors"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"fixedip.io/fixedip/ipam/store/rights"
)

// TestCheck checks the error for missing rights, and that kinds that are not installed and an API server that does not respond are no
// error.
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
		fails   error
		want    string
	}{
		"no needs":          {},
		"all are granted":   {needs: []rights.Need{deployments, nodes}, granted: []string{"get deployments.apps", "list deployments.apps", "watch deployments.apps", "patch nodes"}},
		"not installed yet": {needs: []rights.Need{absent}},
		"some are missing": {
			needs: []rights.Need{deployments, nodes, absent}, granted: []string{"get deployments.apps"},
			want: "this program lacks rights that its configuration needs: list, watch deployments.apps (for workloads); patch nodes (for protectNodesFrom); add them to ClusterRole fixedip-controller, or remove the settings (the chart adds them by itself)",
		},
		"the API server does not respond": {needs: []rights.Need{deployments}, fails: errors.New("connection refused")},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
				review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
				r := review.Spec.ResourceAttributes
				review.Status.Allowed = slices.Contains(c.granted, r.Verb+" "+schema.GroupResource{Group: r.Group, Resource: r.Resource}.String())
				return true, review, c.fails
			})
			err := rights.Check(t.Context(), client.AuthorizationV1().SelfSubjectAccessReviews(), mapper, "fixedip-controller", c.needs...)
			if got := text(err); got != c.want {
				t.Errorf("got the error %q, want %q", got, c.want)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
