// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/status"
	"fixedip.io/fixedip/test/gen"
)

const settings = `apiVersion: config.fixedip.io/v1alpha1
kind: FixedIPConfiguration
subnets: {clusterPools: [{cidr: 10.0.0.0/16}]}
`

var system = installation{cilium: "kube-system"}

// installed returns the objects of a healthy installation.
func installed() (objects []client.Object) {
	const namespace = "fixedip-system"
	objects = append(objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fixedip-config"}, Data: map[string]string{"config.yaml": settings}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"}, Data: map[string]string{"ipam": "crd", "routing-mode": "native"}})
	for _, name := range status.ProgramNames {
		of := status.LabelsOf(name)
		spec := corev1.PodSpec{
			Containers: []corev1.Container{{Name: name, Image: "registry.example.com/" + name + ":v0.1.0", Env: []corev1.EnvVar{{Name: "TOKEN", Value: "hunter2"}}}},
			Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "fixedip-config"},
			}}}},
		}
		lease := map[string]string{status.Controller: "cilium-ipam-leader", status.Scheduler: "fixedip-scheduler"}[name]
		objects = append(objects,
			&appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: of},
				Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](1), Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: of}, Spec: spec}},
				Status:     appsv1.DeploymentStatus{UpdatedReplicas: 1, ReadyReplicas: 1},
			},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-1", Labels: of}, Spec: spec, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}}},
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lease}, Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To(name + "-1"), RenewTime: &metav1.MicroTime{Time: time.Now().Add(time.Hour)},
			}})
	}
	agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium", Labels: map[string]string{"k8s-app": "cilium"}}}
	agents.Spec.Template.Spec.Containers = []corev1.Container{{Name: "cilium-agent", Image: "cilium:v1.19.1"}}
	agents.Status.DesiredNumberScheduled, agents.Status.NumberReady = 1, 1
	return append(objects, agents, gen.CiliumNode("node-1", "10.0.1.0/24"), gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) {
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReserved}}
	}))
}

// TestStatusGolden reads each state of an installation and compares the text and the JSON with golden files.
func TestStatusGolden(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no rights"))
	healthy := func(t *testing.T) *cluster { return fakeCluster(t, installed()...) }
	for name, world := range map[string]func(t *testing.T) *cluster{
		"status-healthy": healthy,
		"status-empty":   func(t *testing.T) *cluster { return fakeCluster(t) },
		"status-no-crds": func(t *testing.T) *cluster {
			return failing(t, healthy(t), &v1alpha1.FixedIPList{}, &meta.NoKindMatchError{})
		},
		"status-no-cilium": func(t *testing.T) *cluster {
			return failing(t, healthy(t), &ciliumv2.CiliumNodeList{}, &meta.NoKindMatchError{})
		},
		"status-no-rights":    func(t *testing.T) *cluster { return failing(t, healthy(t), &appsv1.DeploymentList{}, forbidden) },
		"status-no-pool-view": func(t *testing.T) *cluster { return failing(t, healthy(t), &ciliumv2.CiliumNodeList{}, forbidden) },
	} {
		t.Run(name, func(t *testing.T) {
			report, err := world(t).awaitHealthy(t.Context(), system, 0, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			var text, encoded bytes.Buffer
			if err := errors.Join(writeStatus(&text, report, now), write(&encoded, inJSON, report, nil)); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", text.Bytes())
			golden(t, name+".json", encoded.Bytes())
		})
	}
}

// TestStatusFails checks that an error that is not about rights is returned, and not reported as a state.
func TestStatusFails(t *testing.T) {
	broken := failing(t, fakeCluster(t, installed()...), &appsv1.DeploymentList{}, errors.New("connection refused"))
	if _, err := broken.awaitHealthy(t.Context(), system, time.Hour, time.Hour); err == nil || err.Error() != "read Deployments: connection refused" {
		t.Errorf("got the error %v, want read Deployments: connection refused", err)
	}
}

// TestStatusWait checks that --wait reads again until fixedip is healthy, the time is over or the user ends the command.
func TestStatusWait(t *testing.T) {
	for name, c := range map[string]struct {
		wait     time.Duration
		readings int
		healthy  bool
	}{
		"without --wait":   {0, 1, false},
		"becomes healthy":  {time.Hour, 3, true},
		"the time is over": {time.Nanosecond, 1, false},
		"canceled by user": {time.Hour, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			world, readings := fakeCluster(t, installed()...), 0
			world.api = interceptor.NewClient(world.api.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context, w client.WithWatch, into client.ObjectList, opts ...client.ListOption) error {
				err := w.List(ctx, into, opts...)
				if deployments, ok := into.(*appsv1.DeploymentList); ok {
					if readings++; readings < 3 {
						deployments.Items[0].Status.ReadyReplicas = 0
					}
					if name == "canceled by user" {
						cancel()
					}
				}
				return err
			}})
			report, err := world.awaitHealthy(ctx, system, c.wait, time.Millisecond)
			if canceled := ctx.Err() != nil; canceled != errors.Is(err, context.Canceled) {
				t.Fatalf("got the error %v, want an error only if the user ends the command", err)
			}
			if diff := cmp.Diff([]any{c.readings, c.healthy}, []any{readings, report.Healthy}); diff != "" {
				t.Errorf("readings and health (-want +got): %s", diff)
			}
		})
	}
}
