// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"fixedip.io/fixedip/ipam/core/identity"
)

// TestSetMAC checks that a pod gets a MAC address only if it requests one, and that the error of a scheduler without the
// right to patch pods says what helps.
func TestSetMAC(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web-0", errors.New("no role"))
	for name, c := range map[string]struct {
		annotations map[string]string
		refusal     error
		// patches is the number of patches of the pod. err is a part of the error; empty: none.
		patches int
		err     string
	}{
		"no MAC address is requested":           {nil, nil, 0, ""},
		"no MAC address is requested, no right": {nil, forbidden, 0, ""},
		"a MAC address is requested":            {map[string]string{identity.AnnotationStickyMAC: "true"}, nil, 1, ""},
		"the scheduler may not patch pods":      {map[string]string{identity.AnnotationStickyMAC: "true"}, forbidden, 1, "set the value stickyMAC of the chart to true, or remove the annotation"},
		"the API server fails":                  {map[string]string{identity.AnnotationStickyMAC: "true"}, errors.New("timeout"), 1, "to pod default/web-0: timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", UID: "1", Annotations: c.annotations}}
			api := fake.NewClientset(pod)
			patches := 0
			api.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				patches++
				return c.refusal != nil, nil, c.refusal
			})
			b := &Binder{Shared: &Shared{Client: api}}
			err := b.setMAC(t.Context(), pod, identity.Identity{}, []netip.Addr{netip.MustParseAddr("10.240.1.254")})
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || patches != c.patches {
				t.Errorf("got error %v after %d patches, want an error that contains %q after %d patches", err, patches, c.err, c.patches)
			}
		})
	}
}
