// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package dryrun_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/store/dryrun"
)

// TestRun checks that each write that the API server accepts is logged once, without the resourceVersion of the object.
func TestRun(t *testing.T) {
	ctx := context.Background()
	var logged []string
	run := &dryrun.Run{Log: funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})}
	api := &server{t: t, status: http.StatusOK}
	c, err := client.New(&rest.Config{Host: "https://api", Transport: run.Wrap(api)}, client.Options{
		Scheme: clientgoscheme.Scheme, Mapper: mapper(), DryRun: ptr.To(true),
	})
	if err != nil {
		t.Fatal(err)
	}
	version := 1
	object := func() *unstructured.Unstructured {
		version++
		obj := &unstructured.Unstructured{}
		obj.SetAPIVersion("fixedip.io/v1alpha1")
		obj.SetKind("FixedIP")
		obj.SetNamespace("db")
		obj.SetName("mysql-0")
		obj.SetUID("1")
		obj.SetResourceVersion(strconv.Itoa(version))
		return obj
	}
	unversioned := func() *unstructured.Unstructured {
		obj := object()
		obj.SetResourceVersion("")
		return obj
	}
	yaml := func(text string) func() error {
		return func() error { return c.Patch(ctx, object(), client.RawPatch(types.ApplyYAMLPatchType, []byte(text))) }
	}
	uid := types.UID("1")
	for name, write := range map[string]struct {
		do   func() error
		want string
	}{
		"create": {func() error { return c.Create(ctx, unversioned()) }, `"method"="POST" "path"="/apis/fixedip.io/v1alpha1/namespaces/db/fixedips"`},
		"update": {func() error { return c.Update(ctx, object()) }, `"method"="PUT" "path"="/apis/fixedip.io/v1alpha1/namespaces/db/fixedips/mysql-0"`},
		"patch": {func() error {
			return c.Patch(ctx, object(), client.RawPatch(types.JSONPatchType, []byte(`[{"op":"test"}]`)))
		}, `"method"="PATCH" "path"="/apis/fixedip.io/v1alpha1/namespaces/db/fixedips/mysql-0" "body"="[{`},
		"body that is not JSON":         {yaml("spec: {}"), `"method"="PATCH" "path"="/apis/fixedip.io/v1alpha1/namespaces/db/fixedips/mysql-0" "body"=""`},
		"another body that is not JSON": {yaml("spec: {ips: []}"), `"method"="PATCH" "path"="/apis/fixedip.io/v1alpha1/namespaces/db/fixedips/mysql-0" "body"=""`},
		"delete":                        {func() error { return c.Delete(ctx, object(), client.Preconditions{UID: &uid}) }, `"method"="DELETE" "path"="/apis/fixedip.io/v1alpha1/namespaces/db/fixedips/mysql-0"`},
		"status":                        {func() error { return c.Status().Update(ctx, object()) }, `"path"="/apis/fixedip.io/v1alpha1/namespaces/db/fixedips/mysql-0/status"`},
	} {
		logged = nil
		count := run.Writes()
		for range 2 {
			if err := write.do(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if len(logged) != 1 || !strings.Contains(logged[0], `"msg"="Would write"`) || !strings.Contains(logged[0], write.want) || strings.Contains(logged[0], "resourceVersion") || run.Writes() != count+1 {
			t.Errorf("%s: logged %q and counted %d writes after %d; want one line with %q and one more write", name, logged, run.Writes(), count, write.want)
		}
	}

	// A write that the API server refuses is not logged.
	logged, api.status = nil, http.StatusConflict
	refused := object()
	refused.SetName("mysql-1")
	if err := c.Update(ctx, refused); err == nil || len(logged) > 0 || run.Writes() != 7 {
		t.Errorf("a refused write: error %v, logged %q, counted %d writes; want an error, no log and 7 writes", err, logged, run.Writes())
	}
}

func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(schema.GroupVersionKind{Group: "fixedip.io", Version: "v1alpha1", Kind: "FixedIP"}, meta.RESTScopeNamespace)
	return m
}

// server responds to every request with the same FixedIP, and fails the test if a request is not a dry run.
type server struct {
	t      *testing.T
	status int
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	sent, _ := io.ReadAll(r.Body)
	if r.URL.Query().Get("dryRun") != "All" && !strings.Contains(string(sent), `"dryRun":["All"]`) {
		s.t.Errorf("%s %s was sent without dryRun=All", r.Method, r.URL)
	}
	object := `{"apiVersion":"fixedip.io/v1alpha1","kind":"FixedIP","metadata":{"namespace":"db","name":"mysql-0","resourceVersion":"1"}}`
	return &http.Response{StatusCode: s.status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(object)), Request: r}, nil
}

// passed records the body of a request that the round tripper of Wrap forwards.
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
		"a read":                              {method: http.MethodGet, passes: true},
		"a write":                             {method: http.MethodPost, body: "{}"},
		"a dry run":                           {method: http.MethodPost, query: "?dryRun=All", body: "{}", passes: true},
		"a patch":                             {method: http.MethodPatch, query: "?fieldManager=x", body: "[]"},
		"a deletion":                          {method: http.MethodDelete},
		"a deletion whose body has no dryRun": {method: http.MethodDelete, query: "?dryRun=All", body: `{"kind":"DeleteOptions"}`},
		"a dry deletion by its body":          {method: http.MethodDelete, body: deletion, passes: true},
		"a dry deletion by its query":         {method: http.MethodDelete, query: "?dryRun=All", passes: true},
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
		response, err := (&dryrun.Run{Log: logr.Discard()}).Wrap(next).RoundTrip(r)
		if (err == nil) != c.passes || c.passes && next.body != c.body {
			t.Errorf("%s: got error %v and sent body %q; want sent: %v", name, err, next.body, c.passes)
		}
		if err == nil {
			response.Body.Close()
		}
	}
}
