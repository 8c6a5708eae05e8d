// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/scaledown"
	"fixedip.io/fixedip/ipam/scheme"
)

// TestRun checks which finalizers and annotations Run removes, and that Run starts the controller again if it fails.
func TestRun(t *testing.T) {
	const autoscaler = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		// holder is the leader when Run begins; empty: none.
		holder string
		// noDeployment is true if no Deployment exists.
		noDeployment bool
		// refuse returns the error of an update or patch of an object.
		refuse func(client.Object) error
		// err is a part of the error of Run; empty: none.
		err      string
		replicas int32
		// finalizers are those of the FixedIP afterwards.
		finalizers  []string
		annotations map[string]string
	}{
		"a running controller": {
			replicas: 0, finalizers: []string{"example.com/other"}, annotations: map[string]string{"other": "x"},
		},
		"no Deployment": {
			noDeployment: true, finalizers: []string{"example.com/other"}, annotations: map[string]string{"other": "x"},
		},
		"another controller is the leader": {
			holder: "somewhere", err: `the Lease fixedip-system/cilium-ipam-leader (last known holder: "somewhere")`,
			replicas: 2, finalizers: []string{v1alpha1.Finalizer, "example.com/other"}, annotations: map[string]string{"other": "x", autoscaler: "true", scaledown.ListOfOurs: autoscaler},
		},
		"a FixedIP that cannot be written": {
			refuse: func(o client.Object) error {
				if _, ok := o.(*v1alpha1.FixedIP); ok {
					return refused
				}
				return nil
			},
			err:      "remove the finalizer fixedip.io/pool-entry of FixedIP default/web-0: refused",
			replicas: 2, finalizers: []string{v1alpha1.Finalizer, "example.com/other"}, annotations: map[string]string{"other": "x", autoscaler: "true", scaledown.ListOfOurs: autoscaler},
		},
		"a Node that cannot be written": {
			refuse: func(o client.Object) error {
				if _, ok := o.(*corev1.Node); ok {
					return refused
				}
				return nil
			},
			replicas: 0, finalizers: []string{"example.com/other"}, annotations: map[string]string{"other": "x", autoscaler: "true", scaledown.ListOfOurs: autoscaler},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kinds, err := scheme.New()
			if err != nil {
				t.Fatal(err)
			}
			deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: "fixedip-controller"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}}
			record := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", Finalizers: []string{v1alpha1.Finalizer, "example.com/other"}}, Spec: v1alpha1.FixedIPSpec{IPs: []string{"10.240.1.254"}}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: map[string]string{"other": "x", autoscaler: "true", scaledown.ListOfOurs: autoscaler}}}
			objects := []client.Object{record, node}
			if !c.noDeployment {
				objects = append(objects, deployment)
			}
			refuse := func(o client.Object) error {
				if c.refuse == nil {
					return nil
				}
				return c.refuse(o)
			}
			api := fake.NewClientBuilder().WithScheme(kinds).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
				Update: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
					if err := refuse(o); err != nil {
						return err
					}
					return w.Update(ctx, o, opts...)
				},
				Patch: func(ctx context.Context, w client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					if err := refuse(o); err != nil {
						return err
					}
					return w.Patch(ctx, o, p, opts...)
				},
			}).Build()
			leases := kubernetesfake.NewClientset()
			if c.holder != "" {
				now := metav1.NewMicroTime(time.Now())
				_, err := leases.CoordinationV1().Leases("fixedip-system").Create(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: "cilium-ipam-leader"},
					Spec:       coordinationv1.LeaseSpec{HolderIdentity: &c.holder, LeaseDurationSeconds: ptr.To[int32](60), AcquireTime: &now, RenewTime: &now},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			u := &Uninstall{
				Client: api, Kubernetes: leases, Identity: "test",
				Deployment:    types.NamespacedName{Namespace: "fixedip-system", Name: "fixedip-controller"},
				Lease:         types.NamespacedName{Namespace: "fixedip-system", Name: "cilium-ipam-leader"},
				LeaseDuration: time.Minute, RenewDeadline: 30 * time.Second, RetryPeriod: 50 * time.Millisecond,
			}
			limit := time.Minute
			if c.holder != "" {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if err := u.Run(ctx); (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got error %v, want an error that contains %q", err, c.err)
			}
			for _, o := range objects {
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(c.finalizers, record.Finalizers); diff != "" {
				t.Errorf("finalizers of the FixedIP (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.annotations, node.Annotations); diff != "" {
				t.Errorf("annotations of the Node (-want +got):\n%s", diff)
			}
			if !c.noDeployment && *deployment.Spec.Replicas != c.replicas {
				t.Errorf("got %d replicas of the controller, want %d", *deployment.Spec.Replicas, c.replicas)
			}
		})
	}
}
