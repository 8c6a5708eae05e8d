// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/test/controllertest"
)

// restartCache is a cache with one FixedIP and its pod. pod is nil if there is no pod.
type restartCache struct {
	client.WithWatch
	record v1alpha1.FixedIP
	pod    *corev1.Pod
}

// Get returns the FixedIP or the pod, whatever the key is, and other objects from the caches of the stage.
func (c *restartCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	switch o := o.(type) {
	case *v1alpha1.FixedIP:
		c.record.DeepCopyInto(o)
		return nil
	case *corev1.Pod:
		if c.pod == nil {
			return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
		}
		c.pod.DeepCopyInto(o)
		return nil
	}
	return c.WithWatch.Get(ctx, key, o, opts...)
}

// TestWritesOfARestart counts the writes of the status of the FixedIP while its pod restarts, and checks the pod that the
// status names at the end. Each step is followed by a reconcile. The cache of FixedIPs shows the writes so far only after
// the step "watch".
func TestWritesOfARestart(t *testing.T) {
	const gone, pending, bound, running, watch, wait = "gone", "pending", "bound", "running", "watch", "wait"
	for name, c := range map[string]struct {
		steps  []string
		writes int
		// uid is the UID of the pod in the status at the end.
		uid string
	}{
		"the watch shows each write at once":                {steps: []string{gone, pending, bound, watch, running, watch}, writes: 1, uid: "pod-new"},
		"the pod gets its IPs before the watch":             {steps: []string{gone, pending, bound, running, watch}, writes: 1, uid: "pod-new"},
		"several events before the watch":                   {steps: []string{gone, bound, running, running, running, watch, running}, writes: 1, uid: "pod-new"},
		"the pod is gone for less than the gap":             {steps: []string{gone, pending, pending}, writes: 0, uid: "pod-0"},
		"the pod waits longer than the gap":                 {steps: []string{gone, pending, wait, watch}, writes: 1, uid: ""},
		"the pod waits longer than the gap and then starts": {steps: []string{gone, pending, wait, watch, bound, running, watch}, writes: 2, uid: "pod-new"},
		"the next pod is deleted before the watch":          {steps: []string{gone, bound, gone, watch, wait, watch}, writes: 2, uid: ""},
		"the watch does not show the write for a while":     {steps: []string{gone, bound, wait, running, watch, running}, writes: 1, uid: "pod-new"},
	} {
		t.Run(name, func(t *testing.T) {
			web := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web", UID: "web-1"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3)}}
			objects := controllertest.Objects(web, controllertest.Pod(0), controllertest.Record(0, false))
			s := newStage(t, objects, objects)
			writes := 0
			s.fixedips.Live = interceptor.NewClient(s.API, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				writes++
				return c.SubResource(sub).Update(ctx, o, opts...)
			}})
			cache := &restartCache{WithWatch: s.Cached, pod: controllertest.Pod(0)}
			s.fixedips.Cached = cache
			show := func() {
				t.Helper()
				if err := s.API.Get(t.Context(), client.ObjectKeyFromObject(controllertest.Pod(0)), &cache.record); err != nil {
					t.Fatal(err)
				}
			}
			reconcile := func() {
				t.Helper()
				if _, err := s.fixedips.Reconcile(t.Context(), source.ForOwner("db/web-0")[0]); err != nil {
					t.Fatal(err)
				}
			}
			show()
			reconcile()
			show()
			writes = 0
			for _, step := range c.steps {
				pod := controllertest.Pod(0)
				pod.UID = "pod-new"
				switch step {
				case watch:
					show()
				case wait:
					s.Clock.Step(reclaim.Gap + time.Second)
				case pending:
					pod.Spec.NodeName = ""
					cache.pod = pod
				case running:
					pod.Status.PodIPs = []corev1.PodIP{{IP: controllertest.IP(0)}}
					fallthrough
				case bound:
					cache.pod = pod
				case gone:
					cache.pod = nil
				}
				reconcile()
			}
			show()
			if got := string(cache.record.Status.PodUID); writes != c.writes || got != c.uid {
				t.Errorf("got %d writes of the status and pod UID %q at the end, want %d and %q", writes, got, c.writes, c.uid)
			}
		})
	}
}

// TestReplacedVersionExpires checks that a FixedIP counts as replaced for at most replacedFor, even if the cache never shows
// the write.
func TestReplacedVersionExpires(t *testing.T) {
	before, after := controllertest.Record(0, false), controllertest.Record(0, false)
	before.ResourceVersion, after.ResourceVersion = "1", "2"
	now := controllertest.Begin
	for name, c := range map[string]struct {
		written, seen *v1alpha1.FixedIP
		after         time.Duration
		want          bool
	}{
		"just written":              {written: after, seen: before, want: true},
		"just before replacedFor":   {written: after, seen: before, after: replacedFor - time.Second, want: true},
		"after replacedFor":         {written: after, seen: before, after: replacedFor},
		"the cache shows the write": {written: after, seen: after},
		"the write changed nothing": {written: before, seen: before},
		"no FixedIP":                {written: after},
	} {
		t.Run(name, func(t *testing.T) {
			var r replaced
			r.add(before, c.written, now)
			if got := r.has(c.seen, now.Add(c.after)); got != c.want {
				t.Errorf("has: got %t, want %t", got, c.want)
			}
		})
	}
}
