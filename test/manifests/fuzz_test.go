// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// admission validates FixedIPs as an API server does with the CRD in the manifests.
type admission struct {
	schema     *structuralschema.Structural
	validator  validation.SchemaValidator
	expression *cel.Validator
}

func newAdmission(t testing.TB) admission {
	t.Helper()
	objects, err := cluster.ReadManifests(filepath.Join(root, "manifests", "crd"))
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects[0].Object, &crd, true); err != nil {
		t.Fatal(err)
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		t.Fatal(err)
	}
	a := admission{}
	if a.schema, err = structuralschema.NewStructural(&props); err != nil {
		t.Fatal(err)
	}
	if a.validator, _, err = validation.NewSchemaValidator(&props); err != nil {
		t.Fatal(err)
	}
	a.expression = cel.NewValidator(a.schema, true, celconfig.PerCallLimit)
	return a
}

// refuses returns the errors for which a new FixedIP is refused; none if it is accepted.
func (a admission) refuses(object map[string]any) field.ErrorList {
	errs := validation.ValidateCustomResource(nil, object, a.validator)
	if len(errs) > 0 {
		return errs
	}
	errs, _ = a.expression.Validate(context.Background(), nil, a.schema, object, nil, celconfig.RuntimeCELCostBudget)
	return errs
}

// FuzzFixedIP checks every FixedIP that the API server accepts: the programs can read its addresses, at most one of each
// family, and its TTL. Its pool entry is owned by its pod in its namespace, names its workload unless the pod is a bare pod,
// and does not count as the entry of an unreserved pod. If the API server refuses a FixedIP, the error must name a field of
// spec.
func FuzzFixedIP(f *testing.F) {
	for _, s := range []struct {
		ips, node, pod, apiVersion, kind, owner string
		ttl                                     int64
	}{
		{"10.240.1.10", "node-1", "mysql-0", "apps/v1", "StatefulSet", "mysql", 1800},
		{"10.240.1.10,fd00:240::1:a", "", "mysql-0", "apps/v1", "StatefulSet", "mysql", 0},
		{"FD00::1", "node-1", "mysql-0", "apps/v1", "StatefulSet", "mysql", -1},
		{"::ffff:10.0.0.1", "a/b", "b/web-0", "foo/v1", "Pod", "web", 9223372036854775807},
		{"10.0.0.1,10.0.0.2", "node 1", "web-0 [restored]", "v1", "Pod", "web-0", 1080000000},
		{"fe80::1%eth0", "node-1", "leaving", "a/b/c", "A/B", "x/y", 86400},
		{"010.0.0.1", "fixedip.io/moved", "..", "", "", "", 0},
		{"", "", "web-0", "apps.kruise.io/v1beta1", "StatefulSet", "web", 9223372037},
		{"10.0.0.1,10.0.0.1,::1", "", "web-0", "apps/v1", "ReplicaSet", "web", 3600},
	} {
		f.Add(s.ips, s.node, s.pod, s.apiVersion, s.kind, s.owner, s.ttl)
	}
	server := newAdmission(f)
	good := map[string]any{"metadata": map[string]any{"name": "mysql-0"}, "spec": map[string]any{"podName": "mysql-0", "ips": []any{"10.240.1.10", "fd00:240::1:a"}, "owner": map[string]any{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "mysql"}, "reclaim": map[string]any{"ttlSeconds": int64(1800)}}}
	if errs := server.refuses(good); len(errs) > 0 {
		f.Fatalf("a valid FixedIP is refused: %v", errs)
	}
	f.Fuzz(func(t *testing.T, ips, node, pod, apiVersion, kind, owner string, ttl int64) {
		const namespace = "db"
		for _, text := range []*string{&ips, &node, &pod, &apiVersion, &kind, &owner} {
			*text = strings.ToValidUTF8(*text, "?")
		}
		spec := map[string]any{"podName": pod, "nodeName": node, "owner": map[string]any{"apiVersion": apiVersion, "kind": kind, "name": owner}}
		if ips != "" {
			var list []any
			for ip := range strings.SplitSeq(ips, ",") {
				list = append(list, ip)
			}
			spec["ips"] = list
		}
		if ttl != 0 {
			spec["reclaim"] = map[string]any{"ttlSeconds": ttl}
		}
		object := map[string]any{"apiVersion": "fixedip.io/v1alpha1", "kind": "FixedIP", "metadata": map[string]any{"namespace": namespace, "name": pod}, "spec": spec}
		if errs := server.refuses(object); len(errs) > 0 {
			for _, e := range errs {
				if !strings.HasPrefix(e.Field, "spec") {
					t.Errorf("the refusal names no field of spec: %v", e)
				}
			}
			return
		}
		var record v1alpha1.FixedIP
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &record); err != nil {
			t.Fatalf("an accepted FixedIP cannot be decoded: %v", err)
		}
		families := map[address.Family]bool{}
		for _, ip := range record.Spec.IPs {
			a, err := address.Parse(ip)
			if err != nil || families[address.Of(a)] {
				t.Errorf("spec.ips %q is accepted, but has an invalid IP or two IPs of one family (parse error: %v)", record.Spec.IPs, err)
				continue
			}
			families[address.Of(a)] = true
		}
		if ttl := time.Duration(record.Spec.Reclaim.TTLSeconds) * time.Second; ttl < 0 {
			t.Errorf("spec.reclaim.ttlSeconds %d is accepted, but the duration is %v", record.Spec.Reclaim.TTLSeconds, ttl)
		}
		id := identity.Identity{Namespace: namespace, PodName: record.Spec.PodName, Owner: identity.OwnerOf(&record)}
		e := id.Entry()
		if !e.OwnedBy(pool.OwnerKey(namespace, pod)) {
			t.Errorf("got pool entry %+v, want the owner %s", e, namespace+"/"+record.Spec.PodName)
		}
		if e.IsUnreserved() {
			t.Errorf("pool entry %+v counts as the entry of an unreserved pod, want an entry with a reservation", e)
		}
		if label, name, ok := e.WorkloadRef(); id.IsBarePod() != e.IsBarePod() || !id.IsBarePod() && (!ok || name != owner || !strings.HasPrefix(label, kind)) {
			t.Errorf("pool entry %+v: got workload %s %s, want %s %s", e, label, name, kind, owner)
		}
	})
}

// TestFixedIPName checks that a FixedIP must have the name of its pod, unless it is the FixedIP of a slot (finding C10
// in docs/project/findings.md).
func TestFixedIPName(t *testing.T) {
	server := newAdmission(t)
	for name, c := range map[string]struct {
		name string
		slot bool
		want string
	}{
		"name of the pod":    {name: "mysql-0"},
		"another name":       {name: "mysql-1", want: "spec.podName"},
		"slot, another name": {name: "mysql-10-0-1-6", slot: true},
	} {
		spec := map[string]any{"podName": "mysql-0", "owner": map[string]any{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "mysql"}}
		if c.slot {
			spec["assignedTo"] = "Slot"
		}
		errs := server.refuses(map[string]any{"apiVersion": "fixedip.io/v1alpha1", "kind": "FixedIP", "metadata": map[string]any{"namespace": "db", "name": c.name}, "spec": spec})
		if (len(errs) > 0) != (c.want != "") || len(errs) > 0 && errs[0].Field != c.want {
			t.Errorf("%s: got errors %v, want an error for field %q (empty: no error)", name, errs, c.want)
		}
	}
}
