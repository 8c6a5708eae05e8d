// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package dryrun_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/store/dryrun"
)

// TestClient checks that each kind of write is logged once and nothing is stored.
func TestClient(t *testing.T) {
	ctx := context.Background()
	stands := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "1"}}
	}
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(stands()).WithStatusSubresource(&corev1.Pod{}).Build()
	var before corev1.Pod
	if err := api.Get(ctx, client.ObjectKeyFromObject(stands()), &before); err != nil {
		t.Fatal(err)
	}
	var told []string
	c := dryrun.New(api, funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{}))
	changed := func() *corev1.Pod {
		pod := before.DeepCopy()
		pod.Labels = map[string]string{"a": "b"}
		pod.Status.Phase = corev1.PodRunning
		return pod
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"c"}}}`))
	for name, write := range map[string]func() error{
		"create": func() error {
			return c.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-1"}})
		},
		"update": func() error { return c.Update(ctx, changed()) },
		"patch":  func() error { return c.Patch(ctx, stands(), patch) },
		"delete": func() error { return c.Delete(ctx, stands(), client.Preconditions{UID: &before.UID}) },
		"status": func() error { return c.Status().Update(ctx, changed()) },
		"patch of status": func() error {
			return c.Status().Patch(ctx, stands(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`)))
		},
	} {
		told = nil
		count := c.Writes()
		for range 2 {
			if err := write(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if len(told) != 1 || !strings.Contains(told[0], `"msg"="Would write"`) || !strings.Contains(told[0], `"kind"="Pod" "object"="db/mysql-`) || c.Writes() != count+1 {
			t.Errorf("%s: told %q, %d writes after %d", name, told, c.Writes(), count)
		}
	}

	told = nil
	if err := c.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "ticket"}}); err != nil {
		t.Error(err)
	}
	if err := c.Update(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "ticket"}}); err != nil {
		t.Error(err)
	}
	if len(told) > 0 || c.Writes() != 6 {
		t.Errorf("told %q, %d writes", told, c.Writes())
	}

	// A write that the API server refuses is not logged.
	refused := dryrun.New(refusing{api}, funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{}))
	if err := refused.Update(ctx, changed()); !apierrors.IsConflict(err) || len(told) > 0 || refused.Writes() > 0 {
		t.Errorf("refused: %v; told %q, %d writes", err, told, refused.Writes())
	}

	var pods corev1.PodList
	if err := api.List(ctx, &pods); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]corev1.Pod{before}, pods.Items); diff != "" {
		t.Errorf("something was stored (-want +got): %s", diff)
	}
}

type refusing struct{ client.Client }

func (refusing) Update(context.Context, client.Object, ...client.UpdateOption) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "mysql-0", errors.New("changed"))
}

type passed struct{ body string }

func (p *passed) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		data, _ := io.ReadAll(r.Body)
		p.body = string(data)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestGuard(t *testing.T) {
	const deletion = `{"kind":"DeleteOptions","dryRun":["All"]}`
	for name, c := range map[string]struct {
		method, query, body string
		passes              bool
	}{
		"a read":                        {method: http.MethodGet, passes: true},
		"a write":                       {method: http.MethodPost, body: "{}"},
		"a dry run":                     {method: http.MethodPost, query: "?dryRun=All", body: "{}", passes: true},
		"a patch":                       {method: http.MethodPatch, query: "?fieldManager=x", body: "[]"},
		"a deletion":                    {method: http.MethodDelete},
		"a deletion with a body":        {method: http.MethodDelete, query: "?dryRun=All", body: `{"kind":"DeleteOptions"}`},
		"a dry deletion":                {method: http.MethodDelete, body: deletion, passes: true},
		"a dry deletion without a body": {method: http.MethodDelete, query: "?dryRun=All", passes: true},
	} {
		next := &passed{}
		var body io.Reader
		if c.body != "" {
			body = strings.NewReader(c.body)
		}
		r, err := http.NewRequest(c.method, "https://api/x"+c.query, body)
		if err != nil {
			t.Fatal(err)
		}
		response, err := dryrun.Guard(next).RoundTrip(r)
		if (err == nil) != c.passes || c.passes && next.body != c.body {
			t.Errorf("%s: %v; the body that arrived is %q", name, err, next.body)
		}
		if err == nil {
			response.Body.Close()
		}
	}
}
