// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package workloads

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
)

// FuzzDecode checks that decode accepts any object and does not change the object, that decoded numbers are not negative,
// and that the first pod of a workload with replicas and without reserved ordinals is not excluded.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"namespace":"db","name":"web"},"spec":{"replicas":3,"strategy":{"rollingUpdate":{"maxSurge":"25%"}}}}`,
		`{"apiVersion":"apps.kruise.io/v1beta1","kind":"StatefulSet","metadata":{"namespace":"db","name":"web"},"spec":{"replicas":2147483647,"ordinals":{"start":2147483647},"template":{"metadata":{"annotations":{"fixedip.io/enabled":"true"}}}}}`,
		`{"apiVersion":"a.b/v1","kind":"Thing","spec":{"replicas":4294967296,"ordinals":{"start":-1},"updateStrategy":{"maxSurge":-3},"strategy":{"canary":{"maxSurge":"9999999999999%"}}}}`,
		`{"apiVersion":"a.b/v1","kind":"Thing","spec":{"replicas":"many","ordinals":[],"strategy":{"rollingUpdate":7},"template":null}}`,
		`{"apiVersion":"a/b/c","kind":"","metadata":{"ownerReferences":[{"controller":true,"kind":"X"},null]}}`,
		`{"kind":"Thing","spec":{"replicas":1.5,"template":{"metadata":{"annotations":{"a":1}}}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var o unstructured.Unstructured
		if err := o.UnmarshalJSON(data); err != nil {
			return
		}
		before := o.DeepCopy()
		s, err := decode(&o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, &o); diff != "" {
			t.Errorf("decode changed the object (-before +after): %s", diff)
		}
		w := s.workload
		if w.FirstOrdinal < 0 || w.Surge < 0 || w.Replicas != nil && *w.Replicas < 0 {
			t.Errorf("got replicas %d, first ordinal %d, surge %d; want no negative number", ptr.Deref(w.Replicas, 0), w.FirstOrdinal, w.Surge)
		}
		replicas, hasReplicas, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		first, numbered, _ := unstructured.NestedInt64(o.Object, "spec", "ordinals", "start")
		if hasReplicas && replicas > 0 && (!numbered || first >= 0 && first <= math.MaxInt32) {
			name := fmt.Sprintf("%s-%d", w.Name, first)
			if w.Excludes(name) && len(w.Reserved) == 0 {
				t.Errorf("the workload with %d replicas and first ordinal %d excludes pod %s, its first one", replicas, first, name)
			}
		}
	})
}
